// The ranks' meeting place over the coordinator's RendezvousService: what engine/comm connects
// with.
#ifndef MILEPOST_WORKER_TRAINER_RENDEZVOUS_H_
#define MILEPOST_WORKER_TRAINER_RENDEZVOUS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/rpc/coordinators.h"
#include "engine/comm/key_value_store.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::worker {

// Calls outlive coordinator restarts: UNAVAILABLE is tried again until the deadline (Put:
// `put_timeout`). Thread-safe; calls block.
class RendezvousStore : public comm::KeyValueStore {
 public:
  // `give_up` is asked about once a second while a call waits; once true, calls answer CANCELLED.
  RendezvousStore(const Endpoint& coordinator, std::string job, int64_t generation,
                  std::function<bool()> give_up, absl::Duration put_timeout = absl::Minutes(5));

  absl::Status Put(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override;

  // What the job's earlier attempts have chosen (RendezvousService.GetChoices); empty: nothing.
  absl::StatusOr<std::string> GetChoices(absl::Time deadline);
  absl::Status PutChoices(absl::string_view choices, absl::Time deadline);

  // The coordinator said that a newer generation exists.
  bool fenced() const { return fenced_; }

 private:
  using Call = std::function<grpc::Status(v1::RendezvousService::Stub*, grpc::ClientContext*)>;
  absl::Status Retry(absl::Time deadline, const Call& call);

  CoordinatorChannel coordinators_;
  const std::string job_;
  const int64_t generation_;
  const std::function<bool()> give_up_;
  const absl::Duration put_timeout_;
  std::atomic<bool> fenced_{false};
};

// The address of this host that packets to `target` (host:port, or the first of several with commas
// between that has an address) leave from; 127.0.0.1 when that cannot be told.
std::string LocalAddressTowards(const std::string& target);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_RENDEZVOUS_H_
