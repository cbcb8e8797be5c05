#include "worker/script/script_checkpoints.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "worker/script/save_upload.h"
#include "worker/script/tensor_union.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kReadPatience = absl::Minutes(5);
// For the slowest rank to come to its save: one may write, evaluate or compile meanwhile.
constexpr absl::Duration kOthersTime = absl::Minutes(30);
constexpr double kMostWaitSeconds = 30;
constexpr int kMostStreams = 2;  // of a rank, as StreamsPerRank says

int HttpStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kResourceExhausted:
      return 409;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return 503;
    default:
      return 500;
  }
}

HttpResponse ResponseOf(const absl::Status& status) {
  if (status.ok()) return {.body = "{}\n"};
  return {.status = HttpStatus(status), .body = absl::StrCat(status.message(), "\n")};
}

HttpResponse ResponseOf(absl::StatusOr<std::string> json) {
  if (!json.ok()) return ResponseOf(json.status());
  return {.content_type = "application/json", .body = *std::move(json)};
}

// From the numbers of `tensors` to those of `all`, which has each of them.
std::vector<int32_t> Renumbered(const std::vector<v1::TensorInfo>& tensors,
                                const std::vector<v1::TensorInfo>& all) {
  std::map<std::pair<std::string, std::string>, int32_t> places;
  for (size_t i = 0; i < all.size(); ++i) {
    places[{all[i].name(), all[i].kind()}] = static_cast<int32_t>(i);
  }
  std::vector<int32_t> numbers;
  for (const v1::TensorInfo& tensor : tensors) {
    numbers.push_back(places.at({tensor.name(), tensor.kind()}));
  }
  return numbers;
}

RankState StateOf(const SaveRequest& request, bool owed) {
  RankState state = {
      .step = request.step, .tensors = request.tensors, .durable = request.durable, .owed = owed};
  for (const MemoryPiece& piece : request.pieces) state.pieces.push_back(piece.interval);
  return state;
}

std::vector<state::TensorSlice> SlicesOf(const SaveRequest& request,
                                         const std::vector<v1::TensorInfo>& all, char* memory) {
  const std::vector<int32_t> numbers = Renumbered(request.tensors, all);
  std::vector<state::TensorSlice> slices;
  for (const MemoryPiece& piece : request.pieces) {
    state::Interval interval = piece.interval;
    interval.tensor = numbers[static_cast<size_t>(interval.tensor)];
    slices.push_back({interval, memory + piece.offset});
  }
  std::sort(slices.begin(), slices.end(),
            [](const auto& a, const auto& b) { return a.interval < b.interval; });
  return slices;
}

}  // namespace

ScriptCheckpoints::ScriptCheckpoints(const Endpoint& coordinator, Options options)
    : options_(std::move(options)),
      reader_(coordinator, kReadPatience, options_.give_up),
      uploads_(coordinator, kMostStreams, {}) {
  if (options_.copies) copies_.emplace(*options_.copies);
}

HttpResponse ScriptCheckpoints::Answer(const std::string& path, const std::string& body) {
  if (path == "/checkpoint/claim") return ResponseOf(Claim(body));
  if (path == "/checkpoint/release") return ResponseOf(Release());
  if (path == "/checkpoint/save") return ResponseOf(Save(body));
  if (path == "/checkpoint/wait") return ResponseOf(WaitForCommit(body));
  if (path == "/checkpoint/read") return ResponseOf(Read(body));
  if (path != "/checkpoint/manifest") return {.status = 404, .body = "no such request\n"};
  if (options_.begin_with.empty()) return {.status = 204};
  return ResponseOf(Manifest());
}

std::string ScriptCheckpoints::restored_from() const {
  const absl::MutexLock lock(&mutex_);
  return restored_from_;
}

void ScriptCheckpoints::Cancel() {
  uploads_.Cancel();
  if (copies_) copies_->Abort();
  const absl::MutexLock lock(&mutex_);
  cancelled_ = true;
  if (communicator_ != nullptr) communicator_->Abort("this rank's script has ended");
}

// A script may save the step at which it is told to stop twice; an earlier one would never be what
// the next attempt begins with.
absl::StatusOr<std::string> ScriptCheckpoints::Claim(const std::string& body) {
  MP_ASSIGN_OR_RETURN(const ClaimRequest request, ParseClaim(body));
  const int64_t step = request.step;
  if (!request.durable && !copies_) {
    return absl::InvalidArgumentError(
        "a save that is not durable needs checkpoint.redundancy: 1 in the job's spec");
  }
  const int64_t saved = request.durable ? durable_step_ : saved_step_;
  if (step == saved) return R"({"saved": true})";
  if (step < saved_step_) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step, " comes after step ", saved_step_,
                                                   ", which was saved before: steps must rise"));
  }
  if (claimed_) return "{}";
  MP_RETURN_IF_ERROR(uploads_.Claim(step));
  claimed_ = true;
  return "{}";
}

absl::Status ScriptCheckpoints::Release() {
  if (std::exchange(claimed_, false)) uploads_.GiveUp();
  return absl::OkStatus();
}

