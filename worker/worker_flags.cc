#include "worker/worker_flags.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flags/number_range.h"
#include "common/flags/value_check.h"
#include "common/http/listen.h"
#include "common/regular_file.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "common/worker_id.h"
#include "worker/agent/cores.h"
#include "worker/agent/identity.h"
#include "worker/agent/job_memory.h"

namespace milepost::worker {
namespace {

constexpr char kJoinTokenVariable[] = "MILEPOST_JOIN_TOKEN";
constexpr int64_t kMostProcesses = 1 << 22;  // the kernel's own limit
constexpr size_t kMostJoinTokenBytes = 1 << 20;

void AddPlaceFlags(FlagTable* table, Flags* flags) {
  CLI::App& app = table->app();
  AgentOptions& options = flags->options;
  table->Required(
      app.add_option("--coordinator", options.coordinator,
                     "host:port of the coordinator; of each with commas between, where others "
                     "stand by")
          ->check(ValueCheck(CheckAddresses)));
  app.add_option("--tls", options.tls_dir,
                 "folder with this worker's ca.crt, tls.crt and tls.key, as `milepost-coordinator "
                 "init-pki` makes it, or as it is made with a join token (default: tls in the data "
                 "dir, where there is one, or a token)");
  app.add_option(
      "--join-token-file", flags->join_token_file,
      "what `milepost worker token create` printed: this host makes a key, gets a "
      "certificate for it and renews that; MILEPOST_JOIN_TOKEN is the same as text. Or the "
      "token of a Kubernetes service account, as the cluster puts it into a pod");
  app.add_option("--join-authority", flags->join_authority,
                 "PEM file: whom to trust while joining, instead of what the token file says");
  table->Required(app.add_option("--data-dir", options.data_dir,
                                 "where the worker keeps its id; made if not there"));
  app.add_option("--memory-dir", options.memory_dir,
                 "on a file system in memory: where ranks keep state that outlives them, so that a "
                 "lost rank costs no step; empty: nowhere")
      ->capture_default_str();
  app.add_option(
      "--id", options.id,
      "stable name of this worker (default: its certificate's, else kept in the data dir)");
  app.add_option("--label", flags->labels,
                 "KEY=VALUE, may be repeated; all ranks of a job run in one `pool`, and are kept "
                 "within one `rack`");
}

void AddSlotFlags(FlagTable* table, Flags* flags) {
  CLI::App& app = table->app();
  AgentOptions& options = flags->options;
  const std::map<std::string, v1::DeviceKind> devices = {{"cpu", v1::DEVICE_KIND_CPU},
                                                         {"cuda", v1::DEVICE_KIND_CUDA}};
  app.add_option("--device", options.slots.device,
                 "what a slot is: a share of the cores, or a GPU (default: cuda where there are "
                 "GPUs and milepost-trainer-cuda, unless --slots is given)")
      ->transform(CLI::CheckedTransformer(devices));
  app.add_option("--slots", options.slots.count, "CPU ranks that may run here at once (default: 1)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--gpus", flags->gpus,
                 "GPUs to offer, by nvidia-smi's numbers, like 0,2-3 (default: all)");
  app.add_option("--cores", flags->cores, "CPU cores to use, like 0-3,8 (default: all it may use)");
  app.add_option("--memory-bytes", options.slots.memory_bytes,
                 "host memory that the slots share (default: all that it has)")
      ->check(CLI::NonNegativeNumber);
}

void AddPageFlags(FlagTable* table, Flags* flags) {
  CLI::App& app = table->app();
  app.add_option("--http", flags->pages.listen,
                 "HOST:PORT of pages for monitoring: /metrics for Prometheus, /healthz and /readyz "
                 "for probes (docs/operate/metrics.md)")
      ->check(ValueCheck(CheckListenAddress));
  app.add_option("--http-tls", flags->pages.tls_dir,
                 "folder with ca.crt, tls.crt and tls.key of a server, for --http off loopback");
  app.add_option("--http-token-file", flags->pages.token_file,
                 "what a scraper of /metrics has to show, at least 16 characters");
}

void AddHostFlags(FlagTable* table, Flags* flags) {
  CLI::App& app = table->app();
  AgentOptions& options = flags->options;
  app.add_option("--spot-file", options.spot.file,
                 "when this file appears the host is about to go away: the worker is drained");
  app.add_option("--spot-command", options.spot.command,
                 "for /bin/sh, every 5 s: when it ends with 0, the same");
  app.add_flag("--spot-signal", flags->spot_signal, "on SIGUSR2, the same");
  app.add_option("--health-command", options.health.command,
                 "for /bin/sh, part of the health check that follows several failures of this "
                 "host: it has to end with 0 within 5 minutes");
}

void AddLiveFlags(FlagTable* table, Flags* flags) {
  CLI::App& app = table->app();
  table->Live(
      app.add_option("--write-roots", flags->write_roots,
                     "folders, with commas between, in which jobs may write (report.tensorboard, "
                     "train.offload.path); default: wherever this worker's user may")
          ->delimiter(','));
  table->Live(
      app.add_option("--data-roots", flags->data_roots,
                     "folders from which jobs may read (data, train.init_from), besides those they "
                     "may write to; default: wherever this worker's user may")
          ->delimiter(','));
  table->Live(app.add_flag("--allow-scripts", flags->allow_scripts,
                           "jobs may run programs of their own (script:), with the rights of this "
                           "worker's user; default: they may not"));
  table->Live(app.add_option("--script-processes", flags->script_processes,
                             "processes and threads that each rank of a script may have at once, "
                             "where the worker can make control groups; 0: any number; of ranks "
                             "that start afterwards")
                  ->check(CLI::Range(int64_t{0}, kMostProcesses))
                  ->capture_default_str());
  table->Live(app.add_option("--stop-seconds", flags->stop_seconds,
                             "on SIGTERM: time for ranks to checkpoint")
                  ->check(NumberRange(0, kMostFlagSeconds))
                  ->capture_default_str());
  table->Live(app.add_option("--spot-seconds", flags->spot_seconds,
                             "from a notice that the host goes away on, until jobs are told to "
                             "save a checkpoint and leave")
                  ->check(NumberRange(0.0, 86400.0))
                  ->capture_default_str());
  table->Live(app.add_option("--hang-seconds", flags->hang_seconds,
                             "a rank whose micro-step, or wait for data, takes longer has failed; "
                             "0: never; of ranks that start afterwards")
                  ->check(NumberRange(0, kMostFlagSeconds))
                  ->capture_default_str());
  table->Live(app.add_option("--log-level", flags->log_level, "debug, info, warn or error")
                  ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
                  ->capture_default_str());
}

absl::StatusOr<std::vector<int>> CoresOf(const std::string& text) {
  MP_ASSIGN_OR_RETURN(std::vector<int> cores, ParseCoreList(text));
  const std::vector<int> allowed = AllowedCores();
  for (const int core : cores) {
    if (std::find(allowed.begin(), allowed.end(), core) != allowed.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--cores: this process may not run on core ",
                                                   core, ", but on ", absl::StrJoin(allowed, ",")));
  }
  return cores;
}

// Once it is read, ranks do not inherit it.
std::string TakeJoinToken() {
  char* value = std::getenv(kJoinTokenVariable);
  if (value == nullptr) return "";
  std::string text = value;
  std::fill_n(value, text.size(), '\0');  // /proc shows it to processes of this user
  unsetenv(kJoinTokenVariable);
  return text;
}

absl::StatusOr<JoinToken> ReadJoinToken(const std::string& path) {
  MP_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, kMostJoinTokenBytes));
  auto token = ParseJoinToken(text);
  if (!token.ok()) return Annotate(token.status(), path);
  return token;
}

