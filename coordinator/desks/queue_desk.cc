#include "coordinator/desks/queue_desk.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/spec/scheduling.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMaxDescriptionBytes = 1024;
constexpr int kMaxQuota = 1 << 20;

// The first thing that is wrong with it by itself.
absl::Status CheckQueue(const v1::Queue& queue) {
  if (!IsQueueId(QueueId(queue.name()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "queue.name: expected queues/ID, ID of 1 to 63 letters, digits, '-', '_' and '.', not '",
        queue.name().substr(0, 100), "'"));
  }
  if (queue.has_weight() && !(queue.weight() > 0 && queue.weight() <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue.weight: must be above 0, at most 10^6, not ", queue.weight()));
  }
  if (queue.description().size() > kMaxDescriptionBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue.description: at most ", kMaxDescriptionBytes, " bytes"));
  }
  std::set<v1::DeviceKind> seen;
  for (const v1::SlotQuota& quota : queue.quotas()) {
    if (!v1::DeviceKind_IsValid(quota.device()) || quota.device() == 0) {
      return absl::InvalidArgumentError("queue.quotas.device: expected cpu or cuda");
    }
    if (!seen.insert(quota.device()).second) {
      return absl::InvalidArgumentError("queue.quotas: one for each kind of device at most");
    }
    if (quota.guaranteed() < 0 || quota.guaranteed() > kMaxQuota) {
      return absl::InvalidArgumentError(absl::StrCat("queue.quotas.guaranteed: must be 0 to ",
                                                     kMaxQuota, ", not ", quota.guaranteed()));
    }
    if (quota.has_limit() && (quota.limit() < quota.guaranteed() || quota.limit() > kMaxQuota)) {
      return absl::InvalidArgumentError(
          absl::StrCat("queue.quotas.limit: must be what is guaranteed (", quota.guaranteed(),
                       ") to ", kMaxQuota, ", not ", quota.limit()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

v1::Queue QueueDesk::DescribeLocked(const std::string& id) {
  v1::Queue queue;
  if (const v1::QueueRecord* record = state_.FindQueue(id); record != nullptr) {
    queue = record->queue();
    queue.set_etag(EtagOf(record->version()));
  } else {
    queue.set_name(QueueName(id));
    queue.set_etag(EtagOf(0));
  }
  if (!queue.has_weight()) queue.set_weight(1);
  std::map<v1::DeviceKind, v1::QueueUsage> usage;
  for (const int64_t number : state_.active()) {
    const v1::JobRecord& record = *state_.FindJob(number);
    const v1::JobSpec& spec = record.job().spec();
    const std::string& of = spec.scheduling().queue();
    if ((of.empty() ? kDefaultQueue : of) != id) continue;
    v1::QueueUsage& kind = usage[spec.resources().device()];
    int slots = 0;
    for (const v1::RankRecord& rank : record.ranks()) slots += rank.gone() ? 0 : 1;
    kind.set_used_slots(kind.used_slots() + slots);
    if (!record.ranks().empty()) {
      kind.set_running_jobs(kind.running_jobs() + 1);
    } else if (record.job().state() != v1::JOB_STATE_SUSPENDED) {
      kind.set_waiting_jobs(kind.waiting_jobs() + 1);
    }
  }
  for (auto& [device, kind] : usage) {
    kind.set_device(device);
    *queue.add_usage() = std::move(kind);
  }
  return queue;
}

absl::StatusOr<v1::Queue> QueueDesk::Get(const std::string& name) {
  absl::ReaderMutexLock lock(&mutex_);
  const std::string id = QueueId(name);
  if (id != kDefaultQueue && state_.FindQueue(id) == nullptr) {
    return NoSuchQueue(name);
  }
  return DescribeLocked(id);
}

std::vector<v1::Queue> QueueDesk::List(const std::string& after, int limit) {
  absl::ReaderMutexLock lock(&mutex_);
  std::set<std::string> ids = {kDefaultQueue};
  for (const auto& [id, record] : state_.queues()) ids.insert(id);
  std::vector<v1::Queue> queues;
  for (auto id = ids.upper_bound(QueueId(after));
       id != ids.end() && static_cast<int>(queues.size()) < limit; ++id) {
    queues.push_back(DescribeLocked(*id));
  }
  return queues;
}

absl::StatusOr<v1::Queue> QueueDesk::Put(const v1::Queue& queue, bool create, bool allow_missing,
                                         bool validate_only) {
  MP_RETURN_IF_ERROR(CheckQueue(queue));
  QueuePut event = {queue, create, allow_missing};
  if (validate_only) {
    absl::ReaderMutexLock lock(&mutex_);
    MP_RETURN_IF_ERROR(Decide(state_, event, clock_->Now(), Values().config).status);
    return queue;
  }
  MP_RETURN_IF_ERROR(Do(std::move(event)).status());
  return Get(queue.name());
}

absl::Status QueueDesk::Delete(const v1::DeleteQueueRequest& request) {
  return Do(QueueDeleted{request.name(), request.etag()}).status();
}

}  // namespace milepost::coordinator
