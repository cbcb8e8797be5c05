#include "coordinator/store/curve_store.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <memory>
#include <string>
#include <utility>

#include "common/status_macros.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kCurveBatchBytes = 1 << 20;
constexpr size_t kCurveNameAt = 12;  // in a key

}  // namespace

absl::StatusOr<CurveSet> CurveStore::Read(int64_t job) const {
  CurveSet curves;
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  std::unique_ptr<rocksdb::Iterator> it(database_->db()->NewIterator(options, database_->curves()));
  const std::string prefix = CurveKey(job, 0, "").substr(0, 8);
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    const absl::string_view key(it->key().data(), it->key().size());
    v1::CurveBlock block;
    const auto size = static_cast<int>(it->value().size());
    if (key.size() < kCurveNameAt || !block.ParseFromArray(it->value().data(), size)) continue;
    curves.Restore(key.substr(kCurveNameAt), ReadBe32(key.substr(8)), block);
  }
  const absl::Status status = FromRocks(it->status(), "reading a job's curves");
  database_->damage().NoteCurves(status);
  MP_RETURN_IF_ERROR(status);
  return curves;
}

absl::Status CurveStore::Write(const Changes& changes) {
  rocksdb::WriteBatch batch;
  for (const auto& [job, blocks] : changes) {
    for (const CurveBlockChange& change : blocks) {
      const std::string key = CurveKey(job, change.block, change.name);
      if (change.points.has_value()) {
        batch.Put(database_->curves(), key, change.points->SerializeAsString());
      } else {
        batch.Delete(database_->curves(), key);
      }
    }
    if (batch.GetDataSize() < kCurveBatchBytes) continue;
    MP_RETURN_IF_ERROR(database_->Write(&batch, /*sync=*/false));
    batch.Clear();
  }
  return batch.Count() == 0 ? absl::OkStatus() : database_->Write(&batch, /*sync=*/false);
}

void CurveStore::AddDeletion(int64_t job, rocksdb::WriteBatch* batch) const {
  batch->DeleteRange(database_->curves(), CurveKey(job, 0, ""), CurveKey(job + 1, 0, ""));
}

absl::Status CurveStore::Delete(int64_t job) {
  rocksdb::WriteBatch batch;
  AddDeletion(job, &batch);
  return database_->Write(&batch, /*sync=*/false);
}

}  // namespace milepost::coordinator
