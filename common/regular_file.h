// Reads a small file that somebody named: whole, bounded, and without ever waiting.
//
//   MP_ASSIGN_OR_RETURN(std::string text, ReadRegularFile(path, 1 << 20));
//
// A FIFO or a device under that name would hold a plain open() or read() for ever; here it is an
// error. Symbolic links are followed. Blocks for as long as the disk does. Thread-safe.
//
// NOT_FOUND: no such file, or a link to none. PERMISSION_DENIED: not for this process.
// INVALID_ARGUMENT: no regular file, links in a circle, or longer than `max_bytes`. Else as errno
// says. Messages begin with the path.
#ifndef MILEPOST_COMMON_REGULAR_FILE_H_
#define MILEPOST_COMMON_REGULAR_FILE_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace milepost {

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes);

// The file alone, open for reading: for what maps it or reads it in parts. Same errors, but for the
// length's.
absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path);

}  // namespace milepost

#endif  // MILEPOST_COMMON_REGULAR_FILE_H_
