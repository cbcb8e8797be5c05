#include "worker/trainer/checkpoint_reader.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/clock.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "engine/state/half.h"
#include "engine/state/layout.h"

namespace milepost::worker {

namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(1);
constexpr absl::Duration kReadUnaryTime = absl::Seconds(10);

// A master that is stored in bf16 is one in fp32 too, and the other way round: it is converted.
bool MayConvert(const v1::TensorInfo& a, const v1::TensorInfo& b) {
  const auto is_float = [](const std::string& dtype) { return dtype == "F32" || dtype == "BF16"; };
  return a.kind() == "master" && is_float(a.dtype()) && is_float(b.dtype());
}

bool SameForm(const v1::TensorInfo& a, const v1::TensorInfo& b) {
  return (a.dtype() == b.dtype() || MayConvert(a, b)) &&
         std::equal(a.shape().begin(), a.shape().end(), b.shape().begin(), b.shape().end());
}

// `count` elements of F32 as BF16, to nearest, or of BF16 as F32.
void Convert(const char* from, size_t count, DType to_dtype, char* to) {
  for (size_t i = 0; i < count; ++i) {
    if (to_dtype == DType::kBf16) {
      float value;
      std::memcpy(&value, from + 4 * i, 4);
      const uint16_t bits = state::F32ToBf16(value);
      std::memcpy(to + 2 * i, &bits, 2);
    } else {
      uint16_t bits;
      std::memcpy(&bits, from + 2 * i, 2);
      const float value = state::Bf16ToF32(bits);
      std::memcpy(to + 4 * i, &value, 4);
    }
  }
}

// A parameter that was frozen when the checkpoint was made: it has a master only.
bool WasFrozen(const v1::CheckpointManifest& manifest, const std::string& name) {
  const auto of_it = [&](const v1::TensorInfo& t) { return t.name() == name; };
  const auto& tensors = manifest.tensors();
  return std::count_if(tensors.begin(), tensors.end(), of_it) == 1 &&
         std::find_if(tensors.begin(), tensors.end(), of_it)->kind() == "master";
}

constexpr int32_t kLeftAsItIs = -1;

// For each of `tensors`, its index in the manifest, or kLeftAsItIs.
absl::StatusOr<std::vector<int32_t>> MatchTensors(const v1::CheckpointManifest& manifest,
                                                  const std::vector<v1::TensorInfo>& tensors) {
  std::map<std::pair<std::string, std::string>, int32_t> known;
  for (int32_t i = 0; i < manifest.tensors_size(); ++i) {
    known[{manifest.tensors(i).name(), manifest.tensors(i).kind()}] = i;
  }
  std::vector<int32_t> result;
  for (const v1::TensorInfo& tensor : tensors) {
    auto found = known.find({tensor.name(), tensor.kind()});
    // An average that has not been kept so far begins as the parameters.
    if (found == known.end() && tensor.kind() == state::kAverageKind) {
      found = known.find({tensor.name(), "master"});
    }
    const bool factor = tensor.kind() == state::kFactorKind;
    const bool starts_anew = factor || tensor.kind() == state::kErrorKind ||
                             tensor.kind() == state::kOuterMomentumKind ||
                             tensor.kind() == state::kScalingKind ||
                             WasFrozen(manifest, tensor.name());
    const bool of_other_rank =
        factor && found != known.end() && !SameForm(manifest.tensors(found->second), tensor);
    if ((found == known.end() && starts_anew) || of_other_rank) {
      result.push_back(kLeftAsItIs);
      continue;
    }
    if (found == known.end() || !SameForm(manifest.tensors(found->second), tensor)) {
      return absl::FailedPreconditionError(absl::StrCat(
          manifest.checkpoint().name(),
          found == known.end() ? " has no tensor " : " has another shape or dtype for tensor ",
          tensor.name(), " (", tensor.kind(), "): it is of another model"));
    }
    result.push_back(found->second);
  }
  return result;
}

// The targets in the manifest's numbering, sorted, and where arriving chunks go.
class Scatter {
 public:
  static absl::StatusOr<Scatter> Create(const v1::CheckpointManifest& manifest,
                                        const std::vector<v1::TensorInfo>& tensors,
                                        const std::vector<runtime::StateInterval>& targets) {
    MP_ASSIGN_OR_RETURN(std::vector<int32_t> indices, MatchTensors(manifest, tensors));
    MP_ASSIGN_OR_RETURN(state::StateLayout layout,
                        state::StateLayout::FromProto(manifest.tensors()));
    Scatter scatter(manifest.checkpoint().name(), std::move(layout));
    for (const runtime::StateInterval& wanted : targets) {
      Target target = {wanted};
      MP_ASSIGN_OR_RETURN(target.dtype,
                          state::ParseDType(tensors[static_cast<size_t>(wanted.tensor)].dtype()));
      target.tensor = indices[static_cast<size_t>(wanted.tensor)];
      if (target.tensor == kLeftAsItIs) continue;  // as a new session has it
      if (target.begin < target.end) scatter.targets_.push_back(target);
    }
    std::sort(scatter.targets_.begin(), scatter.targets_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.tensor, a.begin) < std::tie(b.tensor, b.begin);
    });
    return scatter;
  }

  v1::ReadChunksRequest Request() const {
    v1::ReadChunksRequest request;
    request.set_name(name_);
    for (const Target& target : targets_) {
      if (request.ranges_size() > 0) {  // what goes to two targets comes once
        const v1::TensorRange& last = request.ranges(request.ranges_size() - 1);
        if (last.tensor() == target.tensor && last.begin() == target.begin) continue;
      }
      v1::TensorRange& range = *request.add_ranges();
      range.set_tensor(target.tensor);
      range.set_begin(target.begin);
      range.set_end(target.end);
    }
    return request;
  }

  bool empty() const { return targets_.empty(); }
  void Restart() { copied_ = 0; }

  absl::Status Accept(const v1::Chunk& chunk) {
    MP_RETURN_IF_ERROR(Check(chunk));
    const DType dtype = layout_.tensor(chunk.tensor()).dtype;
    const int64_t size = ByteSize(dtype);
    // The first target that ends after the chunk's begin.
    auto target = std::partition_point(targets_.begin(), targets_.end(), [&](const Target& t) {
      return std::pair(t.tensor, t.end) <= std::pair(chunk.tensor(), chunk.begin());
    });
    for (; target != targets_.end() && target->tensor == chunk.tensor() &&
           target->begin < chunk.end();
         ++target) {
      target->ForPieces(chunk.begin(), chunk.end(), [&](int64_t begin, int64_t end) {
        const char* from = chunk.data().data() + (begin - chunk.begin()) * size;
        char* to = target->data + target->ElementsBefore(begin) * ByteSize(target->dtype);
        if (target->dtype == dtype) {
          std::memcpy(to, from, static_cast<size_t>((end - begin) * size));
        } else {
          Convert(from, static_cast<size_t>(end - begin), target->dtype, to);
        }
        copied_ += end - begin;
      });
    }
    return absl::OkStatus();
  }

  // A committed checkpoint's chunks do not overlap: the count tells whether anything is missing.
  absl::Status Finish() const {
    int64_t wanted = 0;
    for (const auto& target : targets_) wanted += target.elements();
    if (copied_ == wanted) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(name_, ": ", copied_, " elements came of ", wanted));
  }

 private:
  struct Target : runtime::StateInterval {
    DType dtype = DType::kF32;  // of what lies at data
  };

  Scatter(std::string name, state::StateLayout layout)
      : name_(std::move(name)), layout_(std::move(layout)) {}

  absl::Status Check(const v1::Chunk& chunk) const {
    const state::Interval interval = {chunk.tensor(), chunk.begin(), chunk.end()};
    const int32_t count = static_cast<int32_t>(layout_.tensors().size());
    if (chunk.tensor() < 0 || chunk.tensor() >= count || !layout_.CheckInterval(interval).ok() ||
        layout_.BytesOf(interval) != static_cast<int64_t>(chunk.data().size())) {
      return absl::DataLossError(
          absl::StrCat(name_, ": a chunk that is not of its tensors (tensor ", chunk.tensor(), " [",
                       chunk.begin(), ", ", chunk.end(), "))"));
    }
    if (Xxh3(chunk.data()) == chunk.xxh3()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(name_, ": the chunk ", layout_.Describe(interval),
                                            " does not have the checksum it was saved with"));
  }

  std::string name_;
  state::StateLayout layout_;
  std::vector<Target> targets_;
  int64_t copied_ = 0;
};

}  // namespace

