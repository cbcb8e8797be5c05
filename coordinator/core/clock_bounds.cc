#include "coordinator/core/clock_bounds.h"

#include <algorithm>

#include "common/incarnation.h"
#include "common/proto_time.h"

namespace milepost::coordinator {
namespace {

// True when it was set and out of bounds.
bool Bound(absl::Time least, absl::Time most, google::protobuf::Timestamp* time) {
  const absl::Time bounded = std::clamp(FromProto(*time), least, most);
  if (!IsSet(*time) || bounded == FromProto(*time)) return false;
  *time = ToProto(bounded);
  return true;
}

}  // namespace

bool BoundTimes(absl::Time now, const Config& config, v1::JobRecord* record) {
  const absl::Time ever = absl::InfinitePast();
  bool changed = false;
  if (record->has_stop_deadline()) {
    const absl::Duration longest =
        std::max({config.graceful_stop, config.abort_stop, config.lease + config.kill_wait});
    // Those that are to be killed may hear of it only now.
    const absl::Duration least =
        AllKilled(*record) ? config.lease + config.kill_wait : config.lease;
    changed |= Bound(now + least, now + std::max(least, longest), record->mutable_stop_deadline());
  }
  if (record->has_resize_after()) {
    changed |= Bound(ever, now + config.resize_interval, record->mutable_resize_after());
  }
  if (record->has_attempt_start_time()) {
    changed |= Bound(ever, now, record->mutable_attempt_start_time());
  }
  if (record->job().has_next_attempt_time()) {
    changed |=
        Bound(ever, now + config.backoff_cap, record->mutable_job()->mutable_next_attempt_time());
  }
  return changed;
}

bool BoundTimes(absl::Time now, v1::WorkerRecord* record) {
  const absl::Time ever = absl::InfinitePast();
  bool changed = false;
  if (record->worker().incarnation() > kNoIncarnation) {
    record->mutable_worker()->set_incarnation(kMostIncarnation);
    changed = true;
  }
  if (record->worker().state() == v1::WORKER_STATE_DOWN) {
    changed |= Bound(ever, now, record->mutable_worker()->mutable_lease_expire_time());
  }
  for (v1::HostFailure& failure : *record->mutable_failures()) {
    changed |= Bound(ever, now, failure.mutable_time());
  }
  if (record->worker().has_exclusion()) {
    changed |= Bound(ever, now + kLongestCheckBackoff,
                     record->mutable_worker()->mutable_exclusion()->mutable_next_check_time());
  }
  if (!record->worker().has_drain()) return changed;
  v1::Drain* drain = record->mutable_worker()->mutable_drain();
  if (!IsSet(drain->request_time()) || !IsSet(drain->deadline())) return changed;
  const absl::Duration given = std::max(
      FromProto(drain->deadline()) - FromProto(drain->request_time()), absl::ZeroDuration());
  changed |= Bound(ever, now + given, drain->mutable_deadline());
  changed |= Bound(ever, now, drain->mutable_request_time());
  return changed;
}

}  // namespace milepost::coordinator
