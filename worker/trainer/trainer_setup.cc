// What a rank needs before its first step: the coordinator, the other ranks, a session, and where
// its results go.
#include <spdlog/spdlog.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/spec/path_roots.h"
#include "common/spec/sizes.h"
#include "common/spec/to_yaml.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/comm/tcp.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/state_interval.h"
#include "engine/runtime/offload/state_disk.h"
#include "worker/trainer/rendezvous.h"
#include "worker/trainer/trainer.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kMeetingTime = absl::Minutes(5);
// That a rank waits for others that are still setting up: longer than these may (HangWatch). Who
// fails is noticed at once.
constexpr absl::Duration kSetUpPatience = absl::Hours(2);

// That a stage of a pipeline waits for what another one does with a micro-batch. Who is lost is
// noticed at once, or by the coordinator.
constexpr absl::Duration kStagePatience = absl::Minutes(10);

}  // namespace

std::optional<TrainerExit> Trainer::Join() {
  if (absl::Status status = FindCoordinator(); !status.ok()) return SetupFailure(status);
  if (absl::Status status = CheckDevice(); !status.ok()) return SetupFailure(status);
  if (absl::Status status = CheckPathsOfSpec(); !status.ok()) return SetupFailure(status);
  absl::Status status = Meet();
  if (status.ok()) status = FetchChoices();
  if (!status.ok()) {
    if (fenced_) return Fenced();
    if (AbortRequested()) return SetupFailure(Aborted());
    if (StopRequested()) return TrainerExit{.code = kExitStopped};
    return SetupFailure(status);
  }
  abort_watch_.emplace([this] {
    for (const auto* each :
         {&communicator_, &device_communicator_, &stage_activations_, &stage_gradients_}) {
      if (*each != nullptr) (*each)->Abort(Aborted().message());
    }
  });
  return std::nullopt;
}

