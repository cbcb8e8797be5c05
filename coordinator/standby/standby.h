// A coordinator that is one of several on one store: a standby until it is elected, then the active
// one until it cannot be sure of that any more.
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
  std::string etcd_tls_dir;       // ca.crt, tls.crt, tls.key; empty: plain text, loopback alone
  std::string key = "/milepost/coordinator";
  std::string advertise;  // empty: where it listens
  absl::Duration ttl = absl::Seconds(4);
  // An older coordinator that was only slow is long gone then.
  absl::Duration keep_older_epochs = absl::Minutes(1);
  // Called five times a second while it stands by, with the active one's address (empty: none is
  // known). May be empty.
  std::function<void(const std::string& active)> standing_by = nullptr;
  // For tests: called by the thread that deletes older epochs, before it does.
  std::function<void()> before_cleaning = nullptr;
};

// Listens as a standby, calls `listening` with the address, and blocks until one of `signals`
// (blocked in every thread) arrives: OK then, with the lease given up. server.store.dir is the
// directory that all of them share (store/epochs.h). INVALID_ARGUMENT: etcd's endpoints;
// FAILED_PRECONDITION: the directory is not the one that the others use (standby/shared_store.h).
// When it loses the lease while it is the active one the process ends with kExitNotActive, without
// a word to anybody.
absl::Status RunWithStandby(ServerOptions server, const StandbyOptions& options,
                            const sigset_t& signals,
                            const std::function<absl::Status(const std::string&)>& listening);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STANDBY_STANDBY_H_
