// Queues: made, changed, deleted.
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "coordinator/core/decide.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {
namespace {

absl::Status CheckEtag(const std::string& name, const std::string& given, int64_t version) {
  if (given.empty() || given == EtagOf(version)) return absl::OkStatus();
  return EtagMismatch(name, given, version);
}

}  // namespace

void Transition::Put(const QueuePut& event) {
  const std::string& name = event.queue.name();
  const std::string id = QueueId(name);
  const v1::QueueRecord* known = Queue(id);
  const bool exists = known != nullptr || id == kDefaultQueue;
  if (event.create && exists) {
    return Refuse(Refusal(v1::ERROR_REASON_QUEUE_EXISTS, name,
                          absl::StrCat("there is a queue '", id, "' already")));
  }
  if (!event.create && !exists && !event.allow_missing) {
    return Refuse(NoSuchQueue(id));
  }
  const int64_t version = known == nullptr ? 0 : known->version();
  absl::Status current = CheckEtag(name, event.queue.etag(), version);
  if (!current.ok()) return Refuse(std::move(current));
  v1::QueueRecord record;
  *record.mutable_queue() = event.queue;
  record.mutable_queue()->clear_usage();
  record.mutable_queue()->clear_etag();
  *record.mutable_queue()->mutable_create_time() =
      known == nullptr ? ToProto(now_) : known->queue().create_time();
  record.set_version(version + 1);
  outcome_.queues[id] = std::move(record);
}

absl::Status Transition::CheckEmpty(const std::string& queue) const {
  const std::string id = QueueId(queue);
  std::set<int64_t> active = state_.active();
  for (const auto& [number, record] : outcome_.jobs) active.insert(number);
  for (const int64_t number : active) {
    const v1::Job& job = Job(number)->job();
    if (job.spec().scheduling().queue() != id || IsTerminal(job.state())) continue;
    return Refusal(v1::ERROR_REASON_QUEUE_NOT_EMPTY, queue,
                   absl::StrCat(JobName(number), " is in queue ", id,
                                " and has not ended: cancel it, or move ",
                                "it with `milepost job update ", JobName(number), " --queue ...`"));
  }
  return absl::OkStatus();
}

void Transition::Delete(const QueueDeleted& event) {
  const std::string id = QueueId(event.name);
  const v1::QueueRecord* known = Queue(id);
  if (id == kDefaultQueue) {
    return Refuse(
        Refusal(v1::ERROR_REASON_QUEUE_PERMANENT, event.name, "the default queue is always there"));
  }
  if (known == nullptr) {
    return Refuse(NoSuchQueue(id));
  }
  absl::Status current = CheckEtag(event.name, event.etag, known->version());
  if (!current.ok()) return Refuse(std::move(current));
  if (absl::Status empty = CheckEmpty(event.name); !empty.ok()) return Refuse(std::move(empty));
  outcome_.queues[id] = std::nullopt;
}

}  // namespace milepost::coordinator
