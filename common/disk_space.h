// The free space on a disk, and how much of it a coordinator's store needs. Thread-safe. FreeBytes
// may block on the file system.
#ifndef MILEPOST_COMMON_DISK_SPACE_H_
#define MILEPOST_COMMON_DISK_SPACE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace milepost {

// A store with less free space takes no records. RocksDB needs the space to write out what it has
// in memory. An append to its log that fails for lack of space would stop it, and Debian's build
// (with assertions) crashes in the recovery.
constexpr uint64_t kLowSpaceBytes = 32 << 20;

// Space left free beside a new checkpoint, for RocksDB's own logs and memtables.
constexpr uint64_t kStoreMarginBytes = 64 << 20;

// Bytes that an unprivileged writer can still put on the file system of `path`. INTERNAL: the
// system does not report them.
absl::StatusOr<uint64_t> FreeBytes(const std::string& path);

// RESOURCE_EXHAUSTED: why a store in `dir` accepts nothing. `needed` is more than `free`.
absl::Status DiskFull(const std::string& dir, uint64_t free, uint64_t needed);

}  // namespace milepost

#endif  // MILEPOST_COMMON_DISK_SPACE_H_
