// Which of several coordinators is the active one: who made a key in etcd. The key goes with its
// maker's lease, and the key's create_revision is the number of the election: a later one's is
// higher.
//
//   Election election(&etcd, {.value = "head-a:7070"});
//   MP_ASSIGN_OR_RETURN(Standing standing, election.Try());     // again and again while a standby
//   if (standing.revision > 0) election.KeepRenewing([](const absl::Status& why) { _exit(...); });
//   ... write, sync ...
//   MP_RETURN_IF_ERROR(election.MayAct());                      // before anything leaves
//   ... answer ...
//   election.Resign();
//
// The rule that makes it safe (Gray and Cheriton, "Leases", SOSP 1989): etcd counts the lease from
// when it deals with a renewal, this side from when it asked for it, by a clock that nobody sets
// and that goes on while the machine sleeps, and less a margin for clocks of different speed. So
// this side stops before etcd lets another one be elected. Whatever was written durably before
// MayAct said yes was written before that, and is there for the next one to find.
//
// Thread-safe but for Try, which one thread calls. Try and Resign block on etcd for a few seconds
// at most; MayAct never does.
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
  std::string value;  // for the others: where this coordinator is reached
  // How long the lease outlives the last renewal, in whole seconds: the longer, the more of an
  // outage of etcd is survived, and the later a standby takes over.
  absl::Duration ttl = absl::Seconds(4);
  // Time since some moment in the past. Empty: CLOCK_BOOTTIME.
  std::function<absl::Duration()> uptime = nullptr;
};

struct Standing {
  int64_t revision = 0;  // of the election that was won; 0: another one is active
  std::string active;    // its value
};

class Election {
 public:
  Election(EtcdClient* etcd, ElectionOptions options);
  // Stops renewing. The lease runs out by itself.
  ~Election();

  // One attempt to be elected. After a win there is nothing more to try.
  absl::StatusOr<Standing> Try();

  // Renews the lease once. NOT_FOUND: it is over; other errors: etcd cannot be reached, and the
  // lease holds for as long as it did.
  absl::Status Renew();

  // Renews on a thread of its own, five times within the lease. `lost` is called from there, once,
  // when the lease is not certain to hold any more.
  void KeepRenewing(std::function<void(const absl::Status& why)> lost);

  // OK while the lease is certain to be held, else UNAVAILABLE.
  absl::Status MayAct() const;

  // Gives the lease up, so that another one is elected at once. Nothing may be done after it.
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
  std::atomic<int64_t> held_until_ns_ = 0;  // of uptime

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_ELECTION_ELECTION_H_
