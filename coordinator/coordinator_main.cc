// milepost-coordinator: parses, wires and runs.
#include <grpc/support/log.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/log_format.h"
#include "common/rpc/tls_watch.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "coordinator/rpc/admission.h"
#include "coordinator/rpc/server.h"
#include "coordinator/security/init_pki.h"
#include "coordinator/standby/standby.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/owner_only.h"
#include "coordinator/store/salvage.h"
#include "coordinator/store/store_id.h"

namespace milepost::coordinator {
namespace {

struct Flags {
  std::string data_dir;
  std::string listen = "127.0.0.1:7070";
  std::string address_file;
  double lease_seconds = 5;
  double stop_seconds = 120;
  double resize_seconds = 600;
  int exclude_after = coordinator::Config().exclude_after;
  double forget_worker_hours = absl::ToDoubleHours(coordinator::Config().forget_worker_after);
  std::string log_level = "info";
  std::string tls_dir;
  LogLimits logs;
  double bin_days = absl::ToDoubleHours(StoreOptions().bin_time) / 24;
  size_t max_job_bytes = CoordinatorOptions().most_job_bytes;
  StandbyOptions standby;
  double etcd_lease_seconds = 4;
  std::string webhooks;
  std::string http;
  bool workers_gone = false;
};

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("--data-dir", flags->data_dir, "Where jobs and checkpoints are kept")->required();
  app->add_option("--listen", flags->listen, "HOST:PORT; port 0 takes any free one")
      ->capture_default_str();
  app->add_option("--address-file", flags->address_file,
                  "Write HOST:PORT here once the coordinator serves, or listens as a standby");
  app->add_option("--lease-seconds", flags->lease_seconds,
                  "A worker that is silent for so long counts as lost")
      ->check(CLI::Range(0.2, 3600.0))
      ->capture_default_str();
  app->add_option(
         "--stop-seconds", flags->stop_seconds,
         "What the ranks of a job that is suspended, preempted, drained, resized or out of "
         "time have for a last checkpoint")
      ->check(CLI::Range(1.0, 86400.0))
      ->capture_default_str();
  app->add_option("--resize-seconds", flags->resize_seconds,
                  "An elastic job that may have more ranks is left alone for so long after a start")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app->add_option("--exclude-after", flags->exclude_after,
                  "A host with so many device or host failures within an hour gets no ranks before "
                  "it has passed a health check; 0: never")
      ->check(CLI::Range(0, 8))
      ->capture_default_str();
  app->add_option("--forget-worker-hours", flags->forget_worker_hours,
                  "A worker that has been DOWN for so long is forgotten, unless somebody has "
                  "drained it or it is excluded")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  app->add_option("--log-level", flags->log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  app->add_option("--log-bytes-per-job", flags->logs.bytes_per_job,
                  "What is kept of a job's log, 64MiB or 1000000; the oldest lines are dropped")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app->add_option("--log-bytes", flags->logs.total_bytes,
                  "What is kept of all logs together; those of jobs that have ended go first")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app->add_option("--bin-days", flags->bin_days,
                  "A checkpoint that somebody has deleted can be restored for so long, as long as "
                  "the disk has room")
      ->check(CLI::Range(0.0, 36500.0))
      ->capture_default_str();
  app->add_option("--max-job-bytes", flags->max_job_bytes,
                  "What the records of all jobs may have together, also of those that have ended; "
                  "they are kept in memory, and no more jobs are taken beyond it")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  app->add_flag(
      "--workers-gone", flags->workers_gone,
      "No worker of before is alive, nor any of its ranks: what they ran goes on from its "
      "checkpoints, at no cost to its restart budget. `milepost run` says so of earlier "
      "runs");
  app->add_option("--webhooks", flags->webhooks,
                  "YAML file: who is told over HTTP of jobs that have ended (docs/webhooks.md)");
  app->add_option("--http", flags->http,
                  "HOST:PORT of pages for monitoring: /metrics for Prometheus, /healthz for probes; "
                  "over TLS where --tls is given (docs/metrics.md)");
  app->add_option("--tls", flags->tls_dir,
                  "Folder with ca.crt, tls.crt and tls.key, as init-pki makes it; needed to listen "
                  "on an address that is not loopback");
  app->add_option("--etcd", flags->standby.etcd,
                  "HOST:PORT,... of etcd, where coordinators on one --data-dir elect the one that "
                  "is active; the others stand by")
      ->delimiter(',');
  app->add_option("--etcd-tls", flags->standby.etcd_tls_dir,
                  "Folder with etcd's ca.crt, and the tls.crt and tls.key to show it");
  app->add_option("--etcd-key", flags->standby.key, "The key in etcd; one per cluster")
      ->capture_default_str();
  app->add_option("--etcd-lease-seconds", flags->etcd_lease_seconds,
                  "How long etcd may be away before the active coordinator stops; as much later a "
                  "standby takes over")
      ->check(CLI::Range(2.0, 3600.0))
      ->capture_default_str();
  app->add_option("--advertise", flags->standby.advertise,
                  "HOST:PORT under which the others reach this one (default: --listen)");
}

// gRPC's own complaints repeat what we say better.
void ForwardGrpcLog(gpr_log_func_args* args) {
  spdlog::debug("grpc: {}:{}: {}", args->file, args->line, args->message);
}

// All or nothing: a reader sees the whole address or no file.
absl::Status WriteAddress(const std::string& path, const std::string& address) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  std::ofstream file(temporary, std::ios::trunc);
  file << address << "\n";
  file.close();
  chmod(temporary.c_str(), 0644);  // for whoever looks for the coordinator
  if (!file.good() || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    return absl::PermissionDeniedError(
        absl::StrCat("--address-file: ", path, " cannot be written"));
  }
  return absl::OkStatus();
}

int Fail(const absl::Status& status) {
  spdlog::error("{}", std::string(status.message()));
  return ExitCodeOf(status);
}

// At once: whoever holds this store open keeps others from it, and to end in order is to write.
void GiveUpStore(const absl::Status& status) {
  spdlog::critical("giving up: the store takes no writes: {}", std::string(status.message()));
  std::_Exit(kExitError);
}

int Run(const Flags& flags, const sigset_t& signals) {
  if (absl::Status status = CheckWallClock(absl::Now()); !status.ok()) return Fail(status);
  KeepToOwner(flags.data_dir);
  ServerOptions options;
  options.store.dir = flags.data_dir;
  options.store.logs = flags.logs;
  options.store.bin_time = absl::Hours(24 * flags.bin_days);
  options.coordinator.config.lease = absl::Seconds(flags.lease_seconds);
  options.coordinator.config.graceful_stop = absl::Seconds(flags.stop_seconds);
  options.coordinator.config.resize_interval = absl::Seconds(flags.resize_seconds);
  options.coordinator.config.exclude_after = flags.exclude_after;
  options.coordinator.config.forget_worker_after = absl::Hours(flags.forget_worker_hours);
  options.coordinator.admission = AdmitWhatFits;
  options.coordinator.on_broken_store = GiveUpStore;
  options.coordinator.most_job_bytes = flags.max_job_bytes;
  options.coordinator.workers_gone = flags.workers_gone;
  options.listen = flags.listen;
  options.tls_dir = flags.tls_dir;
  options.http = flags.http;
  std::optional<TlsWatch> tls_watch;
  if (!flags.tls_dir.empty()) {
    tls_watch.emplace(TlsFolder(flags.tls_dir), kLookAtTlsFiles, LogTlsFiles);
  }
  if (!flags.webhooks.empty()) {
    auto webhooks = ReadWebhooks(flags.webhooks);
    if (!webhooks.ok()) return Fail(webhooks.status());
    options.webhooks = *std::move(webhooks);
  }
  if (!flags.standby.etcd.empty()) {
    StandbyOptions standby = flags.standby;
    standby.ttl = absl::Ceil(absl::Seconds(flags.etcd_lease_seconds), absl::Seconds(1));
    const absl::Status status =
        RunWithStandby(options, standby, signals, [&](const std::string& address) {
          return flags.address_file.empty() ? absl::OkStatus()
                                            : WriteAddress(flags.address_file, address);
        });
    return status.ok() ? kExitOk : Fail(status);
  }
  auto server = CoordinatorServer::Start(options);
  if (!server.ok()) return Fail(server.status());
  if (!flags.address_file.empty()) {
    absl::Status status = WriteAddress(flags.address_file, (*server)->address());
    if (!status.ok()) return Fail(status);
  }
  spdlog::info("serving on {}, data in {}", (*server)->address(), flags.data_dir);
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("stopping: {}", strsignal(signal));
  (*server)->Stop();
  return kExitOk;
}

// What the process is to end with, where there is no more to do than parsing.
std::optional<int> Parse(CLI::App* app, int argc, char** argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app->exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return std::nullopt;
}

// Of a command that is no server.
int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "milepost-coordinator: %s\n", std::string(status.message()).c_str());
  return ExitCodeOf(status);
}

