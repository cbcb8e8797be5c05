// The image of a script's container, on this host: brought once, for all ranks and jobs that name
// it.
//
//   MP_ASSIGN_OR_RETURN(ContainerImage image, BringImage("quay.io/fedora/fedora:43", options));
//
// What podman has already is not fetched again. One process of this user fetches at a time, so that
// the ranks of a host do not fetch the same.
//
// FAILED_PRECONDITION: there is no podman. INVALID_ARGUMENT: trying again would not help, such as
// an image that its registry does not have. UNAVAILABLE: it might, such as a registry that does not
// answer, or `patience` has passed. CANCELLED: `give_up` returned true. Blocks.
#ifndef MILEPOST_WORKER_CONTAINER_CONTAINER_IMAGE_H_
#define MILEPOST_WORKER_CONTAINER_CONTAINER_IMAGE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/container/podman_run.h"

namespace milepost::worker {

// The longest time that it may take. Images have gigabytes.
inline constexpr absl::Duration kImagePatience = absl::Minutes(30);

struct ContainerImage {
  std::string id;
  Variables environment;  // that the image sets
};

struct ImageOptions {
  std::string temporary_files;  // where the lock is
  std::function<bool()> give_up;
  absl::Duration patience = kImagePatience;
};

absl::StatusOr<ContainerImage> BringImage(const std::string& image, const ImageOptions& options);

// Why podman could not fetch it, from what it said. Pure.
absl::Status PullFailure(absl::string_view name, absl::string_view err);

// Of `podman image inspect`. INTERNAL: it is something else. Pure.
absl::StatusOr<ContainerImage> ParseImage(absl::string_view json);

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_CONTAINER_CONTAINER_IMAGE_H_
