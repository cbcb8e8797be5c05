// Follows one job on a thread of its own and keeps only the newest state of it.
//
//   JobWatcher watcher(connection, "jobs/7");
//   poll(watcher.fd() ...);  std::optional<v1::Job> job = watcher.Take();
//
// fd() is readable when there is something new, or watching has ended. Take, ended and the
// destructor belong to one thread. A lost coordinator is tried again for as long as the
// connection's `reach` says.
#ifndef MILEPOST_CLIENT_CLI_JOB_WATCHER_H_
#define MILEPOST_CLIENT_CLI_JOB_WATCHER_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "client/api/clients.h"
#include "common/unique_fd.h"

namespace milepost::client {

class JobWatcher {
 public:
  JobWatcher(std::shared_ptr<Connection> connection, const std::string& job);
  ~JobWatcher();  // cancels the connection

  int fd() const { return fd_.get(); }
  // The newest state since the last Take, and fd() is quiet again.
  std::optional<v1::Job> Take();
  // How watching ended: OK when the job is terminal.
  std::optional<absl::Status> ended();

 private:
  void Notify();

  std::shared_ptr<Connection> connection_;
  UniqueFd fd_;  // eventfd
  std::mutex mutex_;
  std::optional<v1::Job> latest_;
  std::optional<absl::Status> ended_;
  std::thread thread_;
};

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_JOB_WATCHER_H_
