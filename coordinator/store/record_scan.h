// The one way to load records. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_RECORD_SCAN_H_
#define MILEPOST_COORDINATOR_STORE_RECORD_SCAN_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost::coordinator {

class Database;

// The way on from a store that cannot be trusted: ends every message about one.
inline constexpr char kStoreIsDamaged[] =
    "; nothing was deleted. Keep a copy of the directory, then restore a backup, or see what "
    "`milepost-coordinator salvage` can read of it (docs/operate/operations.md, "
    "\"A damaged store\")";

// Calls visit(key, value) for every key of `meta` that starts with `prefix`, in order. DATA_LOSS
// when some cannot be read, before any is visited or after some were: RocksDB's iterator may end
// without an error in front of a damaged block, so they are counted backwards first, where it does
// not. Blocks on the disk.
absl::Status ScanRecords(
    const Database& database, char prefix,
    absl::FunctionRef<absl::Status(absl::string_view key, absl::string_view value)> visit);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_RECORD_SCAN_H_
