// The flags of milepost-coordinator, which its --config file may give as well.
#ifndef MILEPOST_COORDINATOR_COORDINATOR_FLAGS_H_
#define MILEPOST_COORDINATOR_COORDINATOR_FLAGS_H_

#include <string>

#include "absl/time/time.h"
#include "common/flags/flag_table.h"
#include "coordinator/core/state.h"
#include "coordinator/desks/coordinator.h"
#include "coordinator/rpc/server.h"
#include "coordinator/standby/standby.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {

struct Flags {
  std::string data_dir;
  std::string listen = "127.0.0.1:7070";
  std::string address_file;
  double lease_seconds = 5;
  double stop_seconds = 120;
  double resize_seconds = 600;
  int exclude_after = Config().exclude_after;
  double forget_worker_hours = absl::ToDoubleHours(Config().forget_worker_after);
  std::string log_level = "info";
  std::string tls_dir;
  std::string worker_authority;
  double worker_certificate_days =
      absl::ToDoubleHours(ServerOptions().worker_certificate_life) / 24;
  ServiceAccountOptions service_accounts;
  LogLimits logs;
  double bin_days = absl::ToDoubleHours(StoreOptions().bin_time) / 24;
  int64_t max_files_bytes = StoreOptions().most_files_bytes;
  size_t max_job_bytes = CoordinatorOptions().most_job_bytes;
  StandbyOptions standby;
  double etcd_lease_seconds = 4;
  std::string webhooks;
  std::string http;
  bool workers_gone = false;
};

// `flags` outlives the table.
void AddFlags(FlagTable* table, Flags* flags);

// A set of flags and the table that fills it.
struct CoordinatorFlags {
  CoordinatorFlags() { AddFlags(&table, &flags); }

  Flags flags;
  FlagTable table{"The coordinator of Milepost: queues jobs, tracks workers, keeps checkpoints.",
                  "milepost-coordinator"};
};

// What SIGHUP changes; `lease` is the one in force.
LiveValues LiveValuesOf(const Flags& flags, absl::Duration lease);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_COORDINATOR_FLAGS_H_
