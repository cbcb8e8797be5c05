// Ends calls that go on although nobody may: whose caller is not let in any more, and which do not
// look for themselves, since they wait for a reader or a sender that does nothing; and those whose
// reader takes no message for long.
//
//   CallWatch watch;
//   const uint64_t id = watch.Begin({.holds = ..., .cancel = ...});
//   watch.Writing(id, SteadyNow());      // and Written(id)
//   watch.End(id);
//
// A thread calls Sweep now and then, unless it is told to have none. Thread-safe; blocks for no
// longer than `holds` and `cancel` of all calls take.
#ifndef MILEPOST_COORDINATOR_RPC_CALL_WATCH_H_
#define MILEPOST_COORDINATOR_RPC_CALL_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

class CallWatch {
 public:
  static constexpr absl::Duration kEvery = absl::Milliseconds(500);
  // A call that looks for itself ends before, and says why.
  static constexpr absl::Duration kGrace = absl::Seconds(1);
  static constexpr absl::Duration kLongestWrite = absl::Seconds(30);

  struct Call {
    std::function<bool()> holds;
    std::function<void()> cancel;
  };

  explicit CallWatch(bool with_thread = true);
  ~CallWatch();

  uint64_t Begin(Call call);
  // Neither of its functions is called when this has returned.
  void End(uint64_t id);
  // A message of it waits for its reader.
  void Writing(uint64_t id, absl::Time now);
  void Written(uint64_t id);

  void Sweep(absl::Time now);

 private:
  struct Watched {
    Call call;
    absl::Time writing = absl::InfiniteFuture();  // since
    absl::Time over = absl::InfiniteFuture();     // since
    bool cancelled = false;
  };
  void Run();

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Watched> calls_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_CALL_WATCH_H_
