#include "coordinator/store/database_check.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "coordinator/store/database.h"
#include "coordinator/store/record_scan.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

// Of a database that was never opened to the end: all others have a later one.
constexpr char kFirstManifest[] = "MANIFEST-000001";

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat(what, kStoreIsDamaged));
}

struct Found {
  std::map<uint64_t, uint64_t> logs;  // number -> bytes
  bool tables = false;
  std::string manifest;  // what CURRENT names; empty: there is no CURRENT
};

// What CURRENT names; empty: there is no CURRENT.
absl::StatusOr<std::string> NamedManifest(const std::string& db) {
  std::error_code error;
  if (!fs::exists(db + "/CURRENT", error)) return std::string();
  MP_ASSIGN_OR_RETURN(const std::string current,
                      ReadRegularFile(db + "/CURRENT", kMaxCurrentBytes));
  std::string manifest = current.substr(0, current.find('\n'));
  if (!manifest.empty()) return manifest;
  return Damaged(absl::StrCat(db, "/CURRENT names no manifest"));
}

absl::StatusOr<Found> FindFiles(const std::string& db) {
  Found found;
  std::error_code error;
  for (fs::directory_iterator it(db, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view stem = name;
    uint64_t number = 0;
    if (absl::EndsWith(name, ".sst")) found.tables = true;
    if (absl::ConsumeSuffix(&stem, ".log") && absl::SimpleAtoi(stem, &number)) {
      found.logs[number] = it->file_size(error);
    }
    if (error) break;
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", db));
  MP_ASSIGN_OR_RETURN(found.manifest, NamedManifest(db));
  return found;
}

std::string MarkText(uint64_t number, uint64_t bytes) {
  const std::string text = absl::StrFormat("%020u %020u", number, bytes);
  return absl::StrFormat("%s %016x\n", text, XXH3_64bits(text.data(), text.size()));
}

// False when there is none, or it cannot be read: it is an aid only.
bool ReadMark(const std::string& db, uint64_t* number, uint64_t* bytes) {
  std::ifstream file(absl::StrCat(db, "/", kLogMarkFile));
  std::string line;
  std::getline(file, line);
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  return parts.size() == 3 && absl::SimpleAtoi(parts[0], number) &&
         absl::SimpleAtoi(parts[1], bytes) && MarkText(*number, *bytes) == line + "\n";
}

}  // namespace

absl::Status CheckFiles(const std::string& db) {
  MP_ASSIGN_OR_RETURN(const Found found, FindFiles(db));
  if (found.manifest.empty()) {
    bool written = found.tables;
    for (const auto& [number, bytes] : found.logs) written = written || bytes > 0;
    if (!written) return absl::OkStatus();
    return Damaged(absl::StrCat(db, "/CURRENT is missing, though the store was written"));
  }
  if (found.logs.empty() && found.manifest != kFirstManifest) {
    return Damaged(absl::StrCat(db, ": the write-ahead log (*.log) is missing"));
  }
  uint64_t number = 0, bytes = 0;
  if (!ReadMark(db, &number, &bytes)) return absl::OkStatus();
  const auto marked = found.logs.find(number);
  if (marked == found.logs.end()) {
    // Its records are in tables by now, or there would be no later one.
    if (found.logs.empty() || found.logs.rbegin()->first > number) return absl::OkStatus();
    return Damaged(absl::StrFormat("%s: the write-ahead log %06u.log is missing", db, number));
  }
  if (marked->second >= bytes) return absl::OkStatus();
  return Damaged(absl::StrFormat(
      "%s/%06u.log: the write-ahead log has %u bytes, %u were written and acknowledged", db, number,
      marked->second, bytes));
}

absl::Status VerifyTable(const std::string& path) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = 1 << 20;
  rocksdb::SstFileReader reader(MetaFileOptions());
  rocksdb::Status status = reader.Open(path);
  if (status.ok()) status = reader.VerifyChecksum(options);
  if (status.ok()) return absl::OkStatus();
  const absl::Status error = FromRocks(status, path);
  if (!absl::IsDataLoss(error)) return error;
  return absl::DataLossError(absl::StrCat(path, " is damaged: ", status.ToString()));
}

absl::Status VerifyTables(rocksdb::DB* db, absl::string_view family) {
  std::vector<rocksdb::LiveFileMetaData> files;
  db->GetLiveFilesMetaData(&files);
  for (const rocksdb::LiveFileMetaData& file : files) {
    if (file.column_family_name != family) continue;
    const absl::Status status = VerifyTable(absl::StrCat(file.db_path, file.name));
    if (absl::IsDataLoss(status)) return Damaged(std::string(status.message()));
    MP_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

LogMark::LogMark(const std::string& db)
    : fd_(open(absl::StrCat(db, "/", kLogMarkFile).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) {
}

void LogMark::Note(uint64_t number, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (number < number_ || (number == number_ && bytes <= bytes_) || !fd_.ok()) return;
  const std::string text = MarkText(number, bytes);
  if (pwrite(fd_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return;
  number_ = number;
  bytes_ = bytes;
}

}  // namespace milepost::coordinator
