// Decides which of several coordinators is active: the one that made a key in etcd. The key
// disappears with its maker's lease. The key's create_revision numbers the election, and later
// elections have higher numbers.
//
//   Election election(&etcd, {.value = "head-a:7070"});
//   MP_ASSIGN_OR_RETURN(Standing standing, election.Try());     // repeatedly, while a standby
//   if (standing.revision > 0) election.KeepRenewing([](const absl::Status& why) { _exit(...); });
//   ... write, sync ...
//   MP_RETURN_IF_ERROR(election.MayAct());                      // before anything leaves
//   ... answer ...
//   election.Resign();
//
// This rule makes it safe (Gray and Cheriton, "Leases", SOSP 1989). etcd counts the lease from when
// it processes a renewal. This side counts from when it asked for it, by a clock that nobody sets
// and that runs while the machine sleeps. It also subtracts a margin for clocks of different speed.
// So this side stops before etcd lets another coordinator be elected. What was durably written
// before MayAct returned OK was written before that moment, and the next coordinator finds it.
//
// Thread-safe, except that only one thread may call Try. Try and Resign block on etcd for a few
// seconds at most. MayAct never blocks.
#ifndef MILEPOST_COORDINATOR_ELECTION_ELECTION_H_
#define MILEPOST_COORDINATOR_ELECTION_ELECTION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/election/etcd_client.h"

namespace milepost::coordinator {

struct ElectionOptions {
  std::string key = "/milepost/coordinator";
  std::string value;  // told to the others: where this coordinator is reached
  // How long the lease outlives the last renewal, in whole seconds. A longer lease survives longer
  // outages of etcd, but a standby takes over later.
  absl::Duration ttl = absl::Seconds(4);
  // The time since some moment in the past. Empty: CLOCK_BOOTTIME.
  std::function<absl::Duration()> uptime = nullptr;
};

struct Standing {
  int64_t revision = 0;  // of the election that was won; 0: another coordinator is active
  std::string active;    // the active coordinator's value
};

class Election {
 public:
  Election(EtcdClient* etcd, ElectionOptions options);
  // Stops renewing. The lease expires by itself.
  ~Election();

  // Makes one attempt to be elected. After a win there is nothing more to try.
  absl::StatusOr<Standing> Try();

  // Renews the lease once. NOT_FOUND: the lease is over. Other errors: etcd cannot be reached; the
  // lease then holds as long as before.
  absl::Status Renew();

  // Renews on a thread of its own, five times within the lease. That thread calls `lost` once, when
  // it is no longer certain that the lease holds.
  void KeepRenewing(std::function<void(const absl::Status& why)> lost);

  // OK while this side certainly holds the lease, otherwise UNAVAILABLE.
  absl::Status MayAct() const;

  // Gives the lease up, so that another coordinator is elected at once. Do nothing after it.
  void Resign();

 private:
  absl::Duration Left() const;
  void HoldFrom(absl::Duration asked, absl::Duration ttl);
  void Drop();
  absl::Status GrantLease();
  void RunRenewals(const std::function<void(const absl::Status&)>& lost);
  void StopRenewing();

  EtcdClient* const etcd_;
  const ElectionOptions options_;
  std::atomic<int64_t> lease_ = 0;
  std::atomic<int64_t> held_until_ns_ = 0;  // by the uptime clock

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_ELECTION_ELECTION_H_
