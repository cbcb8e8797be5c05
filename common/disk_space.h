// What is left on a disk, and what a coordinator's store needs of it.
#ifndef MILEPOST_COMMON_DISK_SPACE_H_
#define MILEPOST_COMMON_DISK_SPACE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace milepost {

// With less than this free a store takes no records: room for RocksDB to write out what it has in
// memory. An append to its log that fails for lack of space would stop it, and Debian's build
// (with assertions) dies of the recovery.
constexpr uint64_t kLowSpaceBytes = 32 << 20;

// Left free beside a new checkpoint: for RocksDB's own logs and memtables.
constexpr uint64_t kStoreMarginBytes = 64 << 20;

// Bytes that an unprivileged writer can still put on the file system of `path`. INTERNAL: it does
// not say.
absl::StatusOr<uint64_t> FreeBytes(const std::string& path);

// Why a store in `dir` takes nothing: RESOURCE_EXHAUSTED, `needed` being more than `free`.
absl::Status DiskFull(const std::string& dir, uint64_t free, uint64_t needed);

}  // namespace milepost

#endif  // MILEPOST_COMMON_DISK_SPACE_H_
