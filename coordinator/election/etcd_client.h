// What an election needs of etcd: one key, bound to a lease.
//
//   EtcdClient etcd({Endpoint("127.0.0.1:2379")});
//   MP_ASSIGN_OR_RETURN(EtcdLease lease, etcd.Grant(absl::Seconds(4), absl::Seconds(1)));
//   MP_ASSIGN_OR_RETURN(auto created, etcd.Create("/key", "value", lease.id, absl::Seconds(1)));
//
// A call goes to the endpoint that answered last, and on to the next one when that cannot be
// reached, has no leader or is silent. Errors: UNAVAILABLE or DEADLINE_EXCEEDED when none answered
// within the call's `patience` (what was asked may have happened nevertheless), NOT_FOUND for a
// lease that is over, else etcd's own code; the message names the endpoint. Thread-safe; calls
// block for `patience` at most.
#ifndef MILEPOST_COORDINATOR_ELECTION_ETCD_CLIENT_H_
#define MILEPOST_COORDINATOR_ELECTION_ETCD_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/endpoint.h"
#include "etcd/etcd.grpc.pb.h"

namespace milepost::coordinator {

struct EtcdLease {
  int64_t id = 0;
  absl::Duration ttl;  // from when etcd dealt with the call
};

struct EtcdKey {
  std::string value;
  int64_t lease = 0;
  int64_t create_revision = 0;  // no other key ever has, nor this one when it is made again
};

class EtcdClient {
 public:
  // Does not connect yet. At least one endpoint.
  explicit EtcdClient(std::vector<Endpoint> endpoints);

  absl::StatusOr<EtcdLease> Grant(absl::Duration ttl, absl::Duration patience);
  // What the lease has left from now on.
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease, absl::Duration patience);
  // With the lease go its keys.
  absl::Status Revoke(int64_t lease, absl::Duration patience);

  // nullopt: there is none.
  absl::StatusOr<std::optional<EtcdKey>> Get(const std::string& key, absl::Duration patience);
  // The key as it is afterwards: the one that was made, or the one that was there already.
  absl::StatusOr<EtcdKey> Create(const std::string& key, const std::string& value, int64_t lease,
                                 absl::Duration patience);

 private:
  struct Member {
    std::string address;
    std::unique_ptr<etcdserverpb::KV::StubInterface> kv;
    std::unique_ptr<etcdserverpb::Lease::StubInterface> lease;
  };
  using Attempt = std::function<grpc::Status(const Member&, grpc::ClientContext*)>;
  absl::Status Call(absl::Duration patience, const Attempt& attempt);

  std::vector<Member> members_;
  std::atomic<size_t> current_ = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_ELECTION_ETCD_CLIENT_H_
