// Small files that are replaced at once: who reads sees the one before or the whole new one, also
// after the machine has died.
#ifndef MILEPOST_COMMON_ATOMIC_FILE_H_
#define MILEPOST_COMMON_ATOMIC_FILE_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost {

inline constexpr mode_t kSecretMode = 0600;
inline constexpr mode_t kPublicMode = 0644;

// The file has `mode` from its first byte on, whatever the umask. Blocks on the disk. Errors: the
// path and what failed.
absl::Status WriteFileAtOnce(const std::string& path, absl::string_view text, mode_t mode);
// ALREADY_EXISTS: there is a file of that name, which stays.
absl::Status CreateFileAtOnce(const std::string& path, absl::string_view text, mode_t mode);

}  // namespace milepost

#endif  // MILEPOST_COMMON_ATOMIC_FILE_H_
