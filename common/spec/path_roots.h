// Folders in which a host's operator lets jobs write and read. A job names paths, anybody who may
// submit jobs chooses them, and ranks have the rights of the worker's user.
//
//   MP_ASSIGN_OR_RETURN(PathRoots roots, MakePathRoots({"/scratch"}, /*data=*/{}));  // the worker
//   MP_RETURN_IF_ERROR(CheckPaths(spec, roots));  // each rank, before it touches one
//
// Both functions block on the file system.
#ifndef MILEPOST_COMMON_SPEC_PATH_ROOTS_H_
#define MILEPOST_COMMON_SPEC_PATH_ROOTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

// Absolute paths without links. Empty: every path is allowed.
struct PathRoots {
  std::vector<std::string> write;
  std::vector<std::string> data;  // in addition, `write` may be read too
};

// Resolves folders, which must exist and be absolute. INVALID_ARGUMENT names the flag and the
// folder.
absl::StatusOr<PathRoots> MakePathRoots(const std::vector<std::string>& write,
                                        const std::vector<std::string>& data);

// INVALID_ARGUMENT names the first field whose path lies outside, after links and ".." are
// followed. Of a path that does not exist yet, the existing part counts; a dangling link is
// refused. Two kinds of links are not seen: links below a named folder or pattern, and links made
// later. So only the worker's user should be able to write within the roots.
absl::Status CheckPaths(const v1::JobSpec& spec, const PathRoots& roots);

}  // namespace milepost

#endif  // MILEPOST_COMMON_SPEC_PATH_ROOTS_H_
