#include "coordinator/store/salvage.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/metadata.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "coordinator/store/checkpoint_store.h"
#include "coordinator/store/database.h"
#include "coordinator/store/database_check.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/files_store.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/record_salvage.h"
#include "coordinator/store/record_scan.h"
#include "coordinator/store/store.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBatchBytes = 1 << 20;

// What no list of tables names any more, in tables that say nowhere whose they are.
struct Loose {
  std::vector<std::string> chunk_files;
  int64_t last_checkpoint = 0;                 // of these
  std::map<std::string, std::string> records;  // by key
};

// An open database of which anything may be damaged.
class Tables {
 public:
  ~Tables() { Close(); }
  // Of a directory of its own: what is damaged at the end of its log is cut off there.
  // `lenient`: also with tables that cannot be opened. `verify_logs`: only with all logs.
  rocksdb::Status Open(const std::string& path, rocksdb::WALRecoveryMode mode, bool lenient,
                       bool verify_logs = false) {
    Close();
    rocksdb::DBOptions options;
    options.paranoid_checks = !lenient;
    options.track_and_verify_wals_in_manifest = verify_logs;
    options.wal_recovery_mode = mode;
    options.max_open_files = 512;
    options.create_missing_column_families = true;  // one that is found without its files
    rocksdb::Options logs = MetaFileOptions(), meta = MetaFileOptions();
    logs.disable_auto_compactions = meta.disable_auto_compactions = true;
    rocksdb::DB* db = nullptr;
    const rocksdb::Status status = rocksdb::DB::Open(options, path,
                                                     {{rocksdb::kDefaultColumnFamilyName, meta},
                                                      {"chunks", ChunkFileOptions()},
                                                      {"logs", logs},
                                                      {"curves", logs}},
                                                     &families_, &db);
    db_.reset(db);
    if (!status.ok()) families_.clear();
    return status;
  }
  void Close() {
    for (rocksdb::ColumnFamilyHandle* family : families_) db_->DestroyColumnFamilyHandle(family);
    families_.clear();
    db_.reset();
  }
  void SetLoose(Loose loose) { loose_ = std::move(loose); }
  const Loose& loose() const { return loose_; }
  rocksdb::DB* db() const { return db_.get(); }
  rocksdb::ColumnFamilyHandle* meta() const { return families_[0]; }
  rocksdb::ColumnFamilyHandle* chunks() const { return families_[1]; }
  rocksdb::ColumnFamilyHandle* logs() const { return families_[2]; }
  rocksdb::ColumnFamilyHandle* curves() const { return families_[3]; }

 private:
  std::unique_ptr<rocksdb::DB> db_;
  std::vector<rocksdb::ColumnFamilyHandle*> families_;
  Loose loose_;
};

// ---- writing ----

std::string Be64(int64_t number) {
  std::string bytes;
  AppendBe64(static_cast<uint64_t>(number), &bytes);
  return bytes;
}

int64_t LastChunksCheckpoint(const Tables& tables) {
  std::unique_ptr<rocksdb::Iterator> it(
      tables.db()->NewIterator(rocksdb::ReadOptions(), tables.chunks()));
  it->SeekToLast();
  if (!it->Valid() || it->key().size() < 8) return tables.loose().last_checkpoint;
  return std::max(tables.loose().last_checkpoint,
                  static_cast<int64_t>(ReadBe64({it->key().data(), it->key().size()})));
}

// So that what was given out and forgotten is not given out again.
void RaiseNumbers(const Tables& tables, std::map<std::string, std::string>* all) {
  int64_t job = 0, checkpoint = LastChunksCheckpoint(tables);
  for (const auto& [key, value] : *all) {
    if (key == kLastJobKey && value.size() == 8) {
      job = std::max(job, static_cast<int64_t>(ReadBe64(value)));
    } else if (key == kNextCheckpointKey && value.size() == 8) {
      checkpoint = std::max(checkpoint, static_cast<int64_t>(ReadBe64(value)));
    } else if (key.size() >= 9 && key[0] != '!') {
      const auto number = static_cast<int64_t>(ReadBe64(absl::string_view(key).substr(1)));
      const bool of_job = key[0] == kJobPrefix || key[0] == kLogSummaryPrefix ||
                          key[0] == kRendezvousPrefix || key[0] == kChoicesPrefix;
      if (of_job) job = std::max(job, number);
      if (IsOfCheckpoints(key[0])) checkpoint = std::max(checkpoint, number);
    }
  }
  (*all)[kLastJobKey] = Be64(job + kNumberGap);
  (*all)[kNextCheckpointKey] = Be64(checkpoint + kNumberGap);
  (*all)[kFormatKey] = absl::StrCat(Database::kFormatVersion);
}

absl::Status Done(const rocksdb::Status& status) { return FromRocks(status, "the new store"); }

