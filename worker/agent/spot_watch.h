// Notices that the host is about to be taken away, as a spot instance is. The notice is a file that
// appears, or a command that ends with 0.
//
//   SpotWatch watch({.file = "/run/spot-notice"}, [&](const std::string& why) { ... });
//
// `notice` is called when the file appears or the command ends with 0. It is called again only
// after the file was gone, or the command ended differently: the notice was then withdrawn and
// given anew. Calls come from the watch's thread. The destructor waits for a running call.
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
  std::string file;     // empty: no file is watched
  std::string command;  // for /bin/sh; empty: no command is run
  // The time between two looks at the file, and between two runs of the command.
  absl::Duration file_interval = absl::Seconds(1);
  absl::Duration command_interval = absl::Seconds(5);
  // The command is killed after this time.
  absl::Duration command_patience = absl::Seconds(10);
};

class SpotWatch {
 public:
  using Notice = std::function<void(const std::string& why)>;

  // With neither file nor command it watches nothing and starts no thread.
  SpotWatch(SpotOptions options, Notice notice);
  ~SpotWatch();  // waits for a running command, at most its patience

 private:
  void Run();
  // Calls `notice_` when the source reports a notice now and did not at the look before.
  void Look(bool says, bool* said, const std::string& why);
  // Nullopt: the command could not be run, or was killed.
  std::optional<bool> CommandNotices();

  const SpotOptions options_;
  const Notice notice_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool complained_ = false;  // of a command that cannot be run: only once
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_SPOT_WATCH_H_
