// Follows one job on a thread of its own and keeps only its newest state.
//
//   JobWatcher watcher(connection, "jobs/7");
//   poll(watcher.fd() ...);  std::optional<v1::Job> job = watcher.Take();
//
// fd() becomes readable when there is news, or when watching has ended. One thread must make all
// calls of Take, ended and the destructor. A lost coordinator is tried again for the connection's
// `reach`.
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
  // The newest state since the last Take. Afterwards fd() is no longer readable.
  std::optional<v1::Job> Take();
  // How watching ended; nullopt: it goes on. OK: the job is terminal.
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
