// The simulated clock, and what is to happen when. Events of one moment happen in the order in
// which they were asked for.
//
//   Events events(absl::FromUnixSeconds(1'000'000));
//   events.After(absl::Seconds(3), [&] { ... });
//   while (events.RunNext(end)) {}
#ifndef MILEPOST_TESTS_SIM_EVENTS_H_
#define MILEPOST_TESTS_SIM_EVENTS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace milepost::sim {

class Events {
 public:
  using Action = absl::AnyInvocable<void()>;

  explicit Events(absl::Time start) : now_(start) {}

  absl::Time now() const { return now_; }
  int64_t count() const { return count_; }

  void At(absl::Time time, Action action) {
    heap_.push_back({std::max(time, now_), next_++, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), Later);
  }
  void After(absl::Duration delay, Action action) { At(now_ + delay, std::move(action)); }

  // False when nothing happens before `end`; it is `end` then.
  bool RunNext(absl::Time end) {
    if (heap_.empty() || heap_.front().time >= end) {
      now_ = std::max(now_, end);
      return false;
    }
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    now_ = entry.time;
    ++count_;
    entry.action();
    return true;
  }

 private:
  struct Entry {
    absl::Time time;
    uint64_t order = 0;
    Action action;
  };
  static bool Later(const Entry& a, const Entry& b) {
    return std::pair(a.time, a.order) > std::pair(b.time, b.order);
  }

  absl::Time now_;
  std::vector<Entry> heap_;
  uint64_t next_ = 0;
  int64_t count_ = 0;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_EVENTS_H_
