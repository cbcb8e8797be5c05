// The key-value store of the coordinator's RendezvousService, through which ranks meet. engine/comm
// uses it to connect them.
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

// Calls survive restarts of the coordinator: UNAVAILABLE is retried until the deadline, and in Put
// for `put_timeout`. Thread-safe. Calls block.
class RendezvousStore : public comm::KeyValueStore {
 public:
  // A waiting call asks `give_up` about once a second. Once it returns true, calls return
  // CANCELLED.
  RendezvousStore(const Endpoint& coordinator, std::string job, int64_t generation,
                  std::function<bool()> give_up, absl::Duration put_timeout = absl::Minutes(5));

  absl::Status Put(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override;

  // What earlier attempts of the job have chosen (RendezvousService.GetChoices). Empty: nothing.
  absl::StatusOr<std::string> GetChoices(absl::Time deadline);
  absl::Status PutChoices(absl::string_view choices, absl::Time deadline);

  // True once the coordinator has said that a newer generation exists.
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

// The address of this host from which packets to `target` leave. `target` is host:port, or several
// of them separated by commas; the first one that gives an address counts. Returns 127.0.0.1 when
// the address cannot be found.
std::string LocalAddressTowards(const std::string& target);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_TRAINER_RENDEZVOUS_H_
