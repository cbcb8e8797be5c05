// A coordinator that is one of several on one store. It is a standby until it is elected. Then it
// is active until it cannot be sure of that any more.
//
//   return RunWithStandby(server_options, {.etcd = {"10.0.0.9:2379"}}, signals);
#ifndef MILEPOST_COORDINATOR_STANDBY_STANDBY_H_
#define MILEPOST_COORDINATOR_STANDBY_STANDBY_H_

#include <signal.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/rpc/server.h"

namespace milepost::coordinator {

struct StandbyOptions {
  std::vector<std::string> etcd;  // host:port of each member
  std::string etcd_tls_dir;       // ca.crt, tls.crt, tls.key; empty: plain text, only on loopback
  std::string key = "/milepost/coordinator";
  std::string advertise;  // empty: the address on which it listens
  absl::Duration ttl = absl::Seconds(4);
  // Older epochs are deleted after this time. An older coordinator that was only slow is long gone
  // then.
  absl::Duration keep_older_epochs = absl::Minutes(1);
  // Called five times a second while it stands by, with the address of the active coordinator.
  // Empty: none is known. May be empty.
  std::function<void(const std::string& active)> standing_by = nullptr;
  // For tests: called by the thread that deletes older epochs, before it deletes them.
  std::function<void()> before_cleaning = nullptr;
};

// Listens as a standby and calls `listening` with the address. Blocks until one of `signals`
// arrives, which must be blocked in every thread. Then it gives up the lease and returns OK.
// server.store.dir is the directory that all coordinators share (store/epochs.h). INVALID_ARGUMENT:
// etcd's endpoints. FAILED_PRECONDITION: the directory is not the shared one
// (standby/shared_store.h). When it loses the lease while it is active, the process ends with
// kExitNotActive and answers nobody.
absl::Status RunWithStandby(ServerOptions server, const StandbyOptions& options,
                            const sigset_t& signals,
                            const std::function<absl::Status(const std::string&)>& listening);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STANDBY_STANDBY_H_
