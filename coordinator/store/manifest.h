// The stored form of a manifest and of a checkpoint's flags. Internal to store/.
#ifndef MILEPOST_COORDINATOR_STORE_MANIFEST_H_
#define MILEPOST_COORDINATOR_STORE_MANIFEST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

class Database;

// Serialised StoredManifest, then XXH3-64 of it, little-endian.
std::string EncodeManifest(const v1::StoredManifest& manifest);
// DATA_LOSS when it is not what was encoded.
absl::StatusOr<v1::StoredManifest> DecodeManifest(absl::string_view stored);

// One byte: bit 0 pinned, bit 1 damaged, bit 2 in the bin, and then since when: be64, microseconds
// since 1970. Empty: none of them.
std::string EncodeFlags(const v1::Checkpoint& checkpoint);
void DecodeFlags(absl::string_view flags, v1::Checkpoint* checkpoint);

// Deletes the chunk files of a checkpoint that was deleted, then what says that they are to go.
absl::Status DeleteChunks(Database* database, int64_t number);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_STORE_MANIFEST_H_
