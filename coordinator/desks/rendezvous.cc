#include "coordinator/desks/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {

namespace {
constexpr absl::Duration kLookForKey = absl::Milliseconds(200);
}  // namespace

absl::Status RendezvousTable::Load() {
  MP_ASSIGN_OR_RETURN(std::vector<RendezvousKey> keys, store_->LoadKeys());
  absl::MutexLock lock(&mutex_);
  for (RendezvousKey& key : keys) {
    Attempt& attempt = attempts_[{key.job, key.generation}];
    attempt.bytes += key.key.size() + key.value.size();
    attempt.keys[std::move(key.key)] = {std::move(key.value), 0, /*published=*/true};
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> RendezvousTable::Put(int64_t job, int64_t generation,
                                              const std::string& key, const std::string& value) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key: must have 1 to ", kMaxKeyBytes, " bytes, not ", key.size()));
  }
  if (value.size() > kMaxValueBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("value: at most ", kMaxValueBytes, " bytes, not ", value.size()));
  }
  absl::MutexLock lock(&mutex_);
  Attempt& attempt = attempts_[{job, generation}];
  const auto known = attempt.keys.find(key);  // of a call that is made again
  const size_t known_bytes =
      known == attempt.keys.end() ? 0 : key.size() + known->second.bytes.size();
  const size_t bytes = attempt.bytes - known_bytes + key.size() + value.size();
  if (bytes > kMaxBytesPerAttempt) {
    return Refusal(v1::ERROR_REASON_RENDEZVOUS_FULL, JobName(job),
                   absl::StrCat("the attempt's keys exceed ", kMaxBytesPerAttempt, " bytes"));
  }
  MP_RETURN_IF_ERROR(store_->PutKey({job, generation, key, value}));
  attempt.bytes = bytes;
  attempt.keys[key] = {value, ++puts_, /*published=*/false};
  return puts_;
}

absl::Status RendezvousTable::Publish(int64_t job, int64_t generation, const std::string& key,
                                      uint64_t put) {
  MP_RETURN_IF_ERROR(store_->SyncKeys());
  absl::MutexLock lock(&mutex_);
  const auto attempt = attempts_.find({job, generation});
  if (attempt == attempts_.end()) return absl::OkStatus();  // over: nobody looks for it
  const auto found = attempt->second.keys.find(key);
  if (found == attempt->second.keys.end() || found->second.put != put) return absl::OkStatus();
  found->second.published = true;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> RendezvousTable::Get(int64_t job, int64_t generation,
                                                 const std::string& key, absl::Time deadline,
                                                 const std::function<absl::Status()>& check) {
  while (true) {
    MP_RETURN_IF_ERROR(check());  // without the lock: it may take others
    absl::MutexLock lock(&mutex_);
    const absl::Time until = std::min(deadline, absl::Now() + kLookForKey);
    do {
      auto attempt = attempts_.find({job, generation});
      if (attempt != attempts_.end()) {
        auto found = attempt->second.keys.find(key);
        const bool there = found != attempt->second.keys.end() && found->second.published;
        if (there) return found->second.bytes;
      }
    } while (!changed_.WaitWithDeadline(&mutex_, until));
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("nobody has put the key '", key, "' of ",
                                                      "jobs/", job, " generation ", generation));
    }
  }
}

void RendezvousTable::Drop(int64_t job) {
  absl::MutexLock lock(&mutex_);
  attempts_.erase(attempts_.lower_bound({job, 0}), attempts_.lower_bound({job + 1, 0}));
}

}  // namespace milepost::coordinator
