// What a spec says of the container that a script's ranks run in.
//
//   MP_ASSIGN_OR_RETURN(ContainerMount mount, ParseContainerMount("/data:/mnt/data:ro"));
//
// Pure and thread-safe.
#ifndef MILEPOST_COMMON_SPEC_CONTAINER_H_
#define MILEPOST_COMMON_SPEC_CONTAINER_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace milepost {

// A file or folder of the host, and where it is in the container.
struct ContainerMount {
  std::string source;
  std::string target;
  bool read_only = false;

  friend bool operator==(const ContainerMount&, const ContainerMount&) = default;
};

// "/data", "/data:ro", "/data:/mnt/data", "/data:/mnt/data:ro". Without "ro" it may be written.
// Both paths are absolute then, without "..", and end with no slash. INVALID_ARGUMENT says what is
// wrong.
absl::StatusOr<ContainerMount> ParseContainerMount(absl::string_view text);

// "/images/a.tar" of "oci-archive:/images/a.tar": an image that is a file or folder of the host.
// Empty: it comes from a registry, or is in podman's own store.
absl::string_view PathOfImage(absl::string_view image);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_CONTAINER_H_