int InitPkiMain(int argc, char** argv) {
  PkiRequest request;
  int days = 398;
  CLI::App app(
      "Makes a private certificate authority for a cluster, and what it signs. Run again, "
      "it renews the coordinator's certificate and those of the workers that are named.",
      "milepost-coordinator init-pki");
  app.add_option("dir", request.dir, "The folder to make or renew")->required();
  app.add_option("--host", request.hosts,
                 "A name or address under which the coordinator is reached; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--worker", request.workers, "A worker's id; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--days", days, "How long certificates hold")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str();
  if (const std::optional<int> ended = Parse(&app, argc, argv)) return *ended;
  request.lifetime = absl::Hours(24 * days);
  const auto made = InitPki(request, absl::Now());
  if (!made.ok()) return Refuse(made.status());
  for (const std::string& line : *made) std::printf("%s\n", line.c_str());
  return kExitOk;
}

int BackUpMain(int argc, char** argv) {
  std::string dir, to;
  CLI::App app("Copies a store of jobs and checkpoints, while its coordinator is at work or not.",
               "milepost-coordinator backup");
  app.add_option("--data-dir", dir, "The coordinator's")->required();
  app.add_option("--to", to, "A directory to make, on the same file system")->required();
  if (const std::optional<int> ended = Parse(&app, argc, argv)) return *ended;
  const absl::Status status = BackUp(dir, to);
  return status.ok() ? kExitOk : Refuse(status);
}

