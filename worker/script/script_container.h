// The container that a script's rank runs in.
//
//   MP_ASSIGN_OR_RETURN(ScriptContainer container, ScriptContainer::Prepare(script, options));
//   MP_ASSIGN_OR_RETURN(ScriptOptions podman, container.Options(std::move(options_on_the_host)));
//   ... ScriptProcess::Start(podman) ...
//   container.Signal(SIGTERM);
//   ContainedEnd end = container.End(how_podman_ended, /*late=*/false);
//
// It dies with this object, and with this process. Not thread-safe, but for ProcessFolder.
#ifndef MILEPOST_WORKER_SCRIPT_SCRIPT_CONTAINER_H_
#define MILEPOST_WORKER_SCRIPT_SCRIPT_CONTAINER_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/spec/container.h"
#include "milepost/v1/job_spec.pb.h"
#include "worker/container/container_control.h"
#include "worker/container/container_image.h"
#include "worker/script/script_process.h"
#include "worker/trainer/failure.h"

namespace milepost::worker {

// For podman to begin a container: the first one of an image may copy all of it.
inline constexpr absl::Duration kContainerTime = absl::Minutes(10);
// And to end after the command has.
inline constexpr absl::Duration kPodmanEnds = absl::Minutes(1);

struct ContainerPlaces {
  std::string name;             // of the container
  std::string init;             // container-init
  std::string package;          // of Python's `milepost`; empty: it is not there
  std::string temporary_files;  // that all of the host's ranks share
  std::string scratch;          // the rank's own, in it
  std::string folder;           // where the command runs
  bool read_only = false;       // the folder is a copy of files that were sent along
  std::function<bool()> give_up;
};

// What is in the container beside the image, for a rank of `script`. Pure.
std::vector<ContainerMount> MountsOf(const v1::ScriptSpec& script, const ContainerPlaces& places);

// How the command ended; with `failure` the container is why, and not the command.
struct ContainedEnd {
  ExitResult result;
  std::optional<TrainerExit> failure;
};

// Of what podman ended with and the report said. `late`: podman was killed, because it had not
// begun the container in kContainerTime. Pure.
ContainedEnd EndOf(const ExitResult& podman, const CommandEnd& command, const std::string& program,
                   bool late);

class ScriptContainer {
 public:
  // Has the image brought to this host. Errors as BringImage's; INVALID_ARGUMENT too: a mount is
  // not there. INTERNAL: something on this host.
  static absl::StatusOr<ScriptContainer> Prepare(const v1::ScriptSpec& script,
                                                 ContainerPlaces places);

  // A variable that the image sets; empty: it does not.
  std::string Variable(absl::string_view name) const;

  // How podman runs what `inside` says, which is as it would be without a container. `gpus`: their
  // UUIDs.
  absl::StatusOr<ScriptOptions> Options(ScriptOptions inside,
                                        const std::vector<std::string>& gpus) const;

  // In place of /proc: where the container's processes are found by the numbers that they know.
  std::string ProcessFolder() const;

  bool Started() const { return control_.End().kind != CommandEnd::kNotTried; }
  // How the command ended is known: podman has nothing to add.
  bool CommandEnded() const {
    const CommandEnd::Kind kind = control_.End().kind;
    return kind == CommandEnd::kEnded || kind == CommandEnd::kCannotStart;
  }
  void Signal(int signal) const { control_.Signal(signal); }
  void Kill() { control_.Kill(); }
  ContainedEnd End(const ExitResult& podman, bool late) const;

 private:
  ScriptContainer(v1::ScriptSpec script, ContainerPlaces places, ContainerImage image,
                  ContainerControl control)
      : script_(std::move(script)),
        places_(std::move(places)),
        image_(std::move(image)),
        control_(std::move(control)) {}

  v1::ScriptSpec script_;
  ContainerPlaces places_;
  ContainerImage image_;
  ContainerControl control_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_SCRIPT_SCRIPT_CONTAINER_H_