absl::Status Trainer::FindCoordinator() {
  coordinator_.address = message_.coordinator();
  if (message_.tls_dir().empty()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(coordinator_.credentials, WorkerCredentials(message_.tls_dir()));
  return absl::OkStatus();
}

// The worker starts the binary of its slot; the coordinator chose the slot by the spec.
absl::Status Trainer::CheckDevice() const {
  if (spec_.resources().device() == device_.kind) return absl::OkStatus();
  const auto name = [](v1::DeviceKind kind) {
    return EnumYamlName(*v1::DeviceKind_descriptor()->FindValueByNumber(kind));
  };
  return absl::InternalError(absl::StrCat("resources.device is ", name(spec_.resources().device()),
                                          ", and this trainer is for ", name(device_.kind)));
}

absl::Status Trainer::CheckPathsOfSpec() const {
  const auto folders = [](const auto& given) {
    return std::vector<std::string>(given.begin(), given.end());
  };
  return CheckPaths(
      spec_, {.write = folders(message_.write_roots()), .data = folders(message_.data_roots())});
}

absl::Status Trainer::Meet() {
  if (start_.world() == 1) {
    communicator_ = std::move(comm::MakeInProcessGroup(1)[0]);
    return absl::OkStatus();
  }
  const auto give_up = [] { return StopRequested() || AbortRequested(); };
  RendezvousStore store(coordinator_, start_.job(), start_.generation(), give_up);
  comm::TcpOptions options;
  options.connect_timeout = kMeetingTime;
  options.give_up = give_up;  // a rank that was told before it could listen does not come
  options.host = LocalAddressTowards(message_.coordinator());
  auto communicator = comm::ConnectTcp(start_.rank(), start_.world(), &store, options);
  fenced_ = store.fenced();
  if (!communicator.ok()) return communicator.status();
  communicator_ = *std::move(communicator);
  communicator_->SetTimeout(kSetUpPatience);
  const auto connect = [&](const char* prefix, std::unique_ptr<comm::Communicator>* to) {
    comm::PrefixedStore prefixed(&store, prefix);
    auto another = comm::ConnectTcp(start_.rank(), start_.world(), &prefixed, options);
    fenced_ = store.fenced();
    if (another.ok()) *to = *std::move(another);
    return another.status();
  };
  if (device_.kind != v1::DEVICE_KIND_CPU) {
    MP_RETURN_IF_ERROR(connect("device.", &device_communicator_));
  }
  if (PipelineStages(spec_.resources()) > 1) {
    MP_RETURN_IF_ERROR(connect("activations.", &stage_activations_));
    MP_RETURN_IF_ERROR(connect("gradients.", &stage_gradients_));
  }
  if (spec_.checkpoint().redundancy() > 0) {
    MP_RETURN_IF_ERROR(connect("copies.", &copies_communicator_));
  }
  return absl::OkStatus();
}

// They make the bits those of earlier attempts: worth some waiting, and no failure. A coordinator
// of the version before keeps none, and refuses the call.
absl::Status Trainer::FetchChoices() {
  if (start_.rank() != 0 || device_.kind == v1::DEVICE_KIND_CPU) return absl::OkStatus();
  RendezvousStore store(coordinator_, start_.job(), start_.generation(),
                        [] { return StopRequested() || AbortRequested(); });
  absl::StatusOr<std::string> choices = store.GetChoices(Now() + kMeetingTime);
  fenced_ = store.fenced();
  if (choices.ok()) {
    choices_ = *std::move(choices);
  } else if (!fenced_ && !absl::IsCancelled(choices.status())) {
    spdlog::warn("algorithms are chosen anew, so bits may be others than an earlier attempt's: {}",
                 std::string(choices.status().message()));
    return absl::OkStatus();
  }
  return choices.status();
}

std::optional<TrainerExit> Trainer::MakeSession() {
  absl::StatusOr<std::string> state_folder = StateFolder();
  if (!state_folder.ok()) return SetupFailure(state_folder.status());
  state_folder_ = *std::move(state_folder);
  SettingUp();
  auto session = runtime::TrainingSession::Create(
      spec_,
      {.threads = message_.threads(),
       .engine = device_.engine,
       .device_communicator = device_communicator_.get(),
       .transfers = {.activations = stage_activations_.get(), .gradients = stage_gradients_.get()},
       .state_folder = state_folder_,
       .choices = choices_,
       .activity = &activity_},
      communicator_.get());
  if (!session.ok()) {
    // A stop ends ranks that connect on GPUs, which takes up to minutes, and peers that wait here.
    return FailedSetUp(session.status());
  }
  session_ = *std::move(session);
  KeepChoices();
  if (!state_folder_.empty()) {
    spdlog::info("optimizer state: {} MiB in {} ({})", session_->plan().disk_bytes >> 20,
                 state_folder_, session_->disk_description());
  }
  return std::nullopt;
}

absl::StatusOr<std::string> Trainer::StateFolder() const {
  const v1::OffloadSpec& offload = spec_.train().offload();
  if (offload.optimizer() != v1::OFFLOAD_TARGET_NVME) return "";
  if (!offload.path().empty()) return offload.path();
  std::error_code error;
  std::filesystem::create_directories(message_.state_folder(), error);
  if (!error) return message_.state_folder();
  return runtime::DiskFailure(absl::InternalError(absl::StrCat(
      "the worker's folder for offloaded state cannot be made: ", message_.state_folder(), ": ",
      error.message(), "; name train.offload.path")));
}

// Beside the training, which waits for no coordinator.
void Trainer::KeepChoices() {
  std::string choices = session_->choices();
  if (start_.rank() != 0 || choices.empty() || choices == choices_) return;
  keeper_.emplace([this, choices = std::move(choices)](const std::stop_token& ends) {
    RendezvousStore store(coordinator_, start_.job(), start_.generation(), [&] {
      return ends.stop_requested() || StopRequested() || AbortRequested();
    });
    const absl::Status kept = store.PutChoices(choices, absl::InfiniteFuture());
    if (kept.ok() || absl::IsCancelled(kept) || absl::IsAborted(kept)) return;
    spdlog::warn("the choice of algorithms is not kept, so a later attempt may have other bits: {}",
                 std::string(kept.message()));
  });
}

std::optional<TrainerExit> Trainer::GetReady() {
  base_.reset();  // its files need not be there any more
  if (absl::Status status = MakeCopies(); !status.ok()) return CopiesFailure(status);
  MakeUploader();
  if (!state_folder_.empty()) {  // a full disk shows now, not at the first checkpoint
    const absl::Status copy = uploader_->AwaitCopy();
    if (!copy.ok()) {
      return TrainerExit{kExitError, v1::FAILURE_CLASS_HOST, std::string(copy.message())};
    }
  }
  progress_.Begin(session_->trainer_state(), *session_, spec_, restored_from_);
  if (absl::Status status = OpenScalars(); !status.ok()) {
    return TrainerExit{kExitUsage, v1::FAILURE_CLASS_USER, std::string(status.message())};
  }
  // The attempt before it may have been lost while it did what was due then.
  if (restored_from_ == kFromMemory && session_->step() > start_.checkpoint_step()) {
    if (absl::Status status = AfterStep(session_->step()); !status.ok()) return Lost(status);
  }
  if (absl::Status status = AwaitOthers(); !status.ok()) return Lost(status);
  activity_.Enter(runtime::Activity::kOther, 0);
  LimitWaits();
  return std::nullopt;
}

// Ranks that do the same wait for what one does longer than another. A stage waits while others
// compute, one after the other.
void Trainer::LimitWaits() {
  const int stages = PipelineStages(spec_.resources());
  // A rank may multiply all rows of its expert ranks while the others wait.
  const int share = ExpertRanks(spec_.resources());
  const absl::Duration patience =
      share * (stages == 1 ? comm::CommunicatorOptions().timeout : stages * kStagePatience);
  communicator_->SetTimeout(patience);
  for (auto* each : {&device_communicator_, &stage_activations_, &stage_gradients_}) {
    if (*each != nullptr) (*each)->SetTimeout(patience);
  }
}

absl::Status Trainer::MakeCopies() {
  if (spec_.checkpoint().redundancy() == 0) return absl::OkStatus();
  auto copies = PeerCopies::Create(message_.memory_folder(),
                                   {start_.uid(), start_.generation(), start_.rank()}, *session_,
                                   *communicator_, std::move(copies_communicator_));
  if (!copies.ok()) return Annotate(copies.status(), "checkpoint.redundancy");
  copies_ = *std::move(copies);
  return absl::OkStatus();
}

void Trainer::MakeUploader() {
  UploaderOptions options;
  options.job = start_.job();
  options.generation = start_.generation();
  options.rank = start_.rank();
  options.world = start_.world();
  options.model_yaml = MessageToYaml(spec_.model());
  options.tensors = session_->state_tensors();
  options.copy_folder = state_folder_;
  std::vector<runtime::StateInterval> sources;
  for (int part = 0; part < session_->state_parts(); ++part) {
    const std::vector<runtime::StateInterval> of_part = session_->SaveSources(part);
    sources.insert(sources.end(), of_part.begin(), of_part.end());
  }
  uploader_ = std::make_unique<CheckpointUploader>(coordinator_, std::move(options), sources);
}

// At a job's begin a folder that cannot be written is a mistake, which is mended at once; later the
// steps that are done are worth more than a curve.
absl::Status Trainer::OpenScalars() {
  const std::string& folder = spec_.report().tensorboard();
  if (start_.rank() != 0 || folder.empty()) return absl::OkStatus();
  scalars_ = std::make_unique<ScalarLog>(ScalarFolder(folder, start_.job(), start_.uid()),
                                         session_->step(), Now());
  const absl::Status status = Annotate(scalars_->status(), "report.tensorboard");
  if (status.ok()) return status;
  if (session_->step() == 0) return status;
  spdlog::warn("{}; training goes on without", std::string(status.message()));
  return absl::OkStatus();
}

void Trainer::SettingUp() { activity_.Enter(runtime::Activity::kSetUp, 0); }

// One may have its state from a slow disk. What comes next, on devices too, has short time-outs.
absl::Status Trainer::AwaitOthers() {
  activity_.Enter(runtime::Activity::kOther, 0);
  absl::Status status = communicator_->Barrier();
  SettingUp();
  return status;
}

// Of ranks that are all told to stop, some leave before others have noticed.
TrainerExit Trainer::FailedSetUp(const absl::Status& status) {
  if (StopRequested() && comm::IsPeerLost(status)) return {.code = kExitStopped};
  return SetupFailure(status);
}

}  // namespace milepost::worker
