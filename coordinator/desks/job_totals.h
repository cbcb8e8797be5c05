// What all jobs come to together, kept as they change: no submission looks at all of them.
//
//   totals.Stored(7, record);
//   if (totals.ActiveOf("vision") >= most) ...
//
// Not thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_JOB_TOTALS_H_
#define MILEPOST_COORDINATOR_DESKS_JOB_TOTALS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

// The default one where it names none.
std::string ProjectOfJob(const v1::Job& job);

class JobTotals {
 public:
  // The job's record has been stored: a new one, or instead of what it was.
  void Stored(int64_t number, const v1::JobRecord& record);

  // A job that had ended is there no more.
  void Deleted(int64_t number);

  // Jobs of the project that have not ended.
  size_t ActiveOf(const std::string& project) const;
  // Of all records.
  size_t bytes() const { return bytes_; }
  // Jobs by queue (empty: the default one) and state; none that has none.
  using ByState = std::map<std::pair<std::string, v1::JobState>, size_t>;
  const ByState& by_state() const { return by_state_; }
  // Jobs that hold slots or are about to, and those that are queued.
  size_t running() const { return running_; }
  size_t waiting() const { return waiting_; }

 private:
  struct Counted {
    size_t bytes = 0;
    bool active = false;
    ByState::iterator place;
    bool running = false;
    bool waiting = false;
  };

  ByState::iterator Place(const v1::Job& job);
  void Leave(ByState::iterator place);

  absl::flat_hash_map<int64_t, Counted> jobs_;
  absl::flat_hash_map<std::string, size_t> active_;  // by project; none that has none
  ByState by_state_;
  size_t bytes_ = 0;
  size_t running_ = 0;
  size_t waiting_ = 0;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_JOB_TOTALS_H_
