#include "worker/trainer/train.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/rpc/status.h"
#include "common/spec/path_roots.h"
#include "common/spec/to_yaml.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/comm/tcp.h"
#include "engine/data/training/training_data.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/offload/state_disk.h"
#include "engine/runtime/session/training_session.h"
#include "milepost/v1/trainer.pb.h"
#include "worker/memory_state/memory_state.h"
#include "worker/memory_state/peer_copies.h"
#include "worker/trainer/checkpoint_reader.h"
#include "worker/trainer/checkpoint_uploader.h"
#include "worker/trainer/divergence.h"
#include "worker/trainer/failure.h"
#include "worker/trainer/hang_watch.h"
#include "worker/trainer/initial_weights.h"
#include "worker/trainer/progress.h"
#include "worker/trainer/rendezvous.h"
#include "worker/trainer/scalar_log.h"
#include "worker/trainer/signals.h"

namespace milepost::worker {

namespace {

constexpr absl::Duration kHandOver = absl::Seconds(10);
constexpr absl::Duration kMeetingTime = absl::Minutes(5);
constexpr absl::Duration kRestorePatience = absl::Minutes(10);
// That a rank waits for others that are still setting up: longer than these may (HangWatch). Who
// fails is noticed at once.
constexpr absl::Duration kSetUpPatience = absl::Hours(2);
constexpr absl::Duration kStopPoll = absl::Milliseconds(200);
constexpr char kFromMemory[] = "memory";
constexpr absl::Duration kQuietWait = absl::Seconds(5);  // before saying what is waited for

absl::Time Now() { return Clock::Real()->Now(); }

absl::Status Aborted() { return absl::AbortedError("another rank is lost, the coordinator says"); }

class Trainer {
 public:
  Trainer(v1::TrainerStart start, MessageChannel* channel, const TrainerDevice& device)
      : device_(device),
        message_(std::move(start)),
        start_(message_.start()),
        spec_(start_.spec()),
        channel_(channel),
        progress_(channel, start_.rank() == 0),
        divergence_(spec_.train().max_skipped_steps()) {}

  TrainerExit Run();

 private:
  absl::Status FindCoordinator();
  absl::Status CheckDevice() const;
  absl::Status CheckPathsOfSpec() const;
  absl::Status Meet();
  // What earlier attempts of the job have chosen by trying, so that this one has their bits; and
  // for later ones. A rank on a CPU chooses nothing.
  absl::Status FetchChoices();
  void KeepChoices();
  // Parameters and the rest of the state, from wherever they come; nullopt: they are there.
  std::optional<TrainerExit> Begin();
  void SettingUp();
  absl::Status AwaitOthers();
  TrainerExit FailedSetUp(const absl::Status& status);
  // True: the session holds the state that the job's hosts had in memory.
  absl::StatusOr<bool> RestoreFromMemory();
  // nullopt: the session holds the checkpoint's state.
  std::optional<TrainerExit> Restore();
  // FAILED_PRECONDITION, with the ways on, where `state` comes of other data than there are now.
  absl::Status CheckData(const v1::TrainerState& state) const;
  // New parameters: from the seed, or from train.init_from.
  absl::Status Initialize();
  // Where optimizer state lies that is offloaded to disk; empty: it is not. Made if it is the
  // worker's own folder.
  absl::StatusOr<std::string> StateFolder() const;
  absl::StatusOr<absl::Duration> SaveState(bool final);
  void WatchForHangs();
  void MakeUploader();
  absl::Status OpenScalars();
  absl::Status MakeCopies();
  // nullopt: on to the next step.
  std::optional<TrainerExit> OneStep();
  // What is due after a step: validation, a checkpoint.
  absl::Status AfterStep(int64_t step);
  bool IsCheckpointStep(int64_t step) const;
  // A step failed: what is left of the state is kept for the next attempt.
  TrainerExit Lost(const absl::Status& status);
  void KeepWhatIsLeft();
  void ForgetOlderState();
  // A checkpoint has all of it.
  void ForgetAllState();
  TrainerExit Finish();
  TrainerExit FinishStopped();
  static TrainerExit Fenced();

