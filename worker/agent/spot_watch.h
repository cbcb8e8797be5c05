// Notices that the host is about to be taken away, as hosts that are rented by the minute are: by
// a file that appears, or by a command that ends with 0.
//
//   SpotWatch watch({.file = "/run/spot-notice"}, [&](const std::string& why) { ... });
//
// `notice` is called when the file appears or the command ends with 0, and again only after the
// file was gone or the command has ended otherwise: a notice that was taken back and given anew.
// From the watch's thread; the end of the watch waits for it.
#ifndef MILEPOST_WORKER_AGENT_SPOT_WATCH_H_
#define MILEPOST_WORKER_AGENT_SPOT_WATCH_H_

#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::worker {

struct SpotOptions {
  std::string file;     // empty: none is looked for
  std::string command;  // for /bin/sh; empty: none is run
  // Between two looks, and two runs of the command.
  absl::Duration file_interval = absl::Seconds(1);
  absl::Duration command_interval = absl::Seconds(5);
  // After which the command is killed.
  absl::Duration command_patience = absl::Seconds(10);
};

class SpotWatch {
 public:
  using Notice = std::function<void(const std::string& why)>;

  // Without a file and a command nothing is watched, and no thread started.
  SpotWatch(SpotOptions options, Notice notice);
  ~SpotWatch();  // takes as long as the command that runs, at most its patience

 private:
  void Run();
  // Calls `notice_` where the source says so now and did not when it was looked at before.
  void Look(bool says, bool* said, const std::string& why);
  // Nothing: it could not be run, or was killed.
  std::optional<bool> CommandNotices();

  const SpotOptions options_;
  const Notice notice_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool complained_ = false;  // of a command that cannot be run; once
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_SPOT_WATCH_H_
