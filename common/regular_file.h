// Reads a small file that somebody named: completely, bounded, and without waiting for a writer.
//
//   MP_ASSIGN_OR_RETURN(std::string text, ReadRegularFile(path, 1 << 20));
//
// A FIFO or a device of that name would block a plain open() or read() for ever. Here it is an
// error. Symbolic links are followed. Blocks as long as the disk does. Thread-safe.
//
// NOT_FOUND: there is no such file, or a link leads nowhere. PERMISSION_DENIED: this process may
// not read it. INVALID_ARGUMENT: it is not a regular file, links form a circle, or it is longer
// than `max_bytes`. Otherwise the error that errno gives. Messages begin with the path.
#ifndef MILEPOST_COMMON_REGULAR_FILE_H_
#define MILEPOST_COMMON_REGULAR_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace milepost {

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

// Only opens the file for reading, for callers that map it or read it in parts. The errors are the
// same, except that for the length.
absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path);

}  // namespace milepost

#endif  // MILEPOST_COMMON_REGULAR_FILE_H_
