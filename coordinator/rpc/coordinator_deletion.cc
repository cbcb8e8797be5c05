// Checkpoints that somebody deletes, and jobs with all that is theirs.
#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/rpc/coordinator.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/log_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kEmptyingInterval = absl::Minutes(1);

}  // namespace

absl::Status Coordinator::DeleteCheckpoint(const std::string& name, bool purge) {
  CheckpointStore& checkpoints = store_->checkpoints();
  MP_ASSIGN_OR_RETURN(const v1::Checkpoint owner, checkpoints.Owner(name));
  absl::ReaderMutexLock lock(&mutex_);
  if (AwaitedLocked().contains(name)) {
    return Refusal(v1::ERROR_REASON_CHECKPOINT_AWAITED, name,
                   absl::StrCat(name,
                                " is what a job is to begin with that has no checkpoint of "
                                "its own yet"));
  }
  const v1::JobRecord* job = state_.FindJob(JobNumber(owner.job()));
  const bool goes_on = job != nullptr && !IsTerminal(job->job().state());
  return purge ? checkpoints.Delete(name, /*keep_newest=*/goes_on)
               : checkpoints.Bin(name, /*keep_newest=*/goes_on, clock_->Now());
}

void Coordinator::EmptyBin() {
  const absl::Time now = SteadyNow();
  if (now < next_emptying_) return;
  next_emptying_ = now + kEmptyingInterval;
  const absl::Status status = store_->checkpoints().EmptyBin(clock_->Now());
  if (status.ok()) return;
  spdlog::warn("deleted checkpoints cannot be removed: {}", std::string(status.message()));
}

absl::StatusOr<v1::DeleteJobResponse> Coordinator::DeleteJob(const std::string& name) {
  absl::StatusOr<std::vector<v1::Checkpoint>> claimed = std::vector<v1::Checkpoint>();
  absl::Status refused;
  Entry entry;
  // Claimed are only the checkpoints of a job that may go: those of others may be read at any time.
  // What is refused here stays so, though events before it in the batch may let it go by then:
  // nobody would have claimed its checkpoints.
  entry.event = [&]() -> std::optional<Event> {
    mutex_.AssertReaderHeld();
    JobDeleted event = {.job = name};
    for (const bool in_bin : {false, true}) {
      for (const v1::Checkpoint& checkpoint : store_->checkpoints().List(name, in_bin)) {
        event.checkpoints.insert(checkpoint.name());
      }
    }
    refused = coordinator::Decide(state_, event, clock_->Now(), Values().config).status;
    if (!refused.ok()) return std::nullopt;
    claimed = store_->checkpoints().ClaimJob(name);
    return claimed.ok() ? std::optional<Event>(event) : std::nullopt;
  };
  const absl::Status deleted = Do(std::move(entry)).status();
  if (claimed.ok() && !deleted.ok() && !claimed->empty()) store_->checkpoints().ReleaseJob(name);
  MP_RETURN_IF_ERROR(deleted);
  MP_RETURN_IF_ERROR(refused);
  MP_RETURN_IF_ERROR(claimed.status());
  v1::DeleteJobResponse response;
  response.set_checkpoints(static_cast<int64_t>(claimed->size()));
  for (const v1::Checkpoint& checkpoint : *claimed) {
    response.set_bytes(response.bytes() + checkpoint.bytes());
  }
  spdlog::info("{} is deleted, with {} checkpoints of {} bytes", name, response.checkpoints(),
               response.bytes());
  return response;
}

void Coordinator::ForgetLocked(int64_t number) {
  totals_.Deleted(number);
  attempts_.erase(number);
  versions_.erase(number);
}

std::string Coordinator::AnyJobOfArray(const std::string& array) {
  absl::ReaderMutexLock lock(&mutex_);
  const v1::JobRecord* record = state_.FindOfArray(array);
  if (record != nullptr) return record->job().name();
  const int64_t number = ArrayNumber(array);
  return number == 0 ? array : JobName(number);
}

}  // namespace milepost::coordinator
