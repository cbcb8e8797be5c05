// milepost-worker: offers a host's slots to a coordinator and runs the ranks it is given; or checks
// the host (`doctor`).
#include <pthread.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/log_format.h"
#include "common/rpc/tls_watch.h"
#include "common/spec/path_roots.h"
#include "common/subprocess.h"
#include "common/version.h"
#include "worker/agent/agent.h"
#include "worker/agent/cores.h"
#include "worker/agent/job_memory.h"
#include "worker/doctor/doctor.h"

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
void HandleSignals(Agent* agent, bool spot_signal) {
  const sigset_t signals = StopSignals();
  sigset_t first = signals;
  if (spot_signal) sigaddset(&first, SIGUSR2);
  int signal = SIGUSR2;
  while (signal == SIGUSR2) {
    sigwait(&first, &signal);
    if (signal == SIGUSR2) agent->NoteSpot("SIGUSR2");
  }
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

int Main(int argc, char** argv) {
  AgentOptions options;
  options.trainer_binary = SiblingBinary("milepost-trainer");
  options.cuda_trainer_binary = SiblingBinary("milepost-trainer-cuda");
  std::string cores, gpus, log_level = "info";
  double stop_seconds = 60, spot_seconds = 0;
  bool spot_signal = false;
  double hang_seconds = absl::ToDoubleSeconds(options.hang_time);
  CLI::App app{"Offers a host's slots to a Milepost coordinator and runs the ranks it is given."};
  app.set_version_flag("--version", kVersion);
  app.footer("milepost-worker doctor --help: checks this host instead");
  app.add_option("--coordinator", options.coordinator,
                 "host:port of the coordinator; of each with commas between, where others stand by")
      ->required();
  app.add_option("--tls", options.tls_dir,
                 "folder with this worker's ca.crt, tls.crt and tls.key, as `milepost-coordinator "
                 "init-pki` makes it");
  app.add_option("--data-dir", options.data_dir, "where the worker keeps its id; made if not there")
      ->required();
  const std::map<std::string, v1::DeviceKind> devices = {{"cpu", v1::DEVICE_KIND_CPU},
                                                         {"cuda", v1::DEVICE_KIND_CUDA}};
  app.add_option("--device", options.slots.device,
                 "what a slot is: a share of the cores, or a GPU (default: cuda where there are "
                 "GPUs and milepost-trainer-cuda, unless --slots is given)")
      ->transform(CLI::CheckedTransformer(devices));
  app.add_option("--slots", options.slots.count, "CPU ranks that may run here at once (default: 1)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--gpus", gpus,
                 "GPUs to offer, by nvidia-smi's numbers, like 0,2-3 (default: all)");
  app.add_option("--cores", cores, "CPU cores to use, like 0-3,8 (default: all it may use)");
  app.add_option("--memory-bytes", options.slots.memory_bytes,
                 "host memory that the slots share (default: all that it has)")
      ->check(CLI::NonNegativeNumber);
  options.memory_dir = DefaultMemoryDir();
  app.add_option("--memory-dir", options.memory_dir,
                 "on a file system in memory: where ranks keep state that outlives them, so that a "
                 "lost rank costs no step; empty: nowhere")
      ->capture_default_str();
  app.add_option(
      "--id", options.id,
      "stable name of this worker (default: its certificate's, else kept in the data dir)");
  std::vector<std::string> write_roots, data_roots;
  app.add_option("--write-roots", write_roots,
                 "folders, with commas between, in which jobs may write (report.tensorboard, "
                 "train.offload.path); default: wherever this worker's user may")
      ->delimiter(',');
  app.add_option("--data-roots", data_roots,
                 "folders from which jobs may read (data, train.init_from), besides those they may "
                 "write to; default: wherever this worker's user may")
      ->delimiter(',');
  std::vector<std::string> labels;
  app.add_option("--label", labels,
                 "KEY=VALUE, may be repeated; ranks of a job are kept within one `rack`");
  app.add_option("--stop-seconds", stop_seconds, "on SIGTERM: time for ranks to checkpoint")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--spot-file", options.spot.file,
                 "when this file appears the host is about to go away: the worker is drained");
  app.add_option("--spot-command", options.spot.command,
                 "for /bin/sh, every 5 s: when it ends with 0, the same");
  app.add_flag("--spot-signal", spot_signal, "on SIGUSR2, the same");
  app.add_option("--spot-seconds", spot_seconds,
                 "from such a notice on, until jobs are told to save a checkpoint and leave")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  app.add_option("--hang-seconds", hang_seconds,
                 "a rank whose micro-step, or wait for data, takes longer has failed; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--health-command", options.health.command,
                 "for /bin/sh, part of the health check that follows several failures of this "
                 "host: it has to end with 0 within 5 minutes");
  app.add_option("--log-level", log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  spdlog::set_default_logger(spdlog::stderr_logger_mt("worker"));
  spdlog::set_formatter(LogFormatter("%Y-%m-%dT%H:%M:%S.%e %L worker: %v"));
  spdlog::set_level(spdlog::level::from_str(log_level));
  options.stop_time = absl::Seconds(stop_seconds);
  options.spot.time = absl::Seconds(spot_seconds);
  options.hang_time = absl::Seconds(hang_seconds);
  options.health.doctor = {SiblingBinary("milepost-worker"), "doctor", "--no-gpus", "--data-dir",
                           options.data_dir};
  options.health.gpu_trainer = options.cuda_trainer_binary;
  if (auto made = MakePathRoots(write_roots, data_roots); made.ok()) {
    options.path_roots = *std::move(made);
  } else {
    return Fail(made.status());
  }
  if (!cores.empty()) {
    auto parsed = ParseCoreList(cores);
    if (!parsed.ok()) return Fail(parsed.status());
    const std::vector<int> allowed = AllowedCores();
    for (const int core : *parsed) {
      if (std::find(allowed.begin(), allowed.end(), core) != allowed.end()) continue;
      return Fail(
          absl::InvalidArgumentError(absl::StrCat("--cores: this process may not run on core ",
                                                  core, ", but on ", absl::StrJoin(allowed, ","))));
    }
    options.slots.cores = *std::move(parsed);
  }
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("--label: expected KEY=VALUE such as rack=r12, not '", label, "'")));
    }
    options.labels[label.substr(0, equals)] = label.substr(equals + 1);
  }
  if (!gpus.empty()) {
    auto parsed = ParseCoreList(gpus);
    if (!parsed.ok()) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat("--gpus ", gpus, ": numbers and ranges like 0,2-3")));
    }
    options.slots.gpus = *std::move(parsed);
  }
  // Before any thread: all inherit the mask, and only the waiting thread takes the signals.
  sigset_t signals = StopSignals();
  if (spot_signal) sigaddset(&signals, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  if (absl::Status status = CheckWallClock(absl::Now()); !status.ok()) return Fail(status);
  auto agent = Agent::Create(options);
  if (!agent.ok()) return Fail(agent.status());
  std::optional<TlsWatch> tls_watch;
  if (!options.tls_dir.empty()) {
    tls_watch.emplace(TlsFolder(options.tls_dir), kLookAtTlsFiles, LogTlsFiles);
  }
  spdlog::info("worker {} with {}", (*agent)->id(), (*agent)->offer());
  // The agent lives as long as the process: the thread may use it at any time.
  Agent* running = agent->release();
  std::thread(HandleSignals, running, spot_signal).detach();
  running->Run();
  spdlog::info("left");
  return kExitOk;
}

}  // namespace
}  // namespace milepost::worker

int main(int argc, char** argv) {
  if (argc > 1 && absl::string_view(argv[1]) == "doctor") {
    milepost::worker::DoctorMain(argc - 1, argv + 1);
  }
  return milepost::worker::Main(argc, argv);
}
