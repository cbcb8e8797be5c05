// Waiting for a job, and leaving it: Ctrl-C detaches a command, and the job goes on.
//
//   Detacher detacher;  // before the connection
//   ...
//   detacher.Watch(access.connection());
//   return WaitFor(global, access, "jobs/7", absl::InfiniteFuture(), detacher);
//
// There may be only one Detacher at a time (client/cli/interrupt.h).
#ifndef MILEPOST_CLIENT_CLI_JOB_WAITING_H_
#define MILEPOST_CLIENT_CLI_JOB_WAITING_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "client/api/clients.h"
#include "client/cli/access.h"
#include "client/cli/interrupt.h"

namespace milepost::client {

// Cancels a connection that may not be open yet when the signal comes.
class Detacher {
 public:
  Detacher() : guard_([this] { Cancel(); }) {}
  void Watch(std::shared_ptr<Connection> connection) {
    std::lock_guard lock(mutex_);
    connection_ = std::move(connection);
    if (guard_.interrupted()) connection_->Cancel();
  }
  bool detached() const { return guard_.interrupted(); }
  // False when the signal comes before.
  bool SleepFor(absl::Duration time) {
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, absl::ToChronoNanoseconds(time), [&] { return guard_.interrupted(); });
    return !guard_.interrupted();
  }

 private:
  void Cancel() {
    std::lock_guard lock(mutex_);
    if (connection_) connection_->Cancel();
    woken_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable woken_;
  std::shared_ptr<Connection> connection_;
  InterruptGuard guard_;
};

// Says on stderr how the job goes until it has ended, and prints it. Blocks. Returns the exit code:
// the job's (ExitCodeOfJob), also when `deadline` comes first, or kExitInterrupted.
int WaitFor(const GlobalOptions& global, const Access& access, const std::string& name,
            absl::Time deadline, const Detacher& detacher);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_JOB_WAITING_H_
