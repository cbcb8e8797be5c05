#include "coordinator/store/log_store.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "common/proto_time.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/record_scan.h"

namespace milepost::coordinator {

namespace {

// Dropping in steps keeps range tombstones few.
int64_t WithStep(int64_t limit) { return limit + std::max<int64_t>(1, limit / 20); }

// No log can have more lines or bytes than this: a summary that says so is damaged.
constexpr int64_t kMost = int64_t{1} << 56;

bool MayBe(const v1::LogSummary& summary) {
  const auto within = [](int64_t value, int64_t least) { return least <= value && value <= kMost; };
  return within(static_cast<int64_t>(summary.first()), 1) && within(summary.bytes(), 0) &&
         within(summary.dropped_lines(), 0);
}

std::string PrefixOf(int64_t job) { return LogKey(job, 0).substr(0, 8); }

uint64_t SequenceOf(const rocksdb::Slice& key) {
  return ReadBe64(absl::string_view(key.data() + 8, 8));
}

// Of all jobs.
std::unique_ptr<rocksdb::Iterator> LinesOf(const Database& database) {
  return std::unique_ptr<rocksdb::Iterator>(
      database.db()->NewIterator(rocksdb::ReadOptions(), database.logs()));
}

}  // namespace

absl::Status LogStore::Checked(const rocksdb::Iterator& it, const char* what) const {
  const absl::Status status = FromRocks(it.status(), what);
  database_->damage().NoteLogs(status);
  return status;
}

// Of a store that an older version wrote, `summary` is null: its lines are read once.
absl::StatusOr<LogStore::Range> LogStore::LoadRange(int64_t job,
                                                    const v1::LogSummary* summary) const {
  const std::unique_ptr<rocksdb::Iterator> it = LinesOf(*database_);
  Range range;
  const std::string prefix = PrefixOf(job);
  it->SeekForPrev(LogKey(job, UINT64_MAX));
  // Numbers would be given twice.
  MP_RETURN_IF_ERROR(Checked(*it, "reading a job's log"));
  if (it->Valid() && it->key().starts_with(prefix)) range.next = SequenceOf(it->key()) + 1;
  if (summary != nullptr) {
    range.first = summary->first();
    range.next = std::max(range.next, range.first);
    range.bytes = summary->bytes();
    range.dropped = summary->dropped_lines();
    if (summary->has_dropped_until()) range.dropped_until = FromProto(summary->dropped_until());
    return range;
  }
  it->Seek(LogKey(job, 0));
  if (it->Valid() && it->key().starts_with(prefix)) range.first = SequenceOf(it->key());
  for (; it->Valid() && it->key().starts_with(prefix); it->Next()) {
    range.bytes += static_cast<int64_t>(it->value().size());
  }
  MP_RETURN_IF_ERROR(Checked(*it, "reading a job's log"));
  return range;
}

absl::Status LogStore::Load() {
  absl::MutexLock lock(&mutex_);
  MP_RETURN_IF_ERROR(ScanRecords(
      *database_, kLogSummaryPrefix,
      [&](absl::string_view key,
          absl::string_view value) ABSL_NO_THREAD_SAFETY_ANALYSIS -> absl::Status {
        v1::LogSummary summary;
        const bool good = key.size() == 9 &&
                          summary.ParseFromArray(value.data(), static_cast<int>(value.size())) &&
                          MayBe(summary);
        if (!good) return absl::OkStatus();  // as if there were none: it is made anew
        const auto job = static_cast<int64_t>(ReadBe64(key.substr(1)));
        MP_ASSIGN_OR_RETURN(ranges_[job], LoadRange(job, &summary));
        return absl::OkStatus();
      }));
  const std::unique_ptr<rocksdb::Iterator> it = LinesOf(*database_);
  // Backwards: forwards it may end in front of a damaged block without an error.
  for (it->SeekToLast(); it->Valid();) {
    const auto job = static_cast<int64_t>(ReadBe64(absl::string_view(it->key().data(), 8)));
    MP_RETURN_IF_ERROR(FindRange(job).status());
    it->SeekForPrev(PrefixOf(job));
  }
  MP_RETURN_IF_ERROR(Checked(*it, "reading the logs"));
  for (const auto& [job, range] : ranges_) total_bytes_ += range.bytes;
  return absl::OkStatus();
}

absl::StatusOr<LogStore::Range*> LogStore::FindRange(int64_t job) {
  auto found = ranges_.find(job);
  if (found != ranges_.end()) return &found->second;
  MP_ASSIGN_OR_RETURN(const Range range, LoadRange(job, nullptr));
  return &(ranges_[job] = range);
}

void LogStore::PutSummary(int64_t job, const Range& range, rocksdb::WriteBatch* batch) const {
  v1::LogSummary summary;
  summary.set_first(range.first);
  summary.set_bytes(range.bytes);
  summary.set_dropped_lines(range.dropped);
  if (range.dropped > 0) *summary.mutable_dropped_until() = ToProto(range.dropped_until);
  batch->Put(database_->meta(), NumberKey(kLogSummaryPrefix, job), summary.SerializeAsString());
}

absl::Status LogStore::Drop(int64_t job, int64_t lines, int64_t bytes, uint64_t stored_end,
                            Range* range, rocksdb::WriteBatch* batch) const {
  const std::unique_ptr<rocksdb::Iterator> it = LinesOf(*database_);
  const uint64_t before = range->first;
  v1::LogLine last;
  for (it->Seek(LogKey(job, before)); it->Valid() && range->first < stored_end; it->Next()) {
    if (lines <= 0 && bytes <= 0) break;
    --lines;
    bytes -= static_cast<int64_t>(it->value().size());
    range->bytes -= static_cast<int64_t>(it->value().size());
    range->first = SequenceOf(it->key()) + 1;
    ++range->dropped;
    last.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()));
  }
  MP_RETURN_IF_ERROR(Checked(*it, "reading a job's log"));
  if (range->first == before) return absl::OkStatus();
  if (last.has_time()) range->dropped_until = FromProto(last.time());
  batch->DeleteRange(database_->logs(), LogKey(job, before), LogKey(job, range->first));
  return absl::OkStatus();
}

