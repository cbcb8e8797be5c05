#include "coordinator/store/record_scan.h"

#include <rocksdb/db.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/store/database.h"

namespace milepost::coordinator {
namespace {

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

absl::Status StatusOf(const rocksdb::Iterator& it, const Database& database) {
  absl::Status status = FromRocks(it.status(), absl::StrCat("reading ", database.dir()));
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(status.message(), kStoreIsDamaged));
}

}  // namespace

absl::Status ScanRecords(
    const Database& database, char prefix,
    absl::FunctionRef<absl::Status(absl::string_view key, absl::string_view value)> visit) {
  const std::string start(1, prefix);
  const std::string end(1, static_cast<char>(prefix + 1));
  rocksdb::ManagedSnapshot snapshot(database.db());
  rocksdb::ReadOptions options;
  options.snapshot = snapshot.snapshot();
  options.fill_cache = false;  // what is read is kept by whoever reads it
  std::unique_ptr<rocksdb::Iterator> it(database.db()->NewIterator(options, database.meta()));
  int64_t there = 0;
  it->SeekForPrev(end);
  if (it->Valid() && it->key() == rocksdb::Slice(end)) it->Prev();
  for (; it->Valid() && it->key().starts_with(start); it->Prev()) ++there;
  MP_RETURN_IF_ERROR(StatusOf(*it, database));
  int64_t seen = 0;
  for (it->Seek(start); it->Valid() && it->key().starts_with(start); it->Next()) {
    ++seen;
    MP_RETURN_IF_ERROR(visit(View(it->key()), View(it->value())));
  }
  MP_RETURN_IF_ERROR(StatusOf(*it, database));
  if (seen == there) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("reading ", database.dir(), ": of ", there,
                                          " records of kind '", start, "' only ", seen,
                                          " can be read", kStoreIsDamaged));
}

}  // namespace milepost::coordinator
