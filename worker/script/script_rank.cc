#include "worker/script/script_rank.h"

#include <spdlog/spdlog.h>
#include <sys/utsname.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/host_memory.h"
#include "common/rpc/endpoint.h"
#include "common/spec/path_roots.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "common/subprocess.h"
#include "engine/comm/tcp.h"
#include "worker/memory_state/snapshot_claims.h"
#include "worker/script/files_fetch.h"
#include "worker/script/position/rank_position.h"
#include "worker/script/python_environment.h"
#include "worker/script/rank_endpoint.h"
#include "worker/script/save_upload.h"
#include "worker/script/scratch_folder.h"
#include "worker/script/script_checkpoints.h"
#include "worker/script/script_container.h"
#include "worker/script/script_end.h"
#include "worker/script/script_environment.h"
#include "worker/script/script_layout.h"
#include "worker/script/script_limits.h"
#include "worker/script/script_process.h"
#include "worker/script/stop_agreement.h"
#include "worker/script/stop_page.h"
#include "worker/trainer/rendezvous.h"
#include "worker/trainer/signals.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kMeetingTime = absl::Minutes(5);
constexpr absl::Duration kConnectTime = absl::Seconds(20);
// For the ranks to come to their first save: one may write, evaluate or compile meanwhile.
constexpr absl::Duration kSavingTime = absl::Minutes(30);
constexpr absl::Duration kSaveOfFailed = absl::Seconds(60);  // for what a script saved that failed
constexpr absl::Duration kLook = absl::Milliseconds(100);    // whether it is to stop
constexpr absl::Duration kSignOfLife = absl::Seconds(1);
constexpr absl::Duration kBetweenReports = absl::Milliseconds(500);  // however often it reports
constexpr absl::Duration kEnding = absl::Seconds(10);
constexpr absl::Duration kPositionTime = absl::Seconds(1);  // to learn where a rank is

absl::Time Now() { return Clock::Real()->Now(); }

// Of the kernel that runs and the name it goes by: containers of one host see other processes.
std::string HostName() {
  utsname names = {};
  uname(&names);
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(boot, id);
  return absl::StrCat(id.substr(0, 64), "/", names.nodename);
}

std::string TemporaryFiles() {
  const char* folder = std::getenv("TMPDIR");
  return folder == nullptr || *folder == '\0' ? "/tmp" : folder;
}

// Beside this program: the folder that the Python package `milepost` is in. Empty: it is not there.
std::string PackageFolder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path package = program.parent_path() / "python";
  return error || !fs::is_directory(package, error) ? "" : package.string();
}

// What the script has already, with that folder after it. Before it goes the one that Python must
// look into when it starts.
std::string PythonPath(const v1::ScriptSpec& spec, const std::string& inherited) {
  const auto own = spec.environment().find("PYTHONPATH");
  const std::string path = own != spec.environment().end() ? own->second : inherited;
  const std::string package = PackageFolder();
  if (package.empty()) return path;
  return absl::StrCat(package, "/at_start:", path, path.empty() ? "" : ":", package);
}

std::string OwnVariable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

// Without the folder that is only for workers which know of no files that are sent along.
v1::StartRank OwnStart(v1::StartRank start) {
  v1::ScriptSpec* script = start.mutable_spec()->mutable_script();
  if (script->has_sent_files()) script->clear_folder();
  return start;
}

class ScriptRank {
 public:
  ScriptRank(const v1::TrainerStart& start, MessageChannel* channel, ScriptRankOptions options)
      : message_(start),
        start_(OwnStart(start.start())),
        channel_(channel),
        held_(options.held),
        container_name_(std::move(options.container)),
        cgroup_(std::move(options.cgroup)) {}