// RocksDB imports no table without a key, which deletions of ranges alone may make: they are
// applied. Where that meets damage the tables stay as they are, and CanBeImported finds those.
void ApplyDeletions(const Tables& from, rocksdb::ColumnFamilyHandle* family,
                    std::vector<std::string>* lost) {
  rocksdb::CompactRangeOptions all;
  all.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  const rocksdb::Status status = from.db()->CompactRange(all, family, nullptr, nullptr);
  if (status.ok()) return;
  lost->push_back(absl::StrCat("deletions of ", family->GetName(),
                               ": some that were deleted may be there again (", status.ToString(),
                               ")"));
}

// RocksDB reads a table's first and last key to import it, and looks at neither's status.
bool CanBeImported(const rocksdb::Options& options, const std::string& path) {
  rocksdb::SstFileReader reader(options);
  if (!reader.Open(path).ok()) return false;
  std::unique_ptr<rocksdb::Iterator> key(reader.NewIterator(rocksdb::ReadOptions()));
  key->SeekToFirst();
  if (!key->Valid()) return false;
  key->SeekToLast();
  return key->Valid();
}

// The files of a family as they are, and `more`; little in them is read.
absl::Status MoveFamily(const Tables& from, rocksdb::ColumnFamilyHandle* family,
                        const std::vector<std::string>& more, const rocksdb::Options& options,
                        const std::string& exported, rocksdb::DB* to,
                        std::vector<std::string>* lost) {
  rocksdb::Checkpoint* exporter = nullptr;
  MP_RETURN_IF_ERROR(Done(rocksdb::Checkpoint::Create(from.db(), &exporter)));
  const std::unique_ptr<rocksdb::Checkpoint> owned(exporter);
  rocksdb::ExportImportFilesMetaData* files = nullptr;
  MP_RETURN_IF_ERROR(Done(exporter->ExportColumnFamily(family, exported, &files)));
  const std::unique_ptr<rocksdb::ExportImportFilesMetaData> owned_files(files);
  std::erase_if(files->files, [&](const rocksdb::LiveFileMetaData& file) {
    if (CanBeImported(options, absl::StrCat(file.db_path, "/", file.name))) return false;
    lost->push_back(absl::StrCat("a table of ", family->GetName(),
                                 ", whose first or last record cannot be read: ",
                                 file.name.substr(file.name.find_first_not_of('/'))));
    return true;
  });
  rocksdb::ColumnFamilyHandle* made = nullptr;
  rocksdb::ImportColumnFamilyOptions import;
  import.move_files = true;
  rocksdb::Status status =
      files->files.empty()
          ? to->CreateColumnFamily(options, family->GetName(), &made)
          : to->CreateColumnFamilyWithImport(options, family->GetName(), import, *files, &made);
  rocksdb::IngestExternalFileOptions ingest;
  ingest.move_files = true;
  ingest.write_global_seqno = false;
  if (status.ok() && !more.empty()) status = to->IngestExternalFile(made, more, ingest);
  if (made != nullptr) to->DestroyColumnFamilyHandle(made);
  return Done(status);
}

absl::Status WriteStore(const Tables& from, const std::map<std::string, std::string>& all,
                        const std::string& scratch, const std::string& db,
                        std::vector<std::string>* lost) {
  rocksdb::Options options = MetaFileOptions();
  options.create_if_missing = options.error_if_exists = true;
  rocksdb::DB* opened = nullptr;
  MP_RETURN_IF_ERROR(Done(rocksdb::DB::Open(options, db, &opened)));
  const std::unique_ptr<rocksdb::DB> to(opened);
  MP_RETURN_IF_ERROR(MoveFamily(from, from.chunks(), from.loose().chunk_files, ChunkFileOptions(),
                                scratch + "/chunks", to.get(), lost));
  // No other families have any.
  ApplyDeletions(from, from.logs(), lost);
  MP_RETURN_IF_ERROR(
      MoveFamily(from, from.logs(), {}, MetaFileOptions(), scratch + "/logs", to.get(), lost));
  ApplyDeletions(from, from.curves(), lost);
  const absl::Status curves =
      MoveFamily(from, from.curves(), {}, MetaFileOptions(), scratch + "/curves", to.get(), lost);
  if (absl::IsDataLoss(curves)) {
    lost->push_back(absl::StrCat("all curves of jobs (", curves.message(), ")"));
  } else {
    MP_RETURN_IF_ERROR(curves);
  }
  rocksdb::WriteBatch batch;
  for (auto record = all.begin(); record != all.end(); ++record) {
    batch.Put(record->first, record->second);
    if (batch.GetDataSize() < kBatchBytes && std::next(record) != all.end()) continue;
    MP_RETURN_IF_ERROR(Done(to->Write(rocksdb::WriteOptions(), &batch)));
    batch.Clear();
  }
  MP_RETURN_IF_ERROR(Done(to->Flush(rocksdb::FlushOptions())));
  return Done(to->SyncWAL());
}