int SalvageMain(int argc, char** argv) {
  std::string dir, to;
  CLI::App app(
      "Makes a new store of what can still be read of a damaged one, and says what is lost.",
      "milepost-coordinator salvage");
  app.add_option("--data-dir", dir, "The coordinator's; it stays as it is")->required();
  app.add_option("--to", to, "A directory to make, on the same file system")->required();
  if (const std::optional<int> ended = Parse(&app, argc, argv)) return *ended;
  spdlog::set_default_logger(spdlog::stderr_logger_mt("salvage"));
  spdlog::set_pattern("%v");
  spdlog::set_level(spdlog::level::err);
  const auto report = Salvage(dir, to);
  if (!report.ok()) return Refuse(report.status());
  for (const std::string& line : *report) std::printf("%s\n", line.c_str());
  return kExitOk;
}

int InitStoreMain(int argc, char** argv) {
  std::string dir;
  CLI::App app(
      "Begins a new store that several coordinators (--etcd) will share: once, in the directory "
      "that all of them mount.",
      "milepost-coordinator init-store");
  app.add_option("dir", dir, "Their --data-dir")->required();
  if (const std::optional<int> ended = Parse(&app, argc, argv)) return *ended;
  const auto made = MakeStoreId(dir);
  return made.ok() ? kExitOk : Refuse(made.status());
}

int Main(int argc, char** argv) {
  TuneProcess();
  // Blocked before any thread starts, so that every thread inherits it and sigwait gets them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a limit of file sizes is an error of a write, as a full disk is

  Flags flags;
  CLI::App app("The coordinator of Milepost: queues jobs, tracks workers, keeps checkpoints.",
               "milepost-coordinator");
  AddFlags(&app, &flags);
  app.set_version_flag("--version", kVersion);
  app.footer(
      "milepost-coordinator init-pki --help: makes certificates\n"
      "milepost-coordinator init-store --help: begins a store that several coordinators share\n"
      "milepost-coordinator backup --help: copies the data directory\n"
      "milepost-coordinator salvage --help: makes a new one of what is left of a damaged one");
  if (const std::optional<int> ended = Parse(&app, argc, argv)) return *ended;
  spdlog::set_default_logger(spdlog::stderr_logger_mt("coordinator"));
  spdlog::set_formatter(LogFormatter("%Y-%m-%dT%H:%M:%S.%e %^%l%$ coordinator: %v"));
  spdlog::set_level(spdlog::level::from_str(flags.log_level));
  spdlog::flush_on(spdlog::level::info);
  gpr_set_log_function(ForwardGrpcLog);
  return Run(flags, signals);
}

}  // namespace
}  // namespace milepost::coordinator

int main(int argc, char** argv) {
  umask(077);  // what it keeps is every project's; what others are to read is made so by name
  if (argc > 1 && absl::string_view(argv[1]) == "init-pki") {
    return milepost::coordinator::InitPkiMain(argc - 1, argv + 1);
  }
  if (argc > 1 && absl::string_view(argv[1]) == "init-store") {
    return milepost::coordinator::InitStoreMain(argc - 1, argv + 1);
  }
  if (argc > 1 && absl::string_view(argv[1]) == "backup") {
    return milepost::coordinator::BackUpMain(argc - 1, argv + 1);
  }
  if (argc > 1 && absl::string_view(argv[1]) == "salvage") {
    return milepost::coordinator::SalvageMain(argc - 1, argv + 1);
  }
  return milepost::coordinator::Main(argc, argv);
}