  TrainerExit Run() {
    const std::jthread alive([this](const std::stop_token& ends) { SayAlive(ends); });
    absl::Status status = Check();
    if (!status.ok()) return NotStarted(status);
    RemoveAbandoned(TemporaryFiles(), Now());
    absl::StatusOr<ScratchFolder> scratch = ScratchFolder::Make(TemporaryFiles());
    if (!scratch.ok()) return HostFailure(scratch.status());
    // First: a port that is free when the ranks meet is to be used soon after.
    status = MakeFolders(*scratch);
    if (!status.ok()) return FilesFailure(status);
    status = TakeUp();
    if (!status.ok()) return NotStarted(status);
    status = Meet();
    if (!status.ok()) return NotStarted(status);
    status = Listen(scratch->path());
    if (!status.ok()) return HostFailure(status);
    const std::string error_file = absl::StrCat(scratch->path(), "/error.json");
    absl::StatusOr<ScriptProcess> script = Start(error_file);
    if (!script.ok()) return NotStarted(script.status());
    SayProgress();
    const int64_t oom_kills = CgroupOomKills();
    const ExitResult process_end = Await(*script);
    const ContainedEnd end =
        container_ ? container_->End(process_end, late_) : ContainedEnd{.result = process_end};
    SayProgress();
    const CgroupRecord used = cgroup_.Read();
    if (container_) container_->Kill();
    cgroup_.End(kEnding);
    // Those of podman are none that the script has left.
    if (const int left = ScriptProcess::EndDescendants(kEnding); left > 0 && !container_) {
      spdlog::warn("the script left {} processes behind, which were killed", left);
    }
    cgroup_.Remove();  // at once, since the worker may be killed; otherwise the worker does it
    const bool out_of_memory = used.oom_kills > 0 || CgroupOomKills() > oom_kills;
    TrainerExit exit = NamedByLimits(ExitOf(end, out_of_memory, error_file), used);
    if (!exit.message.empty()) {
      exit.position = asked_.place().empty() ? positions_->AtEnd() : asked_;
    }
    return AfterLastSave(exit);
  }

 private:
  static TrainerExit Fenced() {
    return {kExitFenced, v1::FAILURE_CLASS_UNSPECIFIED,
            "a newer generation of this job exists: leaving"};
  }

  static TrainerExit Aborted() {
    return {kExitPeerLost, v1::FAILURE_CLASS_NETWORK, "another rank is lost, the coordinator says"};
  }

  TrainerExit NotStarted(const absl::Status& status) const {
    if (fenced_) return Fenced();
    if (AbortRequested()) return Aborted();
    if (StopRequested()) return {.code = kExitStopped};
    return SetupFailure(status);
  }

  static TrainerExit HostFailure(const absl::Status& status) {
    return {kExitError, v1::FAILURE_CLASS_HOST, std::string(status.message())};
  }

  // Of files that were sent along.
  TrainerExit FilesFailure(const absl::Status& status) {
    fenced_ = fenced_ || absl::IsAborted(status);
    if (fenced_ || AbortRequested() || StopRequested()) return NotStarted(status);
    if (absl::IsUnavailable(status)) {
      return {kExitNetwork, v1::FAILURE_CLASS_NETWORK, std::string(status.message())};
    }
    return absl::IsInternal(status) ? HostFailure(status) : NotStarted(status);
  }

  absl::Status Check() const {
    if (!message_.scripts_allowed()) {
      return absl::FailedPreconditionError(
          "script: this worker runs no programs of users' own; its operator can let it "
          "(milepost-worker --allow-scripts), or name workers that do by resources.pool");
    }
    const auto folders = [](const auto& given) {
      return std::vector<std::string>(given.begin(), given.end());
    };
    return CheckPaths(start_.spec(), {.write = folders(message_.write_roots()),
                                      .data = folders(message_.data_roots())});
  }

  absl::Status FindCoordinator() {
    coordinator_.address = message_.coordinator();
    if (message_.tls_dir().empty()) return absl::OkStatus();
    MP_ASSIGN_OR_RETURN(coordinator_.credentials, WorkerCredentials(message_.tls_dir()));
    return absl::OkStatus();
  }

