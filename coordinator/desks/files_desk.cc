#include "coordinator/desks/files_desk.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_cat.h"
#include "common/spec/script.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "coordinator/store/files_store.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kCollectionInterval = absl::Minutes(10);

}  // namespace

absl::StatusOr<bool> FilesDesk::Has(const std::string& sha256) {
  if (!IsSha256Hex(sha256)) {
    return absl::InvalidArgumentError("sha256: expected 64 hexadecimal digits in lower case");
  }
  return store_->files().Has(sha256, Now());
}

absl::Status FilesDesk::CheckThere(const v1::JobSpec& spec) {
  if (!spec.script().has_sent_files()) return absl::OkStatus();
  const std::string& sha256 = spec.script().sent_files().sha256();
  if (store_->files().Has(sha256, Now())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "script.sent_files: the coordinator has no files of the digest ", sha256.substr(0, 12),
      "...: give script.files, and submit with `milepost job submit`, which sends them"));
}

absl::StatusOr<std::unique_ptr<FilesUpload>> FilesDesk::Begin(const std::string& sha256,
                                                              int64_t bytes) {
  auto upload = store_->files().Begin(sha256, bytes);
  if (!absl::IsResourceExhausted(upload.status()) || Collect(Now()) == 0) return upload;
  return store_->files().Begin(sha256, bytes);
}

absl::StatusOr<std::unique_ptr<FilesReader>> FilesDesk::Read(const std::string& job) {
  std::string sha256;
  {
    absl::ReaderMutexLock lock(&mutex_);
    const v1::JobRecord* record = state_.FindJob(JobNumber(job));
    if (record == nullptr) return NoSuchJob(job);
    sha256 = record->job().spec().script().sent_files().sha256();
  }
  if (sha256.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(job, " has no files that were sent along"));
  }
  return store_->files().Read(sha256);
}

// What comes to be needed after the look at the jobs was asked for less than kFilesGrace ago.
int FilesDesk::Collect(absl::Time time) {
  std::set<std::string> wanted;
  {
    absl::ReaderMutexLock lock(&mutex_);
    for (const auto& [number, record] : state_.jobs()) {
      wanted.insert(record.job().spec().script().sent_files().sha256());
    }
  }
  return store_->files().Collect(wanted, time);
}

void FilesDesk::CollectNowAndThen() {
  const absl::Time now = SteadyNow();
  if (now < next_collection_) return;
  next_collection_ = now + kCollectionInterval;
  const int removed = Collect(Now());
  if (removed > 0) spdlog::info("removed {} archives of files that no job has", removed);
}

}  // namespace milepost::coordinator
