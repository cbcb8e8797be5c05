// Follows what a job's ranks write, from now on, on a thread of its own.
//
//   LogFollower follower(connection, "jobs/7");
//   poll(follower.fd() ...);  for (const v1::LogLine& line : follower.Take()) ...
//
// fd() becomes readable when there are lines, or when following has ended. At most kMostLines wait
// to be taken; then the stream waits. One thread must make all calls of Take, ended and the
// destructor. A lost coordinator is tried again for the connection's `reach`.
#ifndef MILEPOST_CLIENT_CLI_LOG_FOLLOWER_H_
#define MILEPOST_CLIENT_CLI_LOG_FOLLOWER_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "client/api/clients.h"
#include "common/unique_fd.h"

namespace milepost::client {

class LogFollower {
 public:
  static constexpr size_t kMostLines = 1000;

  // Lines from before `since` are left out.
  LogFollower(std::shared_ptr<Connection> connection, const std::string& job, absl::Time since);
  ~LogFollower();  // cancels the connection

  int fd() const { return fd_.get(); }
  // What came since the last Take. Afterwards fd() is no longer readable.
  std::vector<v1::LogLine> Take();
  // True once no more lines will come: the job is terminal, or its coordinator stayed away.
  bool ended();

 private:
  void NotifyLocked();

  std::shared_ptr<Connection> connection_;
  UniqueFd fd_;  // eventfd
  std::mutex mutex_;
  std::condition_variable taken_;
  std::vector<v1::LogLine> lines_;
  bool ended_ = false;
  bool leaving_ = false;
  std::thread thread_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_LOG_FOLLOWER_H_
