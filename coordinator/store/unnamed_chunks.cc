#include "coordinator/store/unnamed_chunks.h"

#include <rocksdb/db.h>
#include <rocksdb/metadata.h>

#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/store/database.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/manifest.h"
#include "coordinator/store/record_scan.h"

namespace milepost::coordinator {
namespace {

// Also those whose record cannot be understood, and those that are to go by a record.
absl::StatusOr<std::set<int64_t>> NamedCheckpoints(const Database& database) {
  std::set<int64_t> named;
  for (const char prefix : {kManifestPrefix, kDeletedPrefix}) {
    MP_RETURN_IF_ERROR(ScanRecords(database, prefix, [&](absl::string_view key, absl::string_view) {
      if (key.size() != 9) return absl::DataLossError("the store has a damaged checkpoint key");
      named.insert(static_cast<int64_t>(ReadBe64(key.substr(1))));
      return absl::OkStatus();
    }));
  }
  return named;
}

}  // namespace

std::vector<ChunkFiles> ChunksBeside(const Database& database, const std::set<int64_t>& named) {
  std::vector<rocksdb::LiveFileMetaData> files;
  database.db()->GetLiveFilesMetaData(&files);
  std::map<int64_t, ChunkFiles> found;
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.column_family_name != "chunks" || file.smallestkey.size() < 8) continue;
    const auto number = static_cast<int64_t>(ReadBe64(file.smallestkey));
    if (named.contains(number)) continue;
    ChunkFiles& chunks = found[number];
    chunks.checkpoint = number;
    ++chunks.files;
    chunks.bytes += file.size;
  }
  std::vector<ChunkFiles> list;
  for (const auto& [number, chunks] : found) list.push_back(chunks);
  return list;
}

absl::StatusOr<std::vector<ChunkFiles>> UnnamedChunks(const std::string& dir, bool remove) {
  MP_ASSIGN_OR_RETURN(const bool there, HasStore(dir));
  if (!there) return absl::NotFoundError(absl::StrCat("there is no store in ", dir));
  MP_ASSIGN_OR_RETURN(const std::string db, NewestDatabase(dir));
  // Verifies all records, or refuses.
  MP_ASSIGN_OR_RETURN(const std::unique_ptr<Database> database,
                      Database::Open(std::filesystem::path(db).parent_path()));
  MP_ASSIGN_OR_RETURN(const std::set<int64_t> named, NamedCheckpoints(*database));
  const std::vector<ChunkFiles> unnamed = ChunksBeside(*database, named);
  if (!remove) return unnamed;
  for (const ChunkFiles& chunks : unnamed) {
    MP_RETURN_IF_ERROR(DeleteChunks(database.get(), chunks.checkpoint));
  }
  return unnamed;
}

}  // namespace milepost::coordinator
