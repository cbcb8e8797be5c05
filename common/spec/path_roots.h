// Folders that a host's operator lets jobs write to and read from. Whoever may submit a job names
// paths in it, and ranks have the rights of the worker's user.
//
//   MP_ASSIGN_OR_RETURN(PathRoots roots, MakePathRoots({"/scratch"}, /*data=*/{}));  // the worker
//   MP_RETURN_IF_ERROR(CheckPaths(spec, roots));  // each rank, before it touches one
//
// Both look at the file system, and wait for it.
#ifndef MILEPOST_COMMON_SPEC_PATH_ROOTS_H_
#define MILEPOST_COMMON_SPEC_PATH_ROOTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

// Absolute, without links. Empty: everywhere.
struct PathRoots {
  std::vector<std::string> write;
  std::vector<std::string> data;  // what is in `write` may be read too
};

// Of folders that are there, by absolute paths. INVALID_ARGUMENT names the flag and the folder.
absl::StatusOr<PathRoots> MakePathRoots(const std::vector<std::string>& write,
                                        const std::vector<std::string>& data);

// INVALID_ARGUMENT: the first field whose path lies elsewhere, once links and ".." are followed. Of
// a path that is not there yet what is there of it counts; a link that leads nowhere is refused.
// Not seen are links below a folder or a pattern that is named, and those that somebody makes
// afterwards: only the worker's user should be able to write within the roots.
absl::Status CheckPaths(const v1::JobSpec& spec, const PathRoots& roots);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_PATH_ROOTS_H_
