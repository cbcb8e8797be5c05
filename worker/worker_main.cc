// milepost-worker: offers a host's slots to a coordinator and runs the ranks it is given; or checks
// the host (`doctor`).
#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/flags/reloader.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/tls_watch.h"
#include "common/standard_fds.h"
#include "common/steady_time.h"
#include "common/systemd/daemon_log.h"
#include "common/systemd/service.h"
#include "worker/agent/agent.h"
#include "worker/doctor/doctor.h"
#include "worker/join/joiner.h"
#include "worker/metrics/worker_pages.h"
#include "worker/worker_flags.h"

namespace milepost::worker {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

constexpr absl::Duration kSameInterrupt = absl::Milliseconds(200);

// SIGUSR2 says that the host goes away, if that is asked for. The first other signal asks the agent
// to leave, the second ends the process at once: the trainers die with it.
void HandleSignals(Agent* agent, bool spot_signal,
                   const std::function<void(absl::Duration)>& stopping) {
  const sigset_t signals = StopSignals();
  sigset_t first = signals;
  if (spot_signal) sigaddset(&first, SIGUSR2);
  int signal = SIGUSR2;
  while (signal == SIGUSR2) {
    sigwait(&first, &signal);
    if (signal == SIGUSR2) agent->NoteSpot("SIGUSR2");
  }
  stopping(agent->settings().stop_time);
  agent->RequestStop();
  // `timeout` signals its child and then its whole process group: one wish to stop, not two.
  absl::SleepFor(kSameInterrupt);
  const timespec now{};
  while (sigtimedwait(&signals, nullptr, &now) > 0) continue;
  sigwait(&signals, &signal);
  spdlog::warn("a second signal: leaving now, without checkpoints");
  _exit(kExitInterrupted);
}

int Fail(const absl::Status& status) {
  spdlog::error("{}", std::string(status.message()));
  return ExitCodeOf(status);
}

// So that /healthz tells a loop that waits from one that stands still.
constexpr absl::Duration kTurnWithPages = absl::Seconds(5);

// The pages of an agent that lives as long as they do.
absl::StatusOr<std::unique_ptr<WorkerPages>> StartPages(WorkerPagesOptions options,
                                                        const AgentOptions& agent_options,
                                                        const Agent* agent) {
  options.worker_tls_dir = agent_options.tls_dir;
  options.standing = [agent] { return agent->Describe(); };
  return WorkerPages::Start(std::move(options));
}

constexpr char kLogPattern[] = "%Y-%m-%dT%H:%M:%S.%e %L worker: %v";
// Beyond what the ranks have for a last checkpoint.
constexpr absl::Duration kStopSlack = absl::Seconds(15);

// In this thread and those that it starts: only the threads that wait for them take them.
void BlockSignals(const WorkerFlags& flags) {
  sigset_t signals = StopSignals();
  if (flags.flags.spot_signal) sigaddset(&signals, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // Without a file to read again a terminal that goes away ends it, as ever.
  if (!flags.table.config().empty()) BlockSignal(SIGHUP);
  signal(SIGPIPE, SIG_IGN);
}

// False: a signal says that the process is to end.
bool WaitUnlessStopped(absl::Duration duration, Service* service) {
  const sigset_t signals = StopSignals();
  const absl::Time end = SteadyNow() + duration;
  while (true) {
    service->Alive();
    const absl::Duration left = std::min(end - SteadyNow(), absl::Seconds(1));
    if (left <= absl::ZeroDuration()) return true;
    const timespec wait = absl::ToTimespec(left);
    if (sigtimedwait(&signals, nullptr, &wait) > 0) return false;
  }
}

// Gets a certificate where the worker is to join with a token.
absl::Status Join(const JoinOptions& options, Service* service) {
  // It may take as long as the coordinator is away: who starts both must not wait for one of them.
  if (options.token) service->Ready(absl::StrCat("joins as ", options.id));
  return JoinIfNeeded(
      options, [service](absl::Duration duration) { return WaitUnlessStopped(duration, service); });
}

int Main(int argc, char** argv) {
  WorkerFlags flags;
  if (const std::optional<int> ended = flags.table.Parse(argc, argv)) return *ended;
  BlockSignals(flags);
  StartDaemonLog("worker", kLogPattern);
  spdlog::set_level(spdlog::level::from_str(flags.flags.log_level));
  if (absl::Status status = CheckWallClock(absl::Now()); !status.ok()) return Fail(status);
  auto options = AgentOptionsOf(flags.flags);
  if (!options.ok()) return Fail(options.status());
  Service service;
  options->on_turn = [&service](const std::string& status) {
    service.Alive();
    service.Status(status);
  };
  options->longest_turn = service.watchdog() / 4;
  const bool has_pages = !flags.flags.pages.listen.empty();
  if (has_pages) options->longest_turn = std::min(options->longest_turn, kTurnWithPages);
  const auto join = JoinOptionsOf(flags.flags, &*options);
  if (!join.ok()) return Fail(join.status());
  std::optional<CertificateRenewer> renewer;
  if (*join) {
    const absl::Status joined = Join(**join, &service);
    if (absl::IsCancelled(joined)) return kExitOk;
    if (!joined.ok()) return Fail(joined);
  }
  auto agent = Agent::Create(*options);
  if (!agent.ok()) return Fail(agent.status());
  StartDaemonLog("worker", kLogPattern, absl::StrCat("workers/", (*agent)->id()));
  spdlog::set_level(spdlog::level::from_str(flags.flags.log_level));
  std::optional<TlsWatch> tls_watch;
  if (*join) {
    tls_watch.emplace(TlsFolder(options->tls_dir), kLookAtTlsFiles, LogTlsFiles);
    JoinOptions renewed = **join;
    renewed.id = (*agent)->id();
    renewer.emplace(std::move(renewed));
  }
  spdlog::info("worker {} with {}", (*agent)->id(), (*agent)->offer());
  std::unique_ptr<WorkerPages> pages;
  if (has_pages) {
    auto started = StartPages(flags.flags.pages, *options, agent->get());
    if (!started.ok()) return Fail(started.status());
    pages = *std::move(started);
    spdlog::info("pages for monitoring on {}", pages->address());
  }
  // The agent lives as long as the process: the thread may use it at any time.
  Agent* running = agent->release();
  Reloader<WorkerFlags> reloader(std::vector<std::string>(argv + 1, argv + argc), &flags, &service,
                                 [running](const Flags& read) {
                                   auto settings = SettingsOf(read);
                                   if (!settings.ok()) return settings.status();
                                   running->Change(*settings);
                                   spdlog::set_level(spdlog::level::from_str(read.log_level));
                                   return absl::OkStatus();
                                 });
  std::thread(HandleSignals, running, flags.flags.spot_signal, [&service](absl::Duration time) {
    service.Stopping(time + kStopSlack);
  }).detach();
  // Not only once the coordinator answers: who starts both must not wait for one of them.
  service.Ready("begins to connect");
  running->Run();
  spdlog::info("left");
  return kExitOk;
}

}  // namespace
}  // namespace milepost::worker

int main(int argc, char** argv) {
  milepost::OpenStandardFds();
  milepost::ForwardGrpcLog();
  if (argc > 1 && absl::string_view(argv[1]) == "doctor") {
    milepost::worker::DoctorMain(argc - 1, argv + 1);
  }
  return milepost::worker::Main(argc, argv);
}
