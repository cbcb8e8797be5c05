// For tests: an etcd in this process, with a clock that the test moves.
//
//   FakeEtcd etcd;
//   EtcdClient client({Endpoint(etcd.address())});
//   etcd.Advance(absl::Seconds(5));   // expired leases are gone, with their keys
#ifndef MILEPOST_COORDINATOR_ELECTION_FAKE_ETCD_H_
#define MILEPOST_COORDINATOR_ELECTION_FAKE_ETCD_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "etcd/etcd.grpc.pb.h"

namespace milepost::coordinator {

class FakeEtcd {
 public:
  FakeEtcd() : kv_(this), lease_(this) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&kv_);
    builder.RegisterService(&lease_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  const std::string& address() const { return address_; }

  void Advance(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    now_ += time;
    for (auto it = leases_.begin(); it != leases_.end();) {
      const int64_t id = it->first;
      const bool over = it->second.end <= now_;
      ++it;
      if (over) EndLocked(id);
    }
  }
  absl::Duration now() {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  // What it does to the next calls.
  enum class Fault { kNone, kRefuses, kDoesItAndFails };
  void Break(Fault fault) {
    absl::MutexLock lock(&mutex_);
    fault_ = fault;
  }
  void EndLease(int64_t id) {
    absl::MutexLock lock(&mutex_);
    EndLocked(id);
  }
  int leases() {
    absl::MutexLock lock(&mutex_);
    return static_cast<int>(leases_.size());
  }
  // 0: there is no such key.
  int64_t LeaseOf(const std::string& key) {
    absl::MutexLock lock(&mutex_);
    const auto found = keys_.find(key);
    return found == keys_.end() ? 0 : found->second.lease();
  }
  int renewals() {
    absl::MutexLock lock(&mutex_);
    return renewals_;
  }

 private:
  struct LeaseState {
    absl::Duration ttl, end;
  };
  static grpc::Status Away() { return {grpc::StatusCode::UNAVAILABLE, "etcdserver: no leader"}; }
  static grpc::Status NoLease() {
    return {grpc::StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
  }
  void EndLocked(int64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    leases_.erase(id);
    for (auto it = keys_.begin(); it != keys_.end();) {
      it = it->second.lease() == id ? keys_.erase(it) : std::next(it);
    }
  }
  void CreateLocked(const etcdserverpb::PutRequest& put) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    etcdserverpb::KeyValue& kv = keys_[put.key()];
    kv.set_key(put.key());
    kv.set_value(put.value());
    kv.set_lease(put.lease());
    kv.set_create_revision(++revision_);
  }
  // Applied before a call's work, and after it.
  bool RefusesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return fault_ == Fault::kRefuses; }
  grpc::Status EndOfCallLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return fault_ == Fault::kDoesItAndFails ? Away() : grpc::Status::OK;
  }

  class Kv : public etcdserverpb::KV::Service {
   public:
    explicit Kv(FakeEtcd* etcd) : etcd_(etcd) {}
    grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                       etcdserverpb::RangeResponse* response) override {
      absl::MutexLock lock(&etcd_->mutex_);
      if (etcd_->RefusesLocked()) return Away();
      const auto found = etcd_->keys_.find(request->key());
      if (found != etcd_->keys_.end()) *response->add_kvs() = found->second;
      return etcd_->EndOfCallLocked();
    }
    grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest* request,
                     etcdserverpb::TxnResponse* response) override {
      absl::MutexLock lock(&etcd_->mutex_);
      if (etcd_->RefusesLocked()) return Away();
      const etcdserverpb::PutRequest& put = request->success(0).request_put();
      const auto found = etcd_->keys_.find(request->compare(0).key());
      if (found != etcd_->keys_.end()) {
        *response->add_responses()->mutable_response_range()->add_kvs() = found->second;
        return etcd_->EndOfCallLocked();
      }
      if (put.lease() != 0 && !etcd_->leases_.count(put.lease())) return NoLease();
      etcd_->CreateLocked(put);
      response->set_succeeded(true);
      response->mutable_header()->set_revision(etcd_->revision_);
      response->add_responses()->mutable_response_put();
      return etcd_->EndOfCallLocked();
    }

   private:
    FakeEtcd* const etcd_;
  };

  class Lease : public etcdserverpb::Lease::Service {
   public:
    explicit Lease(FakeEtcd* etcd) : etcd_(etcd) {}
    grpc::Status LeaseGrant(grpc::ServerContext*, const etcdserverpb::LeaseGrantRequest* request,
                            etcdserverpb::LeaseGrantResponse* response) override {
      absl::MutexLock lock(&etcd_->mutex_);
      if (etcd_->RefusesLocked()) return Away();
      const absl::Duration ttl = absl::Seconds(request->ttl());
      etcd_->leases_[++etcd_->last_lease_] = {ttl, etcd_->now_ + ttl};
      response->set_id(etcd_->last_lease_);
      response->set_ttl(request->ttl());
      return etcd_->EndOfCallLocked();
    }
    grpc::Status LeaseRevoke(grpc::ServerContext*, const etcdserverpb::LeaseRevokeRequest* request,
                             etcdserverpb::LeaseRevokeResponse*) override {
      absl::MutexLock lock(&etcd_->mutex_);
      if (etcd_->RefusesLocked()) return Away();
      etcd_->EndLocked(request->id());
      return etcd_->EndOfCallLocked();
    }
    grpc::Status LeaseKeepAlive(
        grpc::ServerContext*,
        grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                                 etcdserverpb::LeaseKeepAliveRequest>* stream) override {
      etcdserverpb::LeaseKeepAliveRequest request;
      while (stream->Read(&request)) {
        etcdserverpb::LeaseKeepAliveResponse response;
        {
          absl::MutexLock lock(&etcd_->mutex_);
          if (etcd_->RefusesLocked()) return Away();
          response.set_id(request.id());
          const auto found = etcd_->leases_.find(request.id());
          if (found != etcd_->leases_.end()) {
            ++etcd_->renewals_;
            found->second.end = etcd_->now_ + found->second.ttl;
            response.set_ttl(absl::ToInt64Seconds(found->second.ttl));
          }
          if (etcd_->fault_ == Fault::kDoesItAndFails) return Away();
        }
        stream->Write(response);
      }
      return grpc::Status::OK;
    }

   private:
    FakeEtcd* const etcd_;
  };

  absl::Mutex mutex_;
  absl::Duration now_ ABSL_GUARDED_BY(mutex_) = absl::Hours(1);
  Fault fault_ ABSL_GUARDED_BY(mutex_) = Fault::kNone;
  int64_t last_lease_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t revision_ ABSL_GUARDED_BY(mutex_) = 100;
  int renewals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, LeaseState> leases_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, etcdserverpb::KeyValue> keys_ ABSL_GUARDED_BY(mutex_);
  Kv kv_;
  Lease lease_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_ELECTION_FAKE_ETCD_H_
