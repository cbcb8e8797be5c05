// The flags of milepost-worker. Its --config file may set the same flags.
#ifndef MILEPOST_WORKER_WORKER_FLAGS_H_
#define MILEPOST_WORKER_WORKER_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/flags/flag_table.h"
#include "worker/agent/agent.h"
#include "worker/join/joiner.h"
#include "worker/metrics/worker_pages.h"

namespace milepost::worker {

struct Flags {
  Flags();  // defaults that depend on the host

  AgentOptions options;  // only the fields that no flag below sets
  std::string cores, gpus, log_level = "info";
  std::string join_token_file, join_authority;
  WorkerPagesOptions pages;  // not served while `listen` is empty
  std::vector<std::string> labels, write_roots, data_roots;
  double stop_seconds = 60, spot_seconds = 0, hang_seconds = 0;
  int64_t script_processes = AgentSettings().script_processes;
  bool spot_signal = false, allow_scripts = false;
};

// `flags` must outlive the table.
void AddFlags(FlagTable* table, Flags* flags);

// A set of flags and the table that fills it.
struct WorkerFlags {
  WorkerFlags() { AddFlags(&table, &flags); }

  Flags flags;
  FlagTable table{"Offers a host's slots to a Milepost coordinator and runs the ranks it is given.",
                  "milepost-worker"};
};

// The settings that SIGHUP changes. INVALID_ARGUMENT names the flag.
absl::StatusOr<AgentSettings> SettingsOf(const Flags& flags);

// The agent's options from all flags, checked against this host. INVALID_ARGUMENT names the flag.
absl::StatusOr<AgentOptions> AgentOptionsOf(const Flags& flags);

// How the worker gets a certificate, or keeps the one that it has. Absent: it has no certificate
// and wants none. Sets the agent's folder and id where the flags do not. INVALID_ARGUMENT names the
// flag. Reads MILEPOST_JOIN_TOKEN and removes it from the environment, which ranks would inherit.
absl::StatusOr<std::optional<JoinOptions>> JoinOptionsOf(const Flags& flags, AgentOptions* options);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_WORKER_FLAGS_H_
