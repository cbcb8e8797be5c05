#include "coordinator/store/log_store.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <memory>

#include "common/status_macros.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"

namespace milepost::coordinator {

namespace {

// Trimming in steps keeps range tombstones few.
int64_t TrimStep(int64_t lines_per_job) { return std::max<int64_t>(1, lines_per_job / 20); }

}  // namespace

absl::StatusOr<LogStore::Range*> LogStore::FindRange(int64_t job) {
  auto found = ranges_.find(job);
  if (found != ranges_.end()) return &found->second;
  std::unique_ptr<rocksdb::Iterator> it(
      database_->db()->NewIterator(rocksdb::ReadOptions(), database_->logs()));
  Range range;
  const std::string prefix = LogKey(job, 0).substr(0, 8);
  it->Seek(LogKey(job, 0));
  if (it->Valid() && it->key().starts_with(prefix)) {
    range.first = ReadBe64(absl::string_view(it->key().data() + 8, 8));
    it->SeekForPrev(LogKey(job, UINT64_MAX));
    if (it->Valid()) range.next = ReadBe64(absl::string_view(it->key().data() + 8, 8)) + 1;
  }
  MP_RETURN_IF_ERROR(FromRocks(it->status(), "reading a job's log"));
  return &(ranges_[job] = range);
}

absl::Status LogStore::Append(int64_t job, std::vector<v1::LogLine> lines) {
  if (lines.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Range * range, FindRange(job));
  rocksdb::WriteBatch batch;
  Range after = *range;
  for (v1::LogLine& line : lines) {
    line.set_sequence(after.next);
    if (line.text().size() > kMaxLineBytes) line.mutable_text()->resize(kMaxLineBytes);
    batch.Put(database_->logs(), LogKey(job, after.next), line.SerializeAsString());
    ++after.next;
  }
  const int64_t kept = static_cast<int64_t>(after.next - after.first);
  if (kept >= lines_per_job_ + TrimStep(lines_per_job_)) {
    const uint64_t first = after.next - static_cast<uint64_t>(lines_per_job_);
    batch.DeleteRange(database_->logs(), LogKey(job, after.first), LogKey(job, first));
    after.first = first;
  }
  MP_RETURN_IF_ERROR(database_->Write(&batch, /*sync=*/false));
  *range = after;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::LogLine>> LogStore::Read(int64_t job, uint64_t sequence, int limit) {
  std::unique_ptr<rocksdb::Iterator> it(
      database_->db()->NewIterator(rocksdb::ReadOptions(), database_->logs()));
  std::vector<v1::LogLine> lines;
  const std::string prefix = LogKey(job, 0).substr(0, 8);
  for (it->Seek(LogKey(job, sequence));
       it->Valid() && it->key().starts_with(prefix) && static_cast<int>(lines.size()) < limit;
       it->Next()) {
    v1::LogLine line;
    if (!line.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()))) continue;
    lines.push_back(std::move(line));
  }
  MP_RETURN_IF_ERROR(FromRocks(it->status(), "reading a job's log"));
  return lines;
}

absl::StatusOr<LogStore::Range> LogStore::GetRange(int64_t job) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Range * range, FindRange(job));
  return *range;
}

}  // namespace milepost::coordinator