  const TrainerDevice& device_;
  const v1::TrainerStart message_;
  const v1::StartRank& start_;
  const v1::JobSpec& spec_;
  Endpoint coordinator_;
  MessageChannel* const channel_;
  runtime::ActivityBoard activity_;
  ProgressReporter progress_;
  DivergenceWatch divergence_;
  std::string state_folder_;
  bool fenced_ = false;
  bool stop_agreed_ = false;
  bool forgot_older_state_ = false;
  std::string restored_from_;  // empty: it began anew
  std::string choices_;        // rank 0's, of earlier attempts
  std::unique_ptr<comm::Communicator> communicator_;
  std::unique_ptr<comm::Communicator> device_communicator_;  // of several ranks on GPUs
  std::unique_ptr<comm::Communicator> copies_communicator_;  // until copies_ has it
  std::optional<AbortWatch> abort_watch_;
  std::optional<HangWatch> hang_watch_;
  std::unique_ptr<runtime::TrainingSession> session_;
  std::unique_ptr<PeerCopies> copies_;  // with checkpoint.redundancy
  std::unique_ptr<CheckpointUploader> uploader_;
  std::unique_ptr<ScalarLog> scalars_;  // rank 0's, when asked for
  std::optional<std::jthread> keeper_;  // of what was chosen; ends first
};

absl::Status Trainer::Meet() {
  if (start_.world() == 1) {
    communicator_ = std::move(comm::MakeInProcessGroup(1)[0]);
    return absl::OkStatus();
  }
  RendezvousStore store(coordinator_, start_.job(), start_.generation(),
                        [] { return StopRequested() || AbortRequested(); });
  comm::TcpOptions options;
  options.connect_timeout = kMeetingTime;
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

std::optional<TrainerExit> Trainer::Begin() {
  // The first attempt has nobody before it that could have left something.
  if (start_.generation() > 1) {
    const absl::StatusOr<bool> restored = RestoreFromMemory();
    if (!restored.ok()) return FailedSetUp(restored.status());
    if (*restored) return std::nullopt;
  }
  if (!start_.checkpoint().empty()) return Restore();
  if (absl::Status status = Initialize(); !status.ok()) return FailedSetUp(status);
  return std::nullopt;
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

absl::StatusOr<bool> Trainer::RestoreFromMemory() {
  const absl::Time begin = Now();
  MP_ASSIGN_OR_RETURN(const std::optional<v1::TrainerState> state,
                      TakeUpState(message_.memory_folder(), start_.uid(), start_.generation(),
                                  start_.checkpoint_step(), *session_, *communicator_));
  if (!state.has_value()) return false;
  MP_RETURN_IF_ERROR(CheckData(*state));
  MP_RETURN_IF_ERROR(session_->FinishRestore(*state));
  restored_from_ = kFromMemory;
  spdlog::info("step {}: restored from the hosts' memory in {:.2f} s", session_->step(),
               absl::ToDoubleSeconds(Now() - begin));
  return true;
}

absl::Status Trainer::CheckData(const v1::TrainerState& state) const {
  if (!state.has_data()) return absl::OkStatus();
  absl::Status status =
      data::CheckSameData(state.data(), session_->trainer_state().data(),
                          absl::StrCat("step ", state.step(), " of ", start_.job()));
  if (status.ok()) return status;
  return absl::FailedPreconditionError(absl::StrCat(
      status.message(), ". Put back what was there; or go on with what is there now as a job of ",
      "its own: milepost job fork --from ", start_.job()));
}

std::optional<TrainerExit> Trainer::Restore() {
  // Asked before every try: a rank that waits for the coordinator does not hang.
  CheckpointReader reader(coordinator_, kRestorePatience, [this] {
    SettingUp();
    return StopRequested() || AbortRequested();
  });
  const absl::Time begin = Now();
  auto manifest = reader.Manifest(start_.checkpoint());
  absl::Status status = manifest.status();
  // A fork may be for the sake of other data.
  if (status.ok() && manifest->checkpoint().job() == start_.job()) {
    if (status = CheckData(manifest->state()); !status.ok()) return SetupFailure(status);
  }
  for (int part = 0; status.ok() && part < session_->state_parts(); ++part) {
    SettingUp();
    if (status = session_->FetchState(part); !status.ok()) return SetupFailure(status);
    status = reader.Read(*manifest, session_->state_tensors(), session_->RestoreTargets(part),
                         [this] { SettingUp(); });
    if (!status.ok()) break;
    if (status = session_->StoreState(part); !status.ok()) return SetupFailure(status);
  }
  if (absl::IsCancelled(status) && AbortRequested()) return SetupFailure(Aborted());
  if (absl::IsCancelled(status)) return TrainerExit{.code = kExitStopped};
  if (!status.ok()) return RestoreFailure(status);
  // With the other ranks: here an error may mean that one of them is gone.
  status = AwaitOthers();
  if (status.ok()) status = session_->FinishRestore(manifest->state());
  if (!status.ok()) return FailedSetUp(status);
  restored_from_ = start_.checkpoint();
  spdlog::info("step {}: restored {} in {:.2f} s", session_->step(), start_.checkpoint(),
               absl::ToDoubleSeconds(Now() - begin));
  return std::nullopt;
}

absl::Status Trainer::Initialize() {
  MP_RETURN_IF_ERROR(session_->InitializeParameters());
  const std::string& folder = spec_.train().init_from();
  if (folder.empty()) return absl::OkStatus();
  const absl::Time begin = Now();
  MP_ASSIGN_OR_RETURN(const InitialWeights weights,
                      InitialWeights::Open(folder, spec_.model(), session_->state_tensors()));
  // What the folder does not hold stays as it was initialised.
  for (int part = 0; part < session_->state_parts(); ++part) {
    SettingUp();
    MP_RETURN_IF_ERROR(session_->FetchState(part));
    MP_RETURN_IF_ERROR(weights.Read(session_->RestoreTargets(part)));
    MP_RETURN_IF_ERROR(session_->StoreState(part));
  }
  MP_RETURN_IF_ERROR(AwaitOthers());
  MP_RETURN_IF_ERROR(session_->FinishRestore(session_->trainer_state()));
  spdlog::info("initial parameters of {} in {:.2f} s", folder,
               absl::ToDoubleSeconds(Now() - begin));
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

absl::StatusOr<absl::Duration> Trainer::SaveState(bool final) {
  using Copy = absl::FunctionRef<void(const std::vector<runtime::StateInterval>&)>;
  const auto parts = [this](Copy copy) {
    for (int part = 0; part < session_->state_parts(); ++part) {
      MP_RETURN_IF_ERROR(session_->FetchState(part));
      copy(session_->SaveSources(part));
    }
    return absl::OkStatus();
  };
  return uploader_->Save(parts, session_->trainer_state(), final);
}

TrainerExit Trainer::Fenced() {
  return {kExitFenced, v1::FAILURE_CLASS_UNSPECIFIED,
          "a newer generation of this job exists: leaving"};
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

absl::Status Trainer::FindCoordinator() {
  coordinator_.address = message_.coordinator();
  if (message_.tls_dir().empty()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(coordinator_.credentials, WorkerCredentials(message_.tls_dir()));
  return absl::OkStatus();
}

// What hangs cannot leave: the process ends under it.
void Trainer::WatchForHangs() {
  const double patience = message_.hang_seconds();
  hang_watch_.emplace(
      &activity_, HangWatch::Options{
                      .patience = patience > 0 ? absl::Seconds(patience) : absl::InfiniteDuration(),
                      .on_gpu = device_.kind == v1::DEVICE_KIND_CUDA,
                      .aborting = AbortRequested,
                      .alive =
                          [this] {
                            v1::TrainerMessage message;
                            message.mutable_alive();
                            channel_->Send(message, absl::InfinitePast()).IgnoreError();
                          },
                      .on_hang =
                          [this](const Hang& hang) {
                            spdlog::error("{}", hang.message);
                            v1::TrainerMessage message;
                            message.mutable_failure()->set_class_(hang.failure_class);
                            message.mutable_failure()->set_message(hang.message);
                            channel_->Send(message, Now() + kHandOver).IgnoreError();
                            spdlog::default_logger()->flush();
                            _exit(kExitError);
                          }});
}

TrainerExit Trainer::Run() {
  WatchForHangs();
  if (absl::Status status = FindCoordinator(); !status.ok()) return SetupFailure(status);
  if (absl::Status status = CheckDevice(); !status.ok()) return SetupFailure(status);
  if (absl::Status status = CheckPathsOfSpec(); !status.ok()) return SetupFailure(status);
  absl::Status status = Meet();
  if (status.ok()) status = FetchChoices();
  if (!status.ok()) {
    if (fenced_) return Fenced();
    if (AbortRequested()) return SetupFailure(Aborted());
    if (StopRequested()) return {.code = kExitStopped};
    return SetupFailure(status);
  }
  abort_watch_.emplace([this] {
    communicator_->Abort(Aborted().message());
    if (device_communicator_ != nullptr) device_communicator_->Abort(Aborted().message());
  });
  absl::StatusOr<std::string> state_folder = StateFolder();
  if (!state_folder.ok()) return SetupFailure(state_folder.status());
  state_folder_ = *std::move(state_folder);
  SettingUp();
  auto session =
      runtime::TrainingSession::Create(spec_,
                                       {.threads = message_.threads(),
                                        .engine = device_.engine,
                                        .device_communicator = device_communicator_.get(),
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
  if (std::optional<TrainerExit> exit = Begin()) return *std::move(exit);
  if (absl::Status status = MakeCopies(); !status.ok()) return CopiesFailure(status);
  MakeUploader();
  if (!state_folder_.empty()) {  // a full disk shows now, not at the first checkpoint
    const absl::Status copy = uploader_->AwaitCopy();
    if (!copy.ok()) return {kExitError, v1::FAILURE_CLASS_HOST, std::string(copy.message())};
  }
  progress_.Begin(session_->trainer_state(), *session_, spec_, restored_from_);
  if (absl::Status status = OpenScalars(); !status.ok()) {
    return {kExitUsage, v1::FAILURE_CLASS_USER, std::string(status.message())};
  }
  // The attempt before it may have been lost while it did what was due then.
  if (restored_from_ == kFromMemory && session_->step() > start_.checkpoint_step()) {
    if (absl::Status status = AfterStep(session_->step()); !status.ok()) return Lost(status);
  }
  if (absl::Status status = AwaitOthers(); !status.ok()) return Lost(status);
  activity_.Enter(runtime::Activity::kOther, 0);
  communicator_->SetTimeout(comm::CommunicatorOptions().timeout);
  while (session_->step() < spec_.train().steps() && !stop_agreed_) {
    if (std::optional<TrainerExit> exit = OneStep()) return *std::move(exit);
  }
  progress_.Send(Now(), /*must=*/true);
  return session_->step() < spec_.train().steps() ? FinishStopped() : Finish();
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

absl::Status Trainer::MakeCopies() {
  if (spec_.checkpoint().redundancy() == 0) return absl::OkStatus();
  auto copies = PeerCopies::Create(message_.memory_folder(),
                                   {start_.uid(), start_.generation(), start_.rank()}, *session_,
                                   *communicator_, std::move(copies_communicator_));
  if (!copies.ok()) return Annotate(copies.status(), "checkpoint.redundancy");
  copies_ = *std::move(copies);
  return absl::OkStatus();
}

// As soon as this attempt's own can stand in for it.
void Trainer::ForgetOlderState() {
  const int64_t begin = progress_.progress().start_step();
  const bool replaced =
      copies_ == nullptr ? session_->step() > begin : copies_->copied_step() > begin;
  if (!replaced || forgot_older_state_) return;
  forgot_older_state_ = true;
  ForgetState(message_.memory_folder(), start_.generation());
}

TrainerExit Trainer::Lost(const absl::Status& status) {
  if (comm::IsPeerLost(status)) KeepWhatIsLeft();
  return StepFailure(status);
}

void Trainer::KeepWhatIsLeft() {
  if (copies_ != nullptr) return;  // its newest copy is what all have
  const absl::Status kept =
      KeepState(message_.memory_folder(),
                {start_.uid(), start_.generation(), start_.rank(), "left"}, *session_);
  if (kept.ok()) {
    spdlog::info("step {}: left the state in memory", session_->step());
  } else {
    spdlog::info("step {}: leaves no state in memory: {}", session_->step(),
                 std::string(kept.message()));
  }
}

std::optional<TrainerExit> Trainer::OneStep() {
  auto report = session_->Step(StopRequested());
  if (!report.ok()) return Lost(report.status());
  stop_agreed_ = report->stop_agreed;
  progress_.Step(*report, Now());
  if (scalars_ != nullptr) scalars_->Step(progress_.progress(), Now());
  if (absl::Status status = divergence_.Step(*report); !status.ok()) {
    progress_.Send(Now(), /*must=*/true);
    return StepFailure(status);
  }
  if (absl::Status status = AfterStep(report->step); !status.ok()) return Lost(status);
  if (copies_ != nullptr) {
    const absl::Status status = copies_->AfterStep(*session_, *communicator_);
    if (!status.ok()) return Lost(status);
  }
  ForgetOlderState();
  const UploadState upload = uploader_->State();
  progress_.CheckpointProblem(upload.problem, Now());
  if (absl::IsAborted(upload.last)) return Fenced();
  return std::nullopt;
}

bool Trainer::IsCheckpointStep(int64_t step) const {
  if (step == spec_.train().steps() || stop_agreed_) return true;
  // Of a run that may just have diverged none takes the place of one from before.
  const int64_t every = spec_.checkpoint().every();
  return every > 0 && step % every == 0 && !divergence_.suspicious();
}

absl::Status Trainer::AfterStep(int64_t step) {
  const bool last = step == spec_.train().steps();
  const bool first = step == progress_.progress().start_step() + 1;
  const int64_t every = spec_.train().validation().every();
  const bool validate =
      !spec_.data().validation().empty() && (last || (every > 0 && step % every == 0));
  // The first step is news at once, not after a validation.
  progress_.Send(Now(), first);
  if (validate) {
    MP_ASSIGN_OR_RETURN(runtime::EvaluationReport evaluation, session_->Evaluate());
    progress_.Validation(step, evaluation);
    if (scalars_ != nullptr) scalars_->Validation(progress_.progress(), Now());
    progress_.Send(Now(), /*must=*/true);
  }
  if (IsCheckpointStep(step)) {
    MP_ASSIGN_OR_RETURN(const absl::Duration held, SaveState(last || stop_agreed_));
    progress_.Hold(held);
  }
  return absl::OkStatus();
}

void Trainer::ForgetAllState() {
  if (copies_ != nullptr) copies_->Finish();
  ForgetState(message_.memory_folder(), start_.generation() + 1);
}

TrainerExit Trainer::FinishStopped() {
  spdlog::info("step {}: stopped as told, saving", session_->step());
  absl::Status status = absl::DeadlineExceededError("");
  // Whoever told it to stop says when that takes too long.
  while (absl::IsDeadlineExceeded(status) && !AbortRequested()) {
    status = uploader_->Wait(Now() + kStopPoll);
    progress_.CheckpointProblem(uploader_->State().problem, Now());
  }
  if (absl::IsAborted(status)) return Fenced();
  if (status.ok()) {
    ForgetAllState();
  } else {
    spdlog::warn("step {}: leaving without a checkpoint of this step: {}", session_->step(),
                 std::string(status.message()));
    KeepWhatIsLeft();
  }
  return {.code = kExitStopped};
}

TrainerExit Trainer::Finish() {
  absl::Status status = uploader_->Wait(Now() + kQuietWait);
  progress_.CheckpointProblem(uploader_->State().problem, Now());
  if (absl::IsDeadlineExceeded(status)) {
    spdlog::info("step {}: all steps are done; waiting for the last checkpoint to be committed",
                 session_->step());
  }
  while (absl::IsDeadlineExceeded(status)) {
    if (AbortRequested()) return Lost(Aborted());
    if (StopRequested()) return FinishStopped();
    progress_.CheckpointProblem(uploader_->State().problem, Now());
    status = uploader_->Wait(Now() + kStopPoll);
  }
  if (absl::IsAborted(status)) return Fenced();
  if (status.ok()) {
    ForgetAllState();
    // Its checkpoint is there all the same: one bad batch at the very end loses nothing.
    const absl::Status loss = CheckFinalLoss(session_->trainer_state());
    return loss.ok() ? TrainerExit() : StepFailure(loss);
  }
  return {absl::IsResourceExhausted(status) ? kExitError : kExitNetwork, v1::FAILURE_CLASS_HOST,
          absl::StrCat("all steps are done, but the last checkpoint could not be saved: ",
                       std::string(status.message()))};
}

}  // namespace

int Train(MessageChannel channel, const TrainerDevice& device) {
  v1::TrainerStart start;
  if (absl::Status status = channel.Receive(&start, Now() + kHandOver); !status.ok()) {
    spdlog::error("no start message from the worker: {}", std::string(status.message()));
    return kExitError;
  }
  Trainer trainer(std::move(start), &channel, device);
  const TrainerExit exit = trainer.Run();
  if (!exit.message.empty()) {
    spdlog::error("{}", exit.message);
    v1::TrainerMessage message;
    message.mutable_failure()->set_class_(exit.failure_class);
    message.mutable_failure()->set_message(exit.message);
    (void)channel.Send(message, Now() + absl::Seconds(1));
    // What waits for a disk that is silent would never end.
    if (exit.failure_class == v1::FAILURE_CLASS_HOST) {
      spdlog::default_logger()->flush();
      std::_Exit(exit.code);
    }
  }
  return exit.code;
}

}  // namespace milepost::worker