// Empty where there is neither a file nor the variable. A file is read anew each time; once it is
// gone, what it had at first counts.
absl::StatusOr<JoinTokenSource> JoinTokenOf(const std::string& path) {
  const std::string text = TakeJoinToken();
  if (!path.empty()) {
    auto first = ReadJoinToken(path);
    if (!first.ok()) return Annotate(first.status(), "--join-token-file");
    return [path, first = *std::move(first)] {
      auto token = ReadJoinToken(path);
      return token.ok() ? *std::move(token) : first;
    };
  }
  if (text.empty()) return JoinTokenSource();
  auto token = ParseJoinToken(text);
  if (!token.ok()) return Annotate(token.status(), kJoinTokenVariable);
  return [token = *std::move(token)] { return token; };
}

absl::StatusOr<std::map<std::string, std::string>> LabelsOf(
    const std::vector<std::string>& labels) {
  std::map<std::string, std::string> values;
  for (const std::string& label : labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--label: expected KEY=VALUE such as rack=r12, not '", label, "'"));
    }
    values[label.substr(0, equals)] = label.substr(equals + 1);
  }
  return values;
}

}  // namespace

Flags::Flags() {
  options.trainer_binary = SiblingBinary("milepost-trainer");
  options.cuda_trainer_binary = SiblingBinary("milepost-trainer-cuda");
  options.memory_dir = DefaultMemoryDir();
  hang_seconds = absl::ToDoubleSeconds(AgentSettings().hang_time);
}

