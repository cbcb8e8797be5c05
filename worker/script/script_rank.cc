#include "worker/script/script_rank.h"

#include <spdlog/spdlog.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/host_memory.h"
#include "common/rpc/endpoint.h"
#include "common/spec/path_roots.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "worker/script/progress_endpoint.h"
#include "worker/script/scratch_folder.h"
#include "worker/script/script_environment.h"
#include "worker/script/script_layout.h"
#include "worker/script/script_process.h"
#include "worker/trainer/rendezvous.h"
#include "worker/trainer/signals.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kMeetingTime = absl::Minutes(5);
constexpr absl::Duration kLook = absl::Milliseconds(100);  // whether it is to stop
constexpr absl::Duration kSignOfLife = absl::Seconds(1);
constexpr absl::Duration kBetweenReports = absl::Milliseconds(500);  // however often it reports
constexpr absl::Duration kEnding = absl::Seconds(10);
constexpr size_t kMostErrorFileBytes = 1 << 20;

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

class ScriptRank {
 public:
  ScriptRank(const v1::TrainerStart& start, MessageChannel* channel, int held)
      : message_(start), start_(start.start()), channel_(channel), held_(held) {}

  TrainerExit Run() {
    const std::jthread alive([this](const std::stop_token& ends) { SayAlive(ends); });
    absl::Status status = Check();
    if (status.ok()) status = Meet();
    if (!status.ok()) return NotStarted(status);
    RemoveAbandoned(TemporaryFiles(), Now());
    absl::StatusOr<ScratchFolder> scratch = ScratchFolder::Make(TemporaryFiles());
    if (!scratch.ok()) {
      return {kExitError, v1::FAILURE_CLASS_HOST, std::string(scratch.status().message())};
    }
    const std::string error_file = absl::StrCat(scratch->path(), "/error.json");
    absl::StatusOr<std::unique_ptr<ProgressEndpoint>> endpoint =
        ProgressEndpoint::Start(scratch->path());
    if (!endpoint.ok()) {
      return {kExitError, v1::FAILURE_CLASS_HOST, std::string(endpoint.status().message())};
    }
    absl::StatusOr<ScriptProcess> script =
        Start(*scratch, {error_file, (*endpoint)->url(), (*endpoint)->token_file()});
    if (!script.ok()) return NotStarted(script.status());
    SayProgress(**endpoint);
    const int64_t oom_kills = CgroupOomKills();
    const ExitResult end = Await(*script, **endpoint);
    SayProgress(**endpoint);
    if (const int left = ScriptProcess::EndDescendants(kEnding); left > 0) {
      spdlog::warn("the script left {} processes behind, which were killed", left);
    }
    return ExitOf(end, CgroupOomKills() > oom_kills, error_file);
  }

 private:
  static TrainerExit Aborted() {
    return {kExitPeerLost, v1::FAILURE_CLASS_NETWORK, "another rank is lost, the coordinator says"};
  }

