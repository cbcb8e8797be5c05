// Chooses which of several coordinators to ask: one serves, the others stand by.
//
//   CoordinatorChannel coordinator(Endpoint("head-a:7070,head-b:7070", credentials));
//   while (true) {
//     const auto channel = coordinator.Get();
//     const grpc::Status status = Call(channel);
//     if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
//     coordinator.Failed(channel);      // from now on, the next one
//     coordinator.Pause(backoff);
//   }
//
// Each address has a connection of its own, checked against its own name. With one address,
// everything works as with MakeChannel. After a failover in this process, new objects for the same
// list begin with the same coordinator. Thread-safe. Blocks only where stated.
#ifndef MILEPOST_COMMON_RPC_COORDINATORS_H_
#define MILEPOST_COMMON_RPC_COORDINATORS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"

namespace milepost {

// kShortest: by common/rpc/local_socket.h where there is that. For those who have much to send or
// to read: the coordinator does not see an address of theirs then.
enum class Way { kNetwork, kShortest };

class Coordinators {
 public:
  // `all.address` is "host:port", or several of them separated by commas. The credentials are for
  // each of them.
  explicit Coordinators(const Endpoint& all, Way way = Way::kNetwork);

  bool several() const { return addresses_.size() > 1; }
  // The coordinator that is believed to serve.
  Endpoint Current() const;
  // The same, by the way that a connection would take now.
  Endpoint Target() const;
  // Says that the coordinator at `address` does not serve. Moves on to the next one, unless that
  // has already happened.
  void Failed(const std::string& address);
  // A new connection to `target`, which Target has returned. With several coordinators, a
  // connection that goes silent is detected within five seconds.
  std::shared_ptr<grpc::Channel> Connect(const Endpoint& target) const;

 private:
  const std::string all_;
  const std::vector<std::string> addresses_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const Way way_;
  mutable absl::Mutex mutex_;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
};

class CoordinatorChannel {
 public:
  explicit CoordinatorChannel(const Endpoint& all, Way way = Way::kNetwork);

  bool several() const { return coordinators_.several(); }
  std::shared_ptr<grpc::Channel> Get() const;
  // Says that a call on `channel`, which Get returned, failed with UNAVAILABLE or did not get
  // through.
  void Failed(const std::shared_ptr<grpc::Channel>& channel);
  // Blocks until the channel is connected (true), but at most until `deadline`. With several
  // coordinators it also ends when a connection attempt fails.
  bool AwaitReady(grpc::Channel* channel, absl::Time deadline) const;
  // Blocks for `pause` between two attempts. With one address it blocks less when the channel was
  // lost and connects again.
  void Pause(absl::Duration pause) const;

 private:
  // To the current coordinator.
  void Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Coordinators coordinators_;
  mutable absl::Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);  // of the coordinator
  std::string target_ ABSL_GUARDED_BY(mutex_);   // by which way it is asked
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_COORDINATORS_H_
