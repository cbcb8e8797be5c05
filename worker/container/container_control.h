// The two files by which a trainer and the first process of its rank's container talk
// (container_init_main.cc): signals go in, and how the command ended comes out.
//
//   MP_ASSIGN_OR_RETURN(ContainerControl control, ContainerControl::Make(scratch));
//   ... podman runs container-init with control.folder() ...
//   control.Signal(SIGTERM);
//   CommandEnd end = control.End();
//
// When this object goes, or the process that has it, everything in the container is killed. Not
// thread-safe. Does not block.
#ifndef MILEPOST_WORKER_CONTAINER_CONTAINER_CONTROL_H_
#define MILEPOST_WORKER_CONTAINER_CONTAINER_CONTROL_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/subprocess.h"
#include "common/unique_fd.h"

namespace milepost::worker {

struct CommandEnd {
  enum Kind {
    kNotTried,     // the container has not begun
    kCannotStart,  // `error` says why: an errno
    kStarted,      // it was never seen to end: everything in the container was killed, or runs
    kEnded         // with `result`
  };
  Kind kind = kNotTried;
  int error = 0;
  ExitResult result;
};

// Of a report's text. Any bytes are safe. Pure.
CommandEnd ParseReport(absl::string_view report);

class ContainerControl {
 public:
  // Makes a folder in `scratch`, which only this user may use. Errors name the path.
  static absl::StatusOr<ContainerControl> Make(const std::string& scratch);

  const std::string& folder() const { return folder_; }
  std::string pid_file() const { return folder_ + "/pid"; }
  // Of the container's first process, as podman tells it. 0: it does not run yet.
  pid_t pid() const;

  // For the command, also before it runs.
  void Signal(int signal) const;
  // Everything in the container is killed.
  void Kill() { orders_.Reset(); }
  CommandEnd End() const;

 private:
  ContainerControl(std::string folder, UniqueFd orders)
      : folder_(std::move(folder)), orders_(std::move(orders)) {}

  std::string folder_;
  UniqueFd orders_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_CONTAINER_CONTAINER_CONTROL_H_