  // Where it runs, and where it may write.
  absl::Status MakeFolders(const ScratchFolder& scratch) {
    MP_RETURN_IF_ERROR(FindCoordinator());
    scratch_ = absl::StrCat(scratch.path(), "/work");
    std::error_code error;
    fs::create_directory(scratch_, error);
    if (error) return absl::InternalError(absl::StrCat(scratch_, ": ", error.message()));
    folder_ = start_.spec().script().folder();
    if (folder_.empty()) folder_ = scratch_;
    if (start_.spec().script().has_sent_files()) {
      folder_ = absl::StrCat(scratch.path(), "/files");
      MP_RETURN_IF_ERROR(BringFiles(
          start_,
          {.coordinator = coordinator_, .temporary_files = TemporaryFiles(), .give_up = MustLeave},
          folder_));
    }
    if (start_.spec().script().has_container()) return MakeContainer(scratch.path());
    return start_.spec().script().requirements().empty() ? absl::OkStatus() : MakePython();
  }

  absl::Status MakeContainer(const std::string& scratch) {
    const v1::ScriptSpec& script = start_.spec().script();
    MP_ASSIGN_OR_RETURN(ScriptContainer container,
                        ScriptContainer::Prepare(script, {.name = container_name_,
                                                          .init = SiblingBinary("container-init"),
                                                          .package = PackageFolder(),
                                                          .temporary_files = TemporaryFiles(),
                                                          .scratch = scratch,
                                                          .folder = folder_,
                                                          .read_only = script.has_sent_files(),
                                                          .give_up = MustLeave}));
    container_.emplace(std::move(container));
    return absl::OkStatus();
  }

  static bool MustLeave() { return StopRequested() || AbortRequested(); }

  absl::Status MakePython() {
    const v1::ScriptSpec& script = start_.spec().script();
    PythonEnvironmentOptions options;
    options.program = absl::StrCat(PackageFolder(), "/milepost/_environment.py");
    options.requirements = absl::StrCat(folder_, "/", script.requirements());
    options.wheels = script.wheels();
    options.cache = PythonEnvironmentsPath(TemporaryFiles());
    options.variables = {script.environment().begin(), script.environment().end()};
    options.give_up = MustLeave;
    const absl::Time began = SteadyNow();
    MP_ASSIGN_OR_RETURN(PythonEnvironment python, PythonEnvironment::Make(options));
    spdlog::info("script.requirements are in {} ({})", python.path(),
                 absl::FormatDuration(absl::Trunc(SteadyNow() - began, absl::Milliseconds(1))));
    python_.emplace(std::move(python));
    return absl::OkStatus();
  }

  // Another host may still fetch what this one has.
  absl::Duration MeetingTime() const {
    const v1::ScriptSpec& script = start_.spec().script();
    absl::Duration patience = kMeetingTime;
    if (script.has_sent_files()) patience += kFetchPatience;
    if (!script.requirements().empty()) patience += kEnvironmentPatience;
    if (script.has_container()) patience += kImagePatience;
    return patience;
  }

  absl::Status Meet() {
    RendezvousStore store(coordinator_, start_.job(), start_.generation(), MustLeave);
    // The worker has hidden all others from this process.
    const char* gpu = std::getenv("CUDA_VISIBLE_DEVICES");
    auto layout = MeetForLayout(&store, start_.rank(), start_.world(),
                                {HostName(), gpu == nullptr ? "" : gpu},
                                LocalAddressTowards(message_.coordinator()), Now() + MeetingTime());
    fenced_ = store.fenced();
    MP_RETURN_IF_ERROR(layout.status());
    layout_ = *std::move(layout);
    return absl::OkStatus();
  }

  // Among the ranks of the job, one for each purpose. Blocks until all have called it, or soon
  // after `give_up` returns true.
  absl::StatusOr<std::unique_ptr<comm::Communicator>> Connect(const std::string& purpose,
                                                              absl::Duration patience,
                                                              std::function<bool()> give_up) {
    RendezvousStore store(coordinator_, start_.job(), start_.generation(), give_up);
    comm::PrefixedStore prefixed(&store, absl::StrCat("script.", purpose, "."));
    const absl::Status came =
        AwaitRanks(&prefixed, start_.rank(), start_.world(), Now() + patience);
    if (store.fenced()) fenced_ = true;
    MP_RETURN_IF_ERROR(came);
    comm::TcpOptions options;
    options.connect_timeout = kConnectTime;  // all are there
    options.give_up = std::move(give_up);
    options.host = LocalAddressTowards(message_.coordinator());
    return comm::ConnectTcp(start_.rank(), start_.world(), &prefixed, options);
  }

