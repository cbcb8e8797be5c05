// Replaces small files atomically. A reader sees the old file or the whole new one, even after the
// machine has crashed.
#ifndef MILEPOST_COMMON_ATOMIC_FILE_H_
#define MILEPOST_COMMON_ATOMIC_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost {

inline constexpr mode_t kSecretMode = 0600;
inline constexpr mode_t kPublicMode = 0644;

// The file has `mode` from its first byte on, whatever the umask is. Blocks on the disk. Errors
// name the path and what failed.
absl::Status WriteFileAtOnce(const std::string& path, absl::string_view text, mode_t mode);
// Does the same, but never replaces a file. ALREADY_EXISTS: there is a file of that name.
absl::Status CreateFileAtOnce(const std::string& path, absl::string_view text, mode_t mode);

}  // namespace milepost

#endif  // MILEPOST_COMMON_ATOMIC_FILE_H_
