#include "coordinator/store/manifest.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/status_macros.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"

namespace milepost::coordinator {

namespace {
constexpr size_t kChecksumBytes = 8;
constexpr char kPinned = 1;
constexpr char kDamaged = 2;
constexpr char kDeleted = 4;
}  // namespace

std::string EncodeManifest(const v1::StoredManifest& manifest) {
  std::string stored = manifest.SerializeAsString();
  const uint64_t checksum = XXH3_64bits(stored.data(), stored.size());
  for (int shift = 0; shift < 64; shift += 8)
    stored.push_back(static_cast<char>(checksum >> shift));
  return stored;
}

absl::StatusOr<v1::StoredManifest> DecodeManifest(absl::string_view stored) {
  const absl::Status damaged = absl::DataLossError("the stored manifest is damaged");
  if (stored.size() < kChecksumBytes) return damaged;
  const size_t size = stored.size() - kChecksumBytes;
  uint64_t checksum = 0;
  for (size_t i = 0; i < kChecksumBytes; ++i) {
    checksum |= static_cast<uint64_t>(static_cast<uint8_t>(stored[size + i])) << (8 * i);
  }
  v1::StoredManifest manifest;
  if (XXH3_64bits(stored.data(), size) != checksum ||
      !manifest.ParseFromArray(stored.data(), static_cast<int>(size))) {
    return damaged;
  }
  return manifest;
}

std::string EncodeFlags(const v1::Checkpoint& checkpoint) {
  const bool deleted = checkpoint.has_delete_time();
  std::string flags(
      1, static_cast<char>((checkpoint.pinned() ? kPinned : 0) |
                           (checkpoint.damaged() ? kDamaged : 0) | (deleted ? kDeleted : 0)));
  if (deleted) {
    AppendBe64(static_cast<uint64_t>(absl::ToUnixMicros(FromProto(checkpoint.delete_time()))),
               &flags);
  }
  return flags;
}

void DecodeFlags(absl::string_view flags, v1::Checkpoint* checkpoint) {
  const char bits = flags.empty() ? 0 : flags[0];
  checkpoint->set_pinned((bits & kPinned) != 0);
  checkpoint->set_damaged((bits & kDamaged) != 0);
  checkpoint->clear_delete_time();
  if ((bits & kDeleted) == 0 || flags.size() < 9) return;
  const auto micros = static_cast<int64_t>(ReadBe64(flags.substr(1)));
  *checkpoint->mutable_delete_time() = ToProto(absl::FromUnixMicros(micros));
}

absl::Status DeleteChunks(Database* database, int64_t number) {
  const std::string begin = ChunkKey(number, 0, 0);
  const std::string end = ChunkKey(number + 1, 0, 0);
  const rocksdb::Slice begin_slice(begin);
  const rocksdb::Slice end_slice(end);
  MP_RETURN_IF_ERROR(
      FromRocks(rocksdb::DeleteFilesInRange(database->db(), database->chunks(), &begin_slice,
                                            &end_slice, /*include_end=*/false),
                absl::StrCat("deleting the chunks of checkpoints/", number)));
  rocksdb::WriteBatch batch;
  batch.Delete(database->meta(), NumberKey(kDeletedPrefix, number));
  return database->Write(&batch, /*sync=*/false, Database::Space::kFrees);
}

}  // namespace milepost::coordinator