  // What the attempt begins with: its checkpoint, or what the hosts have of a later save. That
  // becomes a checkpoint first, so that the script reads it as any other.
  absl::Status TakeUp() {
    begin_with_ = start_.checkpoint();
    begin_step_ = start_.checkpoint_step();
    if (start_.spec().checkpoint().redundancy() == 0 || start_.generation() == 1) {
      return absl::OkStatus();
    }
    MP_ASSIGN_OR_RETURN(auto communicator, Connect("memory", MeetingTime(), MustLeave));
    const int64_t least_step = begin_with_.empty() ? 0 : begin_step_ + 1;
    MP_ASSIGN_OR_RETURN(const std::optional<SaveInMemory> save,
                        TakeUpSave(message_.memory_folder(), start_.uid(), start_.generation(),
                                   least_step, *communicator));
    if (!save.has_value()) {  // on no rank: what is there is of no use, and takes memory
      ForgetState(message_.memory_folder(), start_.generation());
      return absl::OkStatus();
    }
    communicator->SetTimeout(kSavingTime);
    MP_ASSIGN_OR_RETURN(
        const std::optional<std::string> checkpoint,
        UploadSave(coordinator_, {start_.job(), start_.generation(), start_.rank(), start_.world()},
                   *save, *communicator, MustLeave));
    if (!checkpoint.has_value()) return absl::OkStatus();
    ForgetState(message_.memory_folder(), start_.generation());
    spdlog::info("step {}: the hosts' memory had it; it is {} now", save->step, *checkpoint);
    begin_with_ = *checkpoint;
    begin_step_ = save->step;
    return absl::OkStatus();
  }

  // For what the script asks and says.
  absl::Status Listen(const std::string& folder) {
    MP_ASSIGN_OR_RETURN(RankPositions positions, RankPositions::Make(folder, folder_));
    positions_.emplace(std::move(positions));
    MP_ASSIGN_OR_RETURN(StopPage page, StopPage::Make(folder));
    page_.emplace(std::move(page));
    agreement_ = std::make_unique<StopAgreement>(
        &*page_, start_.world(), [this](const std::function<bool()>& give_up) {
          return Connect("stop", absl::Hours(24),
                         [&] { return give_up() || AbortRequested() || ended_; });
        });
    ScriptCheckpoints::Options options;
    options.job = start_.job();
    options.generation = start_.generation();
    options.rank = start_.rank();
    options.world = start_.world();
    options.begin_with = begin_with_;
    options.give_up = [this] { return AbortRequested() || ended_; };
    options.connect = [this, give_up = options.give_up] {
      return Connect("checkpoint", kSavingTime, give_up);
    };
    options.processes = [this] { return ProcessFolder(); };
    if (start_.spec().checkpoint().redundancy() > 0) {
      options.copies = {.folder = message_.memory_folder(),
                        .id = {start_.uid(), start_.generation(), start_.rank()},
                        .world = start_.world(),
                        .connect = [this, give_up = options.give_up] {
                          return Connect("copies", kSavingTime, give_up);
                        }};
    }
    checkpoints_ = std::make_unique<ScriptCheckpoints>(coordinator_, std::move(options));
    MP_ASSIGN_OR_RETURN(endpoint_,
                        RankEndpoint::Start(folder, [this](const auto& path, const auto& body) {
                          return checkpoints_->Answer(path, body);
                        }));
    return absl::OkStatus();
  }

