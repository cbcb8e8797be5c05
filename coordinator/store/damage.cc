#include "coordinator/store/damage.h"

#include <rocksdb/db.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/database_check.h"

namespace milepost::coordinator {
namespace {

constexpr const char* kWhat[] = {
    "the store has damaged records, and a coordinator that is started on it refuses to: ",
    "lines of jobs' logs are damaged: ", "jobs' curves are damaged: "};
constexpr char kWayOn[] =
    " At a good moment stop the coordinator, keep a copy of its data directory, and restore a "
    "backup or salvage what is whole (docs/operate/operations.md, \"A damaged store\")";

// Of a Damage::Kind.
std::string TextOf(size_t kind, const std::string& met) {
  const bool records = kind == 0;
  return absl::StrCat(kWhat[kind], met, ". Jobs go on",
                      records ? "; no checkpoint is deleted by itself any more." : ".", kWayOn);
}

}  // namespace

void Damage::Note(const absl::Status& status, Kind kind) {
  if (!absl::IsDataLoss(status)) return;
  {
    absl::MutexLock lock(&mutex_);
    std::string& noted = met_[kind];
    if (!noted.empty()) return;
    noted = std::string(status.message());
  }
  spdlog::error("{}", TextOf(kind, std::string(status.message())));
}

std::string Damage::Describe() const {
  absl::MutexLock lock(&mutex_);
  for (size_t kind = 0; kind < met_.size(); ++kind) {
    if (!met_[kind].empty()) return TextOf(kind, met_[kind]);
  }
  return "";
}

bool Damage::InRecords() const {
  absl::MutexLock lock(&mutex_);
  return !met_[kRecords].empty();
}

bool Damage::TakeStopCompactions() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(stop_compactions_, false);
}

void Damage::Release() {
  absl::MutexLock lock(&mutex_);
  released_ = true;
}

Damage::Kind Damage::KindOf(const std::string& family) {
  if (family == rocksdb::kDefaultColumnFamilyName) return kRecords;
  return family == "curves" ? kCurves : kLogs;
}

void Damage::OnCompactionBegin(rocksdb::DB*, const rocksdb::CompactionJobInfo& job) {
  absl::Status status;
  for (const std::string& path : job.input_files) status.Update(VerifyTable(path));
  if (!absl::IsDataLoss(status)) return;  // another error it meets itself
  Note(status, KindOf(job.cf_name));
  absl::MutexLock lock(&mutex_);
  stop_compactions_ = true;
  mutex_.Await(absl::Condition(&released_));
}

}  // namespace milepost::coordinator