CheckpointReader::CheckpointReader(const Endpoint& coordinator, absl::Duration patience,
                                   std::function<bool()> give_up)
    : coordinators_(coordinator, Way::kShortest),
      patience_(patience),
      give_up_(std::move(give_up)) {}

absl::Status CheckpointReader::Retry(
    const std::function<absl::Status(v1::CheckpointService::Stub*)>& call) {
  const absl::Time deadline = Clock::Real()->Now() + patience_;
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    if (give_up_()) return absl::CancelledError("told to stop while restoring");
    const std::shared_ptr<grpc::Channel> channel = coordinators_.Get();
    const absl::Status status = call(v1::CheckpointService::NewStub(channel).get());
    const bool away = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    const bool busy = absl::IsResourceExhausted(status);  // too many call at once
    const bool cut = absl::IsCancelled(status);           // by the coordinator: it stood still
    if (!away && !busy && !cut) return status;
    if (Clock::Real()->Now() >= deadline) {
      return away ? status : absl::UnavailableError(status.message());  // not this rank's memory
    }
    if (away) coordinators_.Failed(channel);
    coordinators_.Pause(pause);
  }
}

absl::StatusOr<v1::CheckpointManifest> CheckpointReader::Manifest(const std::string& name) {
  v1::CheckpointManifest manifest;
  MP_RETURN_IF_ERROR(Retry([&](v1::CheckpointService::Stub* stub) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(Clock::Real()->Now() + kReadUnaryTime));
    v1::GetCheckpointRequest request;
    request.set_name(name);
    return FromGrpcStatus(stub->GetCheckpoint(&context, request, &manifest));
  }));
  return manifest;
}

absl::Status CheckpointReader::Read(const v1::CheckpointManifest& manifest,
                                    const std::vector<v1::TensorInfo>& tensors,
                                    const std::vector<runtime::StateInterval>& targets,
                                    const std::function<void()>& came) {
  MP_ASSIGN_OR_RETURN(Scatter scatter, Scatter::Create(manifest, tensors, targets));
  if (scatter.empty()) return absl::OkStatus();
  const v1::ReadChunksRequest request = scatter.Request();
  return Retry([&](v1::CheckpointService::Stub* stub) -> absl::Status {
    scatter.Restart();
    grpc::ClientContext context;
    auto stream = stub->ReadChunks(&context, request);
    v1::Chunk chunk;
    absl::Status status;
    while (status.ok() && stream->Read(&chunk)) {
      status = scatter.Accept(chunk);
      came();
    }
    if (!status.ok()) context.TryCancel();
    absl::Status end = FromGrpcStatus(stream->Finish());
    MP_RETURN_IF_ERROR(status);
    MP_RETURN_IF_ERROR(end);
    return scatter.Finish();
  });
}

}  // namespace milepost::worker