  absl::StatusOr<ScriptProcess> Start(const std::string& error_file) const {
    const v1::ScriptSpec& spec = start_.spec().script();
    const ScriptPlaces places = {.scratch = scratch_,
                                 .error_file = error_file,
                                 .url = endpoint_->url(),
                                 .token_file = endpoint_->token_file(),
                                 .stop_file = page_->path(),
                                 .python_path = PythonPath(spec, Inherited("PYTHONPATH")),
                                 .position = PositionVariables(),
                                 .python = PythonVariables()};
    ScriptOptions options = {.command = {spec.command().begin(), spec.command().end()},
                             .environment = ScriptEnvironment(start_, layout_, places),
                             .folder = folder_,
                             .held = held_,
                             .cgroup = cgroup_};
    if (container_) {
      MP_ASSIGN_OR_RETURN(options, container_->Options(std::move(options), layout_.local_gpus));
    }
    return ScriptProcess::Start(std::move(options));
  }

  // What the script would have without anything of Milepost's or the spec's.
  std::string Inherited(const std::string& name) const {
    return container_ ? container_->Variable(name) : OwnVariable(name);
  }

  std::vector<std::pair<std::string, std::string>> PositionVariables() const {
    auto variables = positions_->Environment();
    std::erase_if(variables, [this](const auto& one) {
      return absl::StartsWith(one.first, "TORCH_") && !Inherited(one.first).empty();
    });
    return variables;
  }

  std::string ProcessFolder() const { return container_ ? container_->ProcessFolder() : "/proc"; }

  std::vector<std::pair<std::string, std::string>> PythonVariables() const {
    if (!python_.has_value()) return {};
    const auto& own = start_.spec().script().environment();
    return python_->Variables(PathWith({own.begin(), own.end()}));
  }

  ExitResult Await(ScriptProcess& script) {
    bool told = false, killed = false;
    const absl::Time latest = SteadyNow() + kContainerTime;
    absl::Time next = SteadyNow() + kBetweenReports;
    while (true) {
      const absl::StatusOr<ExitResult> end = script.Wait(Now() + kLook);
      if (end.ok()) return *end;
      if (SteadyNow() >= next) {
        SayProgress();
        EndPodman(script);
        next = SteadyNow() + kBetweenReports;
      }
      fenced_ = fenced_ || absl::IsAborted(checkpoints_->State().last);
      if ((fenced_ || AbortRequested()) && !std::exchange(killed, true)) {
        if (!fenced_) NotePosition();
        script.Signal(SIGKILL).IgnoreError();
      } else if (container_ && SteadyNow() >= latest && !container_->Started() &&
                 !std::exchange(late_, true)) {
        script.Signal(SIGKILL).IgnoreError();
      } else if (StopRequested() && !std::exchange(told, true)) {
        TellToStop(script);
      }
    }
  }

  // Podman that does not end after the command has, as where its disk hangs, is not waited for.
  void EndPodman(ScriptProcess& script) {
    if (!container_ || !container_->CommandEnded()) return;
    if (command_ended_ == absl::InfiniteFuture()) command_ended_ = SteadyNow();
    if (SteadyNow() - command_ended_ > kPodmanEnds) script.Signal(SIGKILL).IgnoreError();
  }

  // Where it was when another rank failed.
  void NotePosition() {
    asked_ = positions_->Ask(ProcessFolder(), kPositionTime);
    if (asked_.place().empty()) return;  // it is only beginning, or ending
    const std::vector<std::string> lines = positions_->StackLines();
    spdlog::info("another rank failed; this one's program was here:");
    for (const std::string& line : lines) spdlog::info("{}", line);
  }

  void TellToStop(ScriptProcess& script) {
    if (page_->used()) {
      spdlog::info("told to stop: the script's should_stop() says so");
      agreement_->Stop();
    } else {
      spdlog::info("told to stop: the script gets SIGTERM");
      if (container_) return container_->Signal(SIGTERM);
      script.Signal(SIGTERM).IgnoreError();
    }
  }

