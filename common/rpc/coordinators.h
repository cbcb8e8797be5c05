// Several coordinators, of which one serves and the others stand by: which one to ask.
//
//   CoordinatorChannel coordinator(Endpoint("head-a:7070,head-b:7070", credentials));
//   while (true) {
//     const auto channel = coordinator.Get();
//     const grpc::Status status = Call(channel);
//     if (status.error_code() != grpc::StatusCode::UNAVAILABLE) break;
//     coordinator.Failed(channel);      // the next one, from now on
//     coordinator.Pause(backoff);
//   }
//
// Each address is a connection of its own, checked against its own name. With one address nothing
// is different from MakeChannel. Where calls of this process failed over to is where new objects
// for the same list begin. Thread-safe; blocks where it says so.
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

class Coordinators {
 public:
  // `all.address` is "host:port" or several of them with commas between; the credentials are for
  // each.
  explicit Coordinators(const Endpoint& all);

  bool several() const { return addresses_.size() > 1; }
  // Whichever is thought to serve.
  Endpoint Current() const;
  // The one at `address` does not: on to the next one, unless that has happened already.
  void Failed(const std::string& address);
  // A new connection to the current one. With several, one that goes dead without a word is found
  // out within five seconds.
  std::shared_ptr<grpc::Channel> Connect() const;

 private:
  const std::string all_;
  const std::vector<std::string> addresses_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  mutable absl::Mutex mutex_;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
};

class CoordinatorChannel {
 public:
  explicit CoordinatorChannel(const Endpoint& all);

  bool several() const { return coordinators_.several(); }
  std::shared_ptr<grpc::Channel> Get() const;
  // A call on `channel`, which Get answered, said UNAVAILABLE or did not get through.
  void Failed(const std::shared_ptr<grpc::Channel>& channel);
  // Blocks until the channel is connected (true), at most until `deadline`, and with several not
  // beyond a failed attempt.
  bool AwaitReady(grpc::Channel* channel, absl::Time deadline) const;
  // Blocks for so long between two attempts; with one address, less when it was away and connects.
  void Pause(absl::Duration pause) const;

 private:
  Coordinators coordinators_;
  mutable absl::Mutex mutex_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_COORDINATORS_H_