  TrainerExit NotStarted(const absl::Status& status) const {
    if (fenced_) {
      return {kExitFenced, v1::FAILURE_CLASS_UNSPECIFIED,
              "a newer generation of this job exists: leaving"};
    }
    if (AbortRequested()) return Aborted();
    if (StopRequested()) return {.code = kExitStopped};
    return SetupFailure(status);
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

  absl::Status Meet() {
    Endpoint coordinator;
    coordinator.address = message_.coordinator();
    if (!message_.tls_dir().empty()) {
      MP_ASSIGN_OR_RETURN(coordinator.credentials, WorkerCredentials(message_.tls_dir()));
    }
    RendezvousStore store(coordinator, start_.job(), start_.generation(),
                          [] { return StopRequested() || AbortRequested(); });
    // The worker has hidden all others from this process.
    const char* gpu = std::getenv("CUDA_VISIBLE_DEVICES");
    auto layout = MeetForLayout(&store, start_.rank(), start_.world(),
                                {HostName(), gpu == nullptr ? "" : gpu},
                                LocalAddressTowards(message_.coordinator()), Now() + kMeetingTime);
    fenced_ = store.fenced();
    MP_RETURN_IF_ERROR(layout.status());
    layout_ = *std::move(layout);
    return absl::OkStatus();
  }

  absl::StatusOr<ScriptProcess> Start(const ScratchFolder& scratch,
                                      const ScriptReports& reports) const {
    const v1::ScriptSpec& spec = start_.spec().script();
    ScriptOptions options = {.command = {spec.command().begin(), spec.command().end()},
                             .environment = ScriptEnvironment(start_, layout_, reports),
                             .folder = spec.folder(),
                             .held = held_};
    if (options.folder.empty()) {
      options.folder = absl::StrCat(scratch.path(), "/work");
      std::error_code error;
      fs::create_directory(options.folder, error);
    }
    return ScriptProcess::Start(std::move(options));
  }

  ExitResult Await(ScriptProcess& script, ProgressEndpoint& endpoint) {
    bool told = false, killed = false;
    absl::Time next = SteadyNow() + kBetweenReports;
    while (true) {
      const absl::StatusOr<ExitResult> end = script.Wait(Now() + kLook);
      if (end.ok()) return *end;
      if (SteadyNow() >= next) {
        SayProgress(endpoint);
        next = SteadyNow() + kBetweenReports;
      }
      if (AbortRequested() && !std::exchange(killed, true)) {
        script.Signal(SIGKILL).IgnoreError();
      } else if (StopRequested() && !std::exchange(told, true)) {
        spdlog::info("told to stop: the script gets SIGTERM");
        script.Signal(SIGTERM).IgnoreError();
      }
    }
  }

  static TrainerExit ExitOf(const ExitResult& end, bool out_of_memory,
                            const std::string& error_file) {
    if (AbortRequested()) return Aborted();
    if (StopRequested()) {
      spdlog::info("stopped as told: the script ended with {}", end.ToString());
      return {.code = kExitStopped};
    }
    if (end.success()) return {};
    const std::string what = absl::StrCat("the script ended: ", end.ToString());
    if (end.signal == SIGKILL && out_of_memory) {
      return {kExitOutOfMemory, v1::FAILURE_CLASS_OUT_OF_MEMORY,
              "the script was killed by the kernel's out-of-memory killer"};
    }
    // Not held against the host: a program can do it to itself.
    if (end.signal == SIGKILL || end.signal == SIGTERM) {
      return {
          kExitError, v1::FAILURE_CLASS_SCRIPT,
          absl::StrCat(what, ", not by Milepost: someone's kill, or the host ran out of memory")};
    }
    const std::string cause = CauseIn(error_file);
    if (!cause.empty()) {
      return {kExitError, v1::FAILURE_CLASS_SCRIPT, absl::StrCat(what, ": ", cause)};
    }
    return {kExitError, v1::FAILURE_CLASS_SCRIPT, what, /*with_last_line=*/true};
  }

  static std::string CauseIn(const std::string& path) {
    std::ifstream file(path);
    std::string text(kMostErrorFileBytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    return FirstCause(text);
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
  void SayProgress(ProgressEndpoint& endpoint) {
    std::optional<v1::Progress> news = endpoint.TakeNews();
    if (!news.has_value()) return;
    v1::TrainerMessage message;
    *message.mutable_progress() = *std::move(news);
    channel_->Send(message, Now() + kSignOfLife).IgnoreError();
  }

  const v1::TrainerStart& message_;
  const v1::StartRank& start_;
  MessageChannel* const channel_;
  const int held_;
  bool fenced_ = false;
  ScriptLayout layout_;
};

}  // namespace

TrainerExit RunScript(const v1::TrainerStart& start, MessageChannel* channel, int held) {
  return ScriptRank(start, channel, held).Run();
}

}  // namespace milepost::worker