  // What it saved last is kept, however it ended. Whoever told it to stop says when that takes too
  // long.
  TrainerExit AfterLastSave(const TrainerExit& exit) {
    const bool failed = exit.code != kExitOk && exit.code != kExitStopped;
    const absl::Time patience = failed ? Now() + kSaveOfFailed : absl::InfiniteFuture();
    checkpoints_->ScriptEnded();
    absl::Status last = absl::DeadlineExceededError("");
    while (absl::IsDeadlineExceeded(last) && !AbortRequested() && Now() < patience) {
      last = checkpoints_->Wait(Now() + kLook);
      SayProgress();
    }
    ended_ = true;
    checkpoints_->Cancel();
    if (fenced_ || absl::IsAborted(last)) return Fenced();
    if (failed || last.ok()) return exit;
    if (exit.code == kExitOk && !checkpoints_->State().durable) {
      spdlog::warn("the last save was in memory alone, and failed: {}",
                   std::string(last.message()));
      return exit;
    }
    if (AbortRequested()) return Aborted();
    if (exit.code == kExitStopped) {
      spdlog::warn("stopped, and its last checkpoint was not saved: {}",
                   std::string(last.message()));
      return exit;
    }
    // What the coordinator will never take is the script's own doing.
    const bool refused = absl::IsInvalidArgument(last) || absl::IsFailedPrecondition(last);
    return {kExitError, refused ? v1::FAILURE_CLASS_SCRIPT : v1::FAILURE_CLASS_HOST,
            absl::StrCat("the script has ended, but its last checkpoint could not be saved: ",
                         std::string(last.message()))};
  }

  static TrainerExit ExitOf(const ContainedEnd& end, bool out_of_memory,
                            const std::string& error_file) {
    if (AbortRequested()) return Aborted();
    if (StopRequested()) {
      spdlog::info("stopped as told: the script ended with {}", end.result.ToString());
      return {.code = kExitStopped};
    }
    if (end.failure.has_value()) return *end.failure;
    return ExitOfScript(end.result, out_of_memory, FirstCauseIn(error_file));
  }

  void SayAlive(const std::stop_token& ends) {
    absl::Time next = SteadyNow();
    while (!ends.stop_requested()) {
      if (SteadyNow() >= next) {
        v1::TrainerMessage message;
        message.mutable_alive();
        channel_->Send(message, absl::InfinitePast()).IgnoreError();
        next = SteadyNow() + kSignOfLife;
      }
      absl::SleepFor(kLook);
    }
  }

  // The first time this says that the rank runs.
  void SayProgress() {
    if (std::optional<v1::Progress> news = endpoint_->TakeNews()) {
      progress_ = *std::move(news);
    } else if (said_problem_ == checkpoints_->State().problem) {
      return;
    }
    said_problem_ = checkpoints_->State().problem;
    progress_.set_checkpoint_problem(said_problem_);
    progress_.set_restored_from(checkpoints_->restored_from());
    if (!progress_.restored_from().empty()) progress_.set_start_step(begin_step_);
    v1::TrainerMessage message;
    *message.mutable_progress() = progress_;
    channel_->Send(message, Now() + kSignOfLife).IgnoreError();
  }

  const v1::TrainerStart& message_;
  const v1::StartRank start_;
  MessageChannel* const channel_;
  const int held_;
  const std::string container_name_;
  const Cgroup cgroup_;
  Endpoint coordinator_;
  std::string begin_with_;  // a checkpoint; empty: the attempt begins anew
  int64_t begin_step_ = 0;
  std::string folder_;   // where it runs
  std::string scratch_;  // where it may write
  std::atomic<bool> fenced_ = false;
  std::atomic<bool> ended_ = false;
  ScriptLayout layout_;
  v1::Progress progress_;     // as last told
  std::string said_problem_;  // of checkpoints
  std::optional<PythonEnvironment> python_;
  std::optional<ScriptContainer> container_;
  absl::Time command_ended_ = absl::InfiniteFuture();  // in the container: first seen
  bool late_ = false;  // podman was killed, because it had not begun the container
  std::optional<RankPositions> positions_;
  v1::RankPosition asked_;  // while it ran
  std::optional<StopPage> page_;
  std::unique_ptr<StopAgreement> agreement_;
  std::unique_ptr<ScriptCheckpoints> checkpoints_;
  std::unique_ptr<RankEndpoint> endpoint_;  // last: it calls the others
};

}  // namespace

TrainerExit RunScript(const v1::TrainerStart& start, MessageChannel* channel,
                      ScriptRankOptions options) {
  return ScriptRank(start, channel, std::move(options)).Run();
}

}  // namespace milepost::worker
