#include "coordinator/election/etcd_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kShortestAttempt = absl::Milliseconds(300);
constexpr absl::Duration kPause = absl::Milliseconds(50);

EtcdKey FromProto(const etcdserverpb::KeyValue& kv) {
  return {.value = kv.value(), .lease = kv.lease(), .create_revision = kv.create_revision()};
}

// Another member may do better.
bool IsMembersFault(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsInternal(status) || absl::IsUnknown(status);
}

}  // namespace

EtcdClient::EtcdClient(std::vector<Endpoint> endpoints) {
  MP_CHECK(!endpoints.empty()) << "no etcd endpoint";
  for (const Endpoint& endpoint : endpoints) {
    const auto channel = MakeChannel(endpoint);
    members_.push_back({endpoint.address, etcdserverpb::KV::NewStub(channel),
                        etcdserverpb::Lease::NewStub(channel)});
  }
}

absl::Status EtcdClient::Call(absl::Duration patience, const Attempt& attempt) {
  const absl::Time deadline = absl::Now() + patience;
  const absl::Duration share =
      std::max(kShortestAttempt, patience / static_cast<int64_t>(members_.size()));
  while (true) {
    size_t index = current_;
    const Member& member = members_[index];
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::min(deadline, absl::Now() + share)));
    const absl::Status status =
        Annotate(FromGrpcStatus(attempt(member, &context)), absl::StrCat("etcd ", member.address));
    if (!IsMembersFault(status)) return status;
    current_.compare_exchange_strong(index, (index + 1) % members_.size());
    if (absl::Now() + kPause >= deadline) return status;
    absl::SleepFor(kPause);
  }
}

absl::StatusOr<EtcdLease> EtcdClient::Grant(absl::Duration ttl, absl::Duration patience) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1))));
  etcdserverpb::LeaseGrantResponse response;
  MP_RETURN_IF_ERROR(Call(patience, [&](const Member& member, grpc::ClientContext* context) {
    return member.lease->LeaseGrant(context, request, &response);
  }));
  if (!response.error().empty()) {
    return absl::InternalError(absl::StrCat("etcd grants no lease: ", response.error()));
  }
  return EtcdLease{.id = response.id(), .ttl = absl::Seconds(response.ttl())};
}

absl::StatusOr<absl::Duration> EtcdClient::KeepAlive(int64_t lease, absl::Duration patience) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  MP_RETURN_IF_ERROR(Call(patience, [&](const Member& member, grpc::ClientContext* context) {
    auto stream = member.lease->LeaseKeepAlive(context);
    const bool answered = stream->Write(request) && stream->Read(&response);
    if (answered) context->TryCancel();  // one answer is all that is wanted
    const grpc::Status status = stream->Finish();
    if (answered) return grpc::Status::OK;
    return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "it did not answer") : status;
  }));
  if (response.ttl() <= 0) return absl::NotFoundError("etcd: the lease has expired");
  return absl::Seconds(response.ttl());
}

absl::Status EtcdClient::Revoke(int64_t lease, absl::Duration patience) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseRevokeResponse response;
  return Call(patience, [&](const Member& member, grpc::ClientContext* context) {
    return member.lease->LeaseRevoke(context, request, &response);
  });
}

absl::StatusOr<std::optional<EtcdKey>> EtcdClient::Get(const std::string& key,
                                                       absl::Duration patience) {
  etcdserverpb::RangeRequest request;
  request.set_key(key);
  etcdserverpb::RangeResponse response;
  MP_RETURN_IF_ERROR(Call(patience, [&](const Member& member, grpc::ClientContext* context) {
    return member.kv->Range(context, request, &response);
  }));
  if (response.kvs().empty()) return std::nullopt;
  return FromProto(response.kvs(0));
}

absl::StatusOr<EtcdKey> EtcdClient::Create(const std::string& key, const std::string& value,
                                           int64_t lease, absl::Duration patience) {
  etcdserverpb::TxnRequest request;
  etcdserverpb::Compare* compare = request.add_compare();
  compare->set_result(etcdserverpb::Compare::EQUAL);
  compare->set_target(etcdserverpb::Compare::CREATE);
  compare->set_key(key);
  compare->set_create_revision(0);
  etcdserverpb::PutRequest* put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
  put->set_lease(lease);
  request.add_failure()->mutable_request_range()->set_key(key);
  etcdserverpb::TxnResponse response;
  MP_RETURN_IF_ERROR(Call(patience, [&](const Member& member, grpc::ClientContext* context) {
    return member.kv->Txn(context, request, &response);
  }));
  if (response.succeeded()) {
    return EtcdKey{.value = value, .lease = lease, .create_revision = response.header().revision()};
  }
  if (response.responses().empty() || response.responses(0).response_range().kvs().empty()) {
    return absl::UnavailableError(absl::StrCat("etcd: ", key, " was there and is gone"));
  }
  return FromProto(response.responses(0).response_range().kvs(0));
}

}  // namespace milepost::coordinator
