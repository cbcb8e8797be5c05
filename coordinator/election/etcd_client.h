// The part of etcd that an election needs: one key, bound to a lease.
//
//   EtcdClient etcd({Endpoint("127.0.0.1:2379")});
//   MP_ASSIGN_OR_RETURN(EtcdLease lease, etcd.Grant(absl::Seconds(4), absl::Seconds(1)));
//   MP_ASSIGN_OR_RETURN(auto created, etcd.Create("/key", "value", lease.id, absl::Seconds(1)));
//
// A call goes to the endpoint that answered last. It moves on to the next one when that endpoint
// cannot be reached, has no leader or is silent. UNAVAILABLE or DEADLINE_EXCEEDED: no endpoint
// answered within the call's `patience`; the request may have been carried out nevertheless.
// NOT_FOUND: the lease is over. Otherwise etcd's own code. The message names the endpoint.
// Thread-safe. Calls block for at most `patience`.
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
  absl::Duration ttl;  // from when etcd processed the call
};

struct EtcdKey {
  std::string value;
  int64_t lease = 0;
  int64_t create_revision = 0;  // unique: no other key has it, nor this key when made again
};

class EtcdClient {
 public:
  // Does not connect yet. There must be at least one endpoint.
  explicit EtcdClient(std::vector<Endpoint> endpoints);

  absl::StatusOr<EtcdLease> Grant(absl::Duration ttl, absl::Duration patience);
  // Renews the lease. Returns how long it lasts from now on.
  absl::StatusOr<absl::Duration> KeepAlive(int64_t lease, absl::Duration patience);
  // Ends the lease. Its keys disappear with it.
  absl::Status Revoke(int64_t lease, absl::Duration patience);

  // nullopt: there is no such key.
  absl::StatusOr<std::optional<EtcdKey>> Get(const std::string& key, absl::Duration patience);
  // Makes the key unless it exists. Returns the key as it is afterwards: the new one or the
  // existing one.
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