absl::Status LogStore::Append(int64_t job, std::vector<v1::LogLine> lines) {
  if (lines.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Range * range, FindRange(job));
  rocksdb::WriteBatch batch;
  Range after = *range;
  for (v1::LogLine& line : lines) {
    line.set_sequence(after.next);
    if (line.text().size() > kMaxLineBytes) line.set_text(CutUtf8(line.text(), kMaxLineBytes));
    const std::string bytes = line.SerializeAsString();
    batch.Put(database_->logs(), LogKey(job, after.next), bytes);
    after.bytes += static_cast<int64_t>(bytes.size());
    ++after.next;
  }
  const auto kept = static_cast<int64_t>(after.next - after.first);
  const bool many = kept >= WithStep(limits_.lines_per_job);
  const bool large = after.bytes >= WithStep(limits_.bytes_per_job);
  if (many || large) {
    // What has just come stays.
    MP_RETURN_IF_ERROR(Drop(job, many ? kept - limits_.lines_per_job : 0,
                            large ? after.bytes - limits_.bytes_per_job : 0, range->next, &after,
                            &batch));
  }
  PutSummary(job, after, &batch);
  MP_RETURN_IF_ERROR(database_->Write(&batch, /*sync=*/false));
  total_bytes_ += after.bytes - range->bytes;
  *range = after;
  return absl::OkStatus();
}

absl::Status LogStore::DropStored(int64_t job, int64_t lines, int64_t bytes) {
  Range& range = ranges_.at(job);
  rocksdb::WriteBatch batch;
  Range after = range;
  MP_RETURN_IF_ERROR(Drop(job, lines, bytes, range.next, &after, &batch));
  if (after.first == range.first) return absl::OkStatus();
  PutSummary(job, after, &batch);
  MP_RETURN_IF_ERROR(database_->Write(&batch, /*sync=*/false));
  total_bytes_ += after.bytes - range.bytes;
  range = after;
  return absl::OkStatus();
}

bool LogStore::IsOverTotal() const {
  absl::MutexLock lock(&mutex_);
  return total_bytes_ > WithStep(limits_.total_bytes);
}

int64_t LogStore::total_bytes() const {
  absl::MutexLock lock(&mutex_);
  return total_bytes_;
}

absl::Status LogStore::TrimTotal(const std::function<absl::Time(int64_t)>& end_of) {
  std::vector<int64_t> jobs;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [job, range] : ranges_) {
      if (range.first < range.next) jobs.push_back(job);
    }
  }
  std::vector<std::pair<absl::Time, int64_t>> ordered;
  for (const int64_t job : jobs) ordered.emplace_back(end_of(job), job);
  std::sort(ordered.begin(), ordered.end());
  for (const auto& [end, job] : ordered) {
    absl::MutexLock lock(&mutex_);
    const int64_t excess = total_bytes_ - limits_.total_bytes;
    if (excess <= 0) return absl::OkStatus();
    if (!ranges_.contains(job)) continue;  // deleted meanwhile
    if (end < absl::InfiniteFuture()) {
      MP_RETURN_IF_ERROR(DropStored(job, 0, excess));
      continue;
    }
    const Range& range = ranges_.at(job);
    const auto kept = static_cast<int64_t>(range.next - range.first);
    if (kept <= limits_.lines_of_running) continue;
    MP_RETURN_IF_ERROR(DropStored(job, kept - limits_.lines_of_running, 0));
  }
  return absl::OkStatus();
}

absl::Status LogStore::Delete(const std::set<int64_t>& jobs, rocksdb::WriteBatch* batch,
                              const std::function<absl::Status()>& write) {
  absl::MutexLock lock(&mutex_);
  for (const int64_t job : jobs) {
    batch->DeleteRange(database_->logs(), LogKey(job, 0), LogKey(job + 1, 0));
    batch->Delete(database_->meta(), NumberKey(kLogSummaryPrefix, job));
  }
  MP_RETURN_IF_ERROR(write());
  for (const int64_t job : jobs) {
    const auto found = ranges_.find(job);
    if (found == ranges_.end()) continue;
    total_bytes_ -= found->second.bytes;
    ranges_.erase(found);
  }
  return absl::OkStatus();
}

absl::Status LogStore::DeleteLate(int64_t job) {
  rocksdb::WriteBatch batch;
  return Delete({job}, &batch, [&] { return database_->Write(&batch, /*sync=*/false); });
}

absl::StatusOr<std::vector<v1::LogLine>> LogStore::Read(int64_t job, uint64_t sequence, int limit) {
  const std::unique_ptr<rocksdb::Iterator> it = LinesOf(*database_);
  std::vector<v1::LogLine> lines;
  const std::string prefix = PrefixOf(job);
  for (it->Seek(LogKey(job, sequence));
       it->Valid() && it->key().starts_with(prefix) && static_cast<int>(lines.size()) < limit;
       it->Next()) {
    v1::LogLine line;
    if (!line.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()))) continue;
    lines.push_back(std::move(line));
  }
  MP_RETURN_IF_ERROR(Checked(*it, "reading a job's log"));
  return lines;
}

absl::StatusOr<LogStore::Range> LogStore::GetRange(int64_t job) {
  absl::MutexLock lock(&mutex_);
  MP_ASSIGN_OR_RETURN(Range * range, FindRange(job));
  return *range;
}

}  // namespace milepost::coordinator
