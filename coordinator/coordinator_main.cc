// milepost-coordinator: parses, wires and runs.
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
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
#include "common/status_macros.h"
#include "common/systemd/daemon_log.h"
#include "common/systemd/service.h"
#include "common/version.h"
#include "coordinator/coordinator_flags.h"
#include "coordinator/rpc/server.h"
#include "coordinator/rpc/submission_check.h"
#include "coordinator/security/init_pki.h"
#include "coordinator/standby/standby.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/owner_only.h"
#include "coordinator/store/salvage.h"
#include "coordinator/store/store_id.h"
#include "coordinator/store/unnamed_chunks.h"

namespace milepost::coordinator {
namespace {

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

constexpr absl::Duration kStopTime = absl::Seconds(30);

std::string Describe(const Load& load) {
  return absl::StrCat(load.running, " jobs run, ", load.waiting, " wait; ", load.workers,
                      " workers are connected");
}

// All but what the standby and the listening need.
absl::StatusOr<ServerOptions> MakeServerOptions(const Flags& flags, const LiveSettings* settings,
                                                Service* service) {
  ServerOptions options;
  options.store.dir = flags.data_dir;
  options.store.logs = flags.logs;
  options.store.bin_time = absl::Hours(24 * flags.bin_days);
  options.store.most_files_bytes = flags.max_files_bytes;
  options.coordinator.live = settings;
  options.coordinator.check_submission = CheckSubmission;
  options.coordinator.on_broken_store = GiveUpStore;
  options.coordinator.on_turn = [service](const Load& load) {
    service->Alive();
    service->Status(Describe(load));
  };
  options.coordinator.workers_gone = flags.workers_gone;
  options.listen = flags.listen;
  options.tls_dir = flags.tls_dir;
  options.worker_authority = flags.worker_authority;
  options.worker_certificate_life = absl::Hours(24 * flags.worker_certificate_days);
  options.service_accounts = flags.service_accounts;
  options.http = flags.http;
  if (!flags.webhooks.empty()) {
    MP_ASSIGN_OR_RETURN(options.webhooks, ReadWebhooks(flags.webhooks));
  }
  return options;
}

absl::Status RunAsOneOfSeveral(const Flags& flags, const ServerOptions& options,
                               const sigset_t& signals, Service* service) {
  StandbyOptions standby = flags.standby;
  standby.ttl = absl::Ceil(absl::Seconds(flags.etcd_lease_seconds), absl::Seconds(1));
  standby.standing_by = [service](const std::string& active) {
    service->Alive();
    service->Status(active.empty() ? "standing by" : absl::StrCat("standing by for ", active));
  };
  return RunWithStandby(options, standby, signals, [&](const std::string& address) {
    service->Ready(absl::StrCat("listening on ", address));
    return flags.address_file.empty() ? absl::OkStatus()
                                      : WriteAddress(flags.address_file, address);
  });
}

absl::Status RunAlone(const Flags& flags, const ServerOptions& options, const sigset_t& signals,
                      Service* service) {
  MP_ASSIGN_OR_RETURN(auto server, CoordinatorServer::Start(options));
  if (!flags.address_file.empty()) {
    MP_RETURN_IF_ERROR(WriteAddress(flags.address_file, server->address()));
  }
  spdlog::info("serving on {}, data in {}", server->address(), flags.data_dir);
  service->Ready(absl::StrCat("serving on ", server->address()));
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("stopping: {}", strsignal(signal));
  service->Stopping(kStopTime);
  server->Stop();
  return absl::OkStatus();
}

int Run(CoordinatorFlags* started, std::vector<std::string> args, const sigset_t& signals) {
  const Flags& flags = started->flags;
  if (absl::Status status = CheckWallClock(absl::Now()); !status.ok()) return Fail(status);
  KeepToOwner(flags.data_dir);
  Service service;
  LiveSettings settings(LiveValuesOf(flags, absl::Seconds(flags.lease_seconds)));
  const auto options = MakeServerOptions(flags, &settings, &service);
  if (!options.ok()) return Fail(options.status());
  std::optional<TlsWatch> tls_watch;
  if (!flags.tls_dir.empty()) {
    tls_watch.emplace(TlsFolder(flags.tls_dir), kLookAtTlsFiles, LogTlsFiles);
  }
  Reloader<CoordinatorFlags> reloader(
      std::move(args), started, &service, [&settings](const Flags& read) {
        settings.Set(LiveValuesOf(read, settings.Get().config.lease));
        spdlog::set_level(spdlog::level::from_str(read.log_level));
        return absl::OkStatus();
      });
  const absl::Status status = flags.standby.etcd.empty()
                                  ? RunAlone(flags, *options, signals, &service)
                                  : RunAsOneOfSeveral(flags, *options, signals, &service);
  return status.ok() ? kExitOk : Fail(status);
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
                 "A name or address under which the coordinator is reached; may be repeated. "
                 "With none the certificate keeps those that it has")
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

int UnnamedChunksMain(int argc, char** argv) {
  std::string dir;
  bool remove = false;
  CLI::App app(
      "Lists what is left of checkpoints that no record names, and removes it when told to: once "
      "all records have been verified. No coordinator may be at work.",
      "milepost-coordinator unnamed-chunks");
  app.add_option("--data-dir", dir, "The coordinator's")->required();
  app.add_flag("--remove", remove, "Delete what is listed, for good");
  if (const std::optional<int> ended = Parse(&app, argc, argv)) return *ended;
  const auto unnamed = UnnamedChunks(dir, remove);
  if (!unnamed.ok()) return Refuse(unnamed.status());
  uint64_t bytes = 0;
  for (const ChunkFiles& chunks : *unnamed) {
    bytes += chunks.bytes;
    std::printf("checkpoints/%" PRId64 "  files %" PRId64 "  bytes %" PRIu64 "\n",
                chunks.checkpoint, chunks.files, chunks.bytes);
  }
  std::printf("checkpoints %zu  bytes %" PRIu64 "%s\n", unnamed->size(), bytes,
              remove ? "  removed" : "");
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

  CoordinatorFlags flags;
  flags.table.app().footer(
      "milepost-coordinator init-pki --help: makes certificates\n"
      "milepost-coordinator init-store --help: begins a store that several coordinators share\n"
      "milepost-coordinator backup --help: copies the data directory\n"
      "milepost-coordinator salvage --help: makes a new one of what is left of a damaged one\n"
      "milepost-coordinator unnamed-chunks --help: data of checkpoints that have no record");
  if (const std::optional<int> ended = flags.table.Parse(argc, argv)) return *ended;
  // Without a file to read again a terminal that goes away ends it, as ever.
  if (!flags.table.config().empty()) BlockSignal(SIGHUP);
  StartDaemonLog("coordinator", "%Y-%m-%dT%H:%M:%S.%e %^%l%$ coordinator: %v");
  spdlog::set_level(spdlog::level::from_str(flags.flags.log_level));
  spdlog::flush_on(spdlog::level::info);
  ForwardGrpcLogOfServer();
  return Run(&flags, std::vector<std::string>(argv + 1, argv + argc), signals);
}

}  // namespace
}  // namespace milepost::coordinator

int main(int argc, char** argv) {
  milepost::OpenStandardFds();
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
  if (argc > 1 && absl::string_view(argv[1]) == "unnamed-chunks") {
    return milepost::coordinator::UnnamedChunksMain(argc - 1, argv + 1);
  }
  return milepost::coordinator::Main(argc, argv);
}