absl::StatusOr<AgreedSave> ScriptCheckpoints::Agree(const absl::StatusOr<RankState>& own,
                                                    bool alone) {
  if (alone || options_.world == 1) {
    MP_RETURN_IF_ERROR(own.status());
    MP_RETURN_IF_ERROR(CheckWhole(*own));
    return AgreedSave{own->tensors, own->durable || own->owed};
  }
  if (communicator_ == nullptr) {
    MP_ASSIGN_OR_RETURN(std::unique_ptr<comm::Communicator> communicator, options_.connect());
    communicator->SetTimeout(kOthersTime);
    const absl::MutexLock lock(&mutex_);
    communicator_ = std::move(communicator);
    if (cancelled_) communicator_->Abort("this rank's script has ended");
  }
  auto agreed = AgreeOnSave(*communicator_, own);
  if (own.ok() && absl::IsDeadlineExceeded(agreed.status())) {
    return absl::DeadlineExceededError(
        absl::StrCat("step ", own->step, ": not every rank has come to save it within ",
                     absl::FormatDuration(kOthersTime), ": ", agreed.status().message()));
  }
  return agreed;
}

absl::Status ScriptCheckpoints::Save(const std::string& body) {
  if (!claimed_) return absl::InvalidArgumentError("claim the memory before you write to it");
  claimed_ = false;
  absl::StatusOr<Upload> upload = MakeUpload(body);
  if (!upload.ok()) {
    uploads_.GiveUp();
    return upload.status();
  }
  saved_step_ = upload->begin.step();
  if (upload->durable) durable_step_ = saved_step_;
  // Nobody knows whether another one follows.
  uploads_.Submit(*std::move(upload), /*final=*/true);
  return absl::OkStatus();
}

absl::StatusOr<Upload> ScriptCheckpoints::MakeUpload(const std::string& body) {
  // Whatever is wrong here, the other ranks are told, and do not wait.
  const absl::StatusOr<SaveRequest> parsed = ParseSaveRequest(body);
  const auto own = [&]() -> absl::StatusOr<RankState> {
    MP_RETURN_IF_ERROR(parsed.status());
    MP_ASSIGN_OR_RETURN(memory_, SharedMemory::Map(parsed->memory, options_.processes(),
                                                   /*write=*/false, &memory_));
    return StateOf(*parsed, uploads_.gave_way());
  }();
  const bool alone = parsed.ok() && parsed->alone;
  MP_ASSIGN_OR_RETURN(const AgreedSave agreed, Agree(own, alone));
  const std::vector<v1::TensorInfo>& tensors = agreed.tensors;
  const SaveRequest& request = *parsed;
  MP_ASSIGN_OR_RETURN(layout_, state::StateLayout::FromProto(tensors));
  const std::vector<state::TensorSlice> slices = SlicesOf(request, tensors, memory_.data());
  const SavingRank saving = {options_.job, options_.generation, request.alone ? 0 : options_.rank,
                             request.alone ? 1 : options_.world};
  Upload upload = UploadOf(saving, request.step, tensors, layout_, slices);
  upload.durable = agreed.durable;
  if (copies_ && !request.alone) {
    upload.copy = [this, step = request.step, tensors, slices] {
      return copies_->Keep(step, tensors, slices);
    };
  }
  return upload;
}

absl::StatusOr<std::string> ScriptCheckpoints::WaitForCommit(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const double seconds = json.is_object() && json.contains("seconds") && json["seconds"].is_number()
                             ? json["seconds"].get<double>()
                             : 0;
  const absl::Duration time = absl::Seconds(std::clamp(seconds, 0.0, kMostWaitSeconds));
  const absl::Status last = uploads_.Wait(Clock::Real()->Now() + time);
  const UploadState state = uploads_.State();
  const bool failed = !last.ok() && !absl::IsDeadlineExceeded(last);
  const nlohmann::json answer = {
      {"committed_step", state.committed_step},
      {"active", state.active},
      {"problem", failed && state.problem.empty() ? std::string(last.message()) : state.problem}};
  return answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status ScriptCheckpoints::Fetch() {
  if (manifest_.has_value()) return absl::OkStatus();
  if (options_.begin_with.empty()) {
    return absl::FailedPreconditionError("the job has no checkpoint to begin with");
  }
  MP_ASSIGN_OR_RETURN(manifest_, reader_.Manifest(options_.begin_with));
  return absl::OkStatus();
}

absl::StatusOr<std::string> ScriptCheckpoints::Manifest() {
  MP_RETURN_IF_ERROR(Fetch());
  return ManifestJson(*manifest_);
}

absl::Status ScriptCheckpoints::Read(const std::string& body) {
  MP_RETURN_IF_ERROR(Fetch());
  MP_ASSIGN_OR_RETURN(const state::StateLayout layout,
                      state::StateLayout::FromProto(manifest_->tensors()));
  MP_ASSIGN_OR_RETURN(const ReadRequest request, ParseReadRequest(body, layout));
  MP_ASSIGN_OR_RETURN(const SharedMemory memory,
                      SharedMemory::Map(request.memory, options_.processes(), /*write=*/true));
  std::vector<runtime::StateInterval> targets;
  for (const MemoryPiece& piece : request.pieces) {
    targets.push_back({piece.interval.tensor, piece.interval.begin, piece.interval.end,
                       memory.data() + piece.offset});
  }
  const std::vector<v1::TensorInfo> tensors(manifest_->tensors().begin(),
                                            manifest_->tensors().end());
  MP_RETURN_IF_ERROR(reader_.Read(*manifest_, tensors, targets));
  const absl::MutexLock lock(&mutex_);
  restored_from_ = options_.begin_with;
  return absl::OkStatus();
}

}  // namespace milepost::worker