void AddFlags(FlagTable* table, Flags* flags) {
  AddPlaceFlags(table, flags);
  AddSlotFlags(table, flags);
  AddHostFlags(table, flags);
  AddPageFlags(table, flags);
  AddLiveFlags(table, flags);
  table->app().footer("milepost-worker doctor --help: checks this host instead");
}

absl::StatusOr<AgentSettings> SettingsOf(const Flags& flags) {
  AgentSettings settings;
  settings.stop_time = absl::Seconds(flags.stop_seconds);
  settings.spot_time = absl::Seconds(flags.spot_seconds);
  settings.hang_time = absl::Seconds(flags.hang_seconds);
  settings.scripts_allowed = flags.allow_scripts;
  settings.script_processes = flags.script_processes;
  MP_ASSIGN_OR_RETURN(settings.path_roots, MakePathRoots(flags.write_roots, flags.data_roots));
  return settings;
}

absl::StatusOr<AgentOptions> AgentOptionsOf(const Flags& flags) {
  AgentOptions options = flags.options;
  MP_ASSIGN_OR_RETURN(options.settings, SettingsOf(flags));
  options.health.doctor = {SiblingBinary("milepost-worker"), "doctor", "--no-gpus", "--data-dir",
                           options.data_dir};
  options.health.gpu_trainer = options.cuda_trainer_binary;
  if (!flags.cores.empty()) {
    MP_ASSIGN_OR_RETURN(options.slots.cores, CoresOf(flags.cores));
  }
  MP_ASSIGN_OR_RETURN(options.labels, LabelsOf(flags.labels));
  if (!flags.gpus.empty()) {
    auto parsed = ParseCoreList(flags.gpus);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--gpus ", flags.gpus, ": numbers and ranges like 0,2-3"));
    }
    options.slots.gpus = *std::move(parsed);
  }
  return options;
}

// Of a worker that joins or has joined, where no folder was given.
std::string TlsDirOf(const AgentOptions& options, bool joins) {
  std::string own = absl::StrCat(options.data_dir, "/tls");
  return joins || std::filesystem::exists(TlsFolder(own).certificate()) ? own : "";
}

absl::StatusOr<std::optional<JoinOptions>> JoinOptionsOf(const Flags& flags,
                                                         AgentOptions* options) {
  MP_ASSIGN_OR_RETURN(JoinTokenSource token, JoinTokenOf(flags.join_token_file));
  if (options->tls_dir.empty()) options->tls_dir = TlsDirOf(*options, token != nullptr);
  if (options->tls_dir.empty()) return std::nullopt;
  JoinOptions join = {.coordinator = options->coordinator,
                      .tls_dir = options->tls_dir,
                      .id = options->id,
                      .token = std::move(token),
                      .authority = flags.join_authority};
  if (join.id.empty()) {
    MP_ASSIGN_OR_RETURN(join.id, StoredWorkerId(options->data_dir));
  }
  if (join.id.empty()) join.id = HostName();
  MP_RETURN_IF_ERROR(Annotate(CheckWorkerId(join.id), "--id"));
  return join;
}

}  // namespace milepost::worker