// ---- the whole ----

// Tables never change, so they are linked; the rest is copied.
absl::Status CopyFiles(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::create_directories(to, error);
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!it->is_regular_file(error) || name == kLogMarkFile || name == "LOCK") continue;
    if (absl::EndsWith(name, ".sst")) {
      fs::create_hard_link(it->path(), to + "/" + name, error);
    } else {
      fs::copy_file(it->path(), to + "/" + name, error);
    }
    if (error) break;
  }
  if (!error) return absl::OkStatus();
  const bool elsewhere = error == std::errc::cross_device_link;
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("copying ", from, " to ", to,
                                  elsewhere ? " (it must be on the same file system)" : ""));
}

// RocksDB's file that names the list of tables, anew where it is missing.
void MendCurrent(const std::string& path) {
  std::error_code error;
  std::ifstream file(path + "/CURRENT");
  std::string named, newest;
  std::getline(file, named);
  if (!named.empty() && fs::exists(absl::StrCat(path, "/", named), error)) return;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    // Their numbers have six digits, or more.
    const bool newer = std::pair(name.size(), name) > std::pair(newest.size(), newest);
    if (absl::StartsWith(name, "MANIFEST-") && newer) newest = name;
  }
  if (!newest.empty()) std::ofstream(path + "/CURRENT") << newest << "\n";
}

void ReadLooseRecords(rocksdb::Iterator* it, Loose* loose) {
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    loose->records[it->key().ToString()] = it->value().ToString();
  }
}

// RocksDB's repair drops tables that say nowhere whose they are: those of a checkpoint's commit, as
// long as no compaction has written them anew. Keys of chunks begin with a checkpoint's number,
// those of records with a letter.
Loose SetAside(const std::string& path, const std::string& aside) {
  Loose loose;
  std::error_code error;
  fs::create_directories(aside, error);
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".sst") continue;
    rocksdb::SstFileReader reader(ChunkFileOptions());
    if (!reader.Open(it->path().string()).ok()) continue;
    std::unique_ptr<rocksdb::Iterator> key(reader.NewIterator(rocksdb::ReadOptions()));
    const std::string family = reader.GetTableProperties()->column_family_name;
    key->SeekToLast();
    const bool by_job = family == "logs" || family == "curves";
    if (by_job || !key->Valid()) continue;
    const bool of_chunks = key->key().size() >= 8 && key->key()[0] == 0;
    if (!of_chunks) {
      if (family.empty()) ReadLooseRecords(key.get(), &loose);
      continue;
    }
    loose.chunk_files.push_back(absl::StrCat(aside, "/", it->path().filename().string()));
    loose.last_checkpoint =
        std::max(loose.last_checkpoint,
                 static_cast<int64_t>(ReadBe64({key->key().data(), key->key().size()})));
    fs::rename(it->path(), loose.chunk_files.back(), error);
  }
  return loose;
}

// Of the tables that are there.
absl::Status Relist(const std::string& path, Tables* tables) {
  tables->Close();
  tables->SetLoose(SetAside(path, path + "-chunks"));
  rocksdb::DBOptions options;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  rocksdb::Status status =
      rocksdb::RepairDB(path, options,
                        {{rocksdb::kDefaultColumnFamilyName, MetaFileOptions()},
                         {"logs", MetaFileOptions()},
                         {"curves", MetaFileOptions()}});
  if (status.ok()) {
    status = tables->Open(path, options.wal_recovery_mode, /*lenient=*/true);
  }
  if (status.ok()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("nothing can be read: ", status.ToString()));
}

bool HasItsFiles(const Tables& tables) {
  std::vector<rocksdb::LiveFileMetaData> files;
  tables.db()->GetLiveFilesMetaData(&files);
  std::error_code error;
  return std::all_of(files.begin(), files.end(), [&](const rocksdb::LiveFileMetaData& file) {
    return fs::exists(absl::StrCat(file.db_path, "/", file.name), error);
  });
}

// As far as it can be; says what had to be given up for that.
absl::Status OpenTables(const std::string& path, Tables* tables, std::vector<std::string>* lost) {
  using Mode = rocksdb::WALRecoveryMode;
  MendCurrent(path);
  const Mode usual = Mode::kTolerateCorruptedTailRecords;
  if (tables->Open(path, usual, /*lenient=*/false, /*verify_logs=*/true).ok()) {
    return absl::OkStatus();
  }
  if (tables->Open(path, usual, /*lenient=*/false).ok()) {
    lost->push_back(
        "a write-ahead log that is missing or cut off: later changes may be there without earlier "
        "ones, also tokens that were revoked");
    return absl::OkStatus();
  }
  for (const bool lenient : {false, true}) {
    if (!tables->Open(path, Mode::kPointInTimeRecovery, lenient).ok()) continue;
    if (!HasItsFiles(*tables)) break;
    lost->push_back(
        lenient ? "tables that cannot be opened, and what cannot be read of the write-ahead log: "
                  "later changes may be there without earlier ones"
                : "the write-ahead log from where it is damaged on: the last changes of anything, "
                  "also tokens that were revoked last");
    return absl::OkStatus();
  }
  lost->push_back(
      "the list of tables (MANIFEST), or tables that it names: those that can be opened are taken, "
      "what had been deleted last may be there again, and later changes without earlier ones");
  return Relist(path, tables);
}

