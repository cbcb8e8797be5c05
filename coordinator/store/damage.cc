#include "coordinator/store/damage.h"

#include <rocksdb/db.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/database_check.h"

namespace milepost::coordinator {
namespace {

constexpr char kOfRecords[] =
    "the store has damaged records, and a coordinator that is started on it refuses to: ";
constexpr char kOfLogs[] = "lines of jobs' logs are damaged: ";
constexpr char kWayOn[] =
    ". Jobs go on; no checkpoint is deleted by itself any more. At a good moment stop the "
    "coordinator, keep a copy of its data directory, and restore a backup or salvage what is whole "
    "(docs/operations.md, \"A damaged store\")";

}  // namespace

void Damage::Note(const absl::Status& status, bool records) {
  if (!absl::IsDataLoss(status)) return;
  {
    absl::MutexLock lock(&mutex_);
    std::string& noted = records ? records_ : logs_;
    if (!noted.empty()) return;
    noted = std::string(status.message());
  }
  spdlog::error("{}{}{}", records ? kOfRecords : kOfLogs, std::string(status.message()), kWayOn);
}

std::string Damage::Describe() const {
  absl::MutexLock lock(&mutex_);
  if (!records_.empty()) return absl::StrCat(kOfRecords, records_, kWayOn);
  if (!logs_.empty()) return absl::StrCat(kOfLogs, logs_, kWayOn);
  return "";
}

bool Damage::InRecords() const {
  absl::MutexLock lock(&mutex_);
  return !records_.empty();
}

bool Damage::TakeStopCompactions() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(stop_compactions_, false);
}

void Damage::Release() {
  absl::MutexLock lock(&mutex_);
  released_ = true;
}

void Damage::OnCompactionBegin(rocksdb::DB*, const rocksdb::CompactionJobInfo& job) {
  absl::Status status;
  for (const std::string& path : job.input_files) status.Update(VerifyTable(path));
  if (!absl::IsDataLoss(status)) return;  // another error it meets itself
  Note(status, /*records=*/job.cf_name == rocksdb::kDefaultColumnFamilyName);
  absl::MutexLock lock(&mutex_);
  stop_compactions_ = true;
  mutex_.Await(absl::Condition(&released_));
}

}  // namespace milepost::coordinator
