// What podman is told, to run the command of a script's rank in an image.
//
//   MP_ASSIGN_OR_RETURN(PodmanRun podman, PodmanRunOf(run));
//   spawn.argv = podman.arguments;  spawn.env = podman.environment;
//
// The container shares the host's network, shared memory and host name, and not its processes. Its
// processes stay in the control group that podman is started in. Pure and thread-safe.
#ifndef MILEPOST_WORKER_CONTAINER_PODMAN_RUN_H_
#define MILEPOST_WORKER_CONTAINER_PODMAN_RUN_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/spec/container.h"

namespace milepost::worker {

using Variables = std::vector<std::pair<std::string, std::string>>;

struct ContainerRun {
  std::string name;    // of the container: letters, digits, '-' and '.'
  std::string image;   // as podman knows it; it is there already
  std::string init;    // container-init, on the host
  std::string folder;  // of ContainerControl; it is below a mount
  std::string pid_file;
  std::vector<std::string> command;
  std::string work_folder;             // where the command runs
  Variables environment;               // added to the image's; the last of a name counts
  std::vector<ContainerMount> mounts;  // the last of a target counts
  std::vector<std::string> gpus;       // UUIDs, as CDI names them
  uid_t user = 0;                      // that podman runs as, and the command
  gid_t group = 0;
  // As the worker has them: podman would raise or lower them.
  uint64_t open_files = 0, most_open_files = 0;  // the soft and the hard limit
  uint64_t most_processes = 0;
};

// A call of podman: what all of them begin with, and `more`. Limits are those of the rank's control
// group, so no container is in a group of its own. Of podman's runtimes only crun can do that.
std::vector<std::string> PodmanArguments(const std::vector<std::string>& more);

// What a process of podman gets.
struct PodmanRun {
  std::vector<std::string> arguments;  // "podman" first
  Variables environment;
};

// INVALID_ARGUMENT: a path has a character that podman takes for the end of the path.
absl::StatusOr<PodmanRun> PodmanRunOf(const ContainerRun& run);

// Whether podman itself, or what it starts, heeds a variable. The values of others are passed to a
// container through podman's environment: arguments are for all users of the host to see.
bool IsPodmansOwn(absl::string_view variable);

// Kills and removes containers, also those that are not there.
std::vector<std::string> PodmanRemoveArguments(const std::vector<std::string>& names);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_CONTAINER_PODMAN_RUN_H_