absl::StatusOr<std::vector<std::string>> CountRecords(const std::string& dir) {
  StoreOptions options;
  options.dir = dir;
  MP_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, Store::Open(options));
  MP_ASSIGN_OR_RETURN(const State state, store->LoadState());
  MP_ASSIGN_OR_RETURN(const std::vector<v1::TokenRecord> tokens, store->LoadTokens());
  return std::vector<std::string>{absl::StrCat(
      "found: jobs: ", state.jobs().size(), ", checkpoints: ", store->checkpoints().List("").size(),
      ", workers: ", state.workers().size(), ", tokens: ", tokens.size())};
}

absl::StatusOr<std::vector<std::string>> SalvageInto(const std::string& from,
                                                     const std::string& unfinished) {
  const std::string scratch = unfinished + "/salvage";
  MP_RETURN_IF_ERROR(CopyFiles(from, scratch + "/db"));
  std::vector<std::string> lost;
  const absl::Status files = CheckFiles(from);
  if (absl::IsDataLoss(files)) {
    lost.emplace_back(absl::StripSuffix(files.message(), kStoreIsDamaged));
  }
  Tables tables;
  MP_RETURN_IF_ERROR(OpenTables(scratch + "/db", &tables, &lost));
  SalvagedRecords records = ReadRecords(tables.db(), tables.meta());
  // Written once, when a checkpoint is committed: what is there already is newer, or the same.
  records.all.insert(tables.loose().records.begin(), tables.loose().records.end());
  lost.insert(lost.end(), records.lost.begin(), records.lost.end());
  RaiseNumbers(tables, &records.all);
  MP_RETURN_IF_ERROR(WriteStore(tables, records.all, scratch, unfinished + "/db", &lost));
  tables.Close();
  std::error_code error;
  fs::remove_all(scratch, error);
  MP_ASSIGN_OR_RETURN(std::vector<std::string> report, CountRecords(unfinished));
  for (const std::string& line : lost) report.push_back("damaged or lost: " + line);
  return report;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Salvage(const std::string& from,
                                                 const std::string& target) {
  const std::string to(absl::StripSuffix(target, "/"));
  MP_RETURN_IF_ERROR(CheckOutside(from, to));
  std::error_code error;
  if (fs::exists(to, error)) {
    return absl::AlreadyExistsError(absl::StrCat(to, " is there already: name a new directory"));
  }
  MP_ASSIGN_OR_RETURN(const std::string db, NewestDatabase(from));
  if (!fs::is_directory(db, error)) {
    return absl::NotFoundError(absl::StrCat("there is no store in ", from));
  }
  rocksdb::FileLock* lock = nullptr;
  const rocksdb::Status locked = rocksdb::Env::Default()->LockFile(db + "/LOCK", &lock);
  if (!locked.ok() && !absl::StrContains(locked.ToString(), "Read-only file system")) {
    return absl::FailedPreconditionError(absl::StrCat(
        from, " is in use by a milepost-coordinator: stop it first (", locked.ToString(), ")"));
  }
  const auto unlock = [](rocksdb::FileLock* held) { rocksdb::Env::Default()->UnlockFile(held); };
  const std::unique_ptr<rocksdb::FileLock, decltype(unlock)> held(lock, unlock);
  const std::string unfinished = absl::StrCat(to, ".unfinished");
  if (fs::exists(unfinished, error)) {
    return absl::AlreadyExistsError(absl::StrCat(unfinished, " is there already: remove it first"));
  }
  fs::create_directories(unfinished, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make ", unfinished));
  absl::StatusOr<std::vector<std::string>> report = SalvageInto(db, unfinished);
  if (report.ok()) {
    // What jobs were sent with is verified whenever it is read.
    for (const std::string& problem : LinkFiles(fs::path(db).parent_path(), unfinished)) {
      report->push_back(absl::StrCat(problem, ": its jobs have to be submitted again"));
    }
  }
  if (report.ok() && std::rename(unfinished.c_str(), to.c_str()) != 0) {
    report = absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", to));
  }
  if (!report.ok()) fs::remove_all(unfinished, error);
  return report;
}

}  // namespace milepost::coordinator
