#include "coordinator/store/database.h"

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/sst_file_manager.h>
#include <rocksdb/table.h>
#include <rocksdb/transaction_log.h>
#include <spdlog/spdlog.h>

#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/disk_space.h"
#include "common/error_details.h"
#include "common/status_macros.h"
#include "coordinator/store/damage.h"
#include "coordinator/store/database_check.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/record_scan.h"

namespace milepost::coordinator {

namespace {

constexpr size_t kMetaWriteBufferBytes = 8 << 20;
constexpr size_t kLogWriteBufferBytes = 4 << 20;
constexpr uint64_t kLogHeaderBytes = 7;  // of RocksDB's log, in front of each record

// RocksDB's warnings, in our own log. Its file logger aborts when the disk is full, and grows.
class WarningLogger : public rocksdb::Logger {
 public:
  WarningLogger() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char line[1024];
    vsnprintf(line, sizeof(line), format, arguments);
    spdlog::warn("rocksdb: {}", line);
  }
};

rocksdb::Options BaseOptions() {
  rocksdb::Options options;
  options.compression = rocksdb::kNoCompression;
  options.bottommost_compression = rocksdb::kNoCompression;
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::DBOptions DatabaseOptions() {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.info_log = std::make_shared<WarningLogger>();
  options.max_background_jobs = 2;
  options.max_open_files = 512;
  options.keep_log_file_num = 2;
  options.max_total_wal_size = 32 << 20;
  options.max_manifest_file_size = 16 << 20;
  options.stats_dump_period_sec = 0;
  // A log may end in the middle of what was not acknowledged, and is damaged nowhere else.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.track_and_verify_wals_in_manifest = true;
  options.verify_sst_unique_id_in_manifest = false;  // ingested files have none; it would only warn
  options.stats_persist_period_sec = 0;
  // Space of deleted checkpoints is free at once; also resumes writing when a full disk has space
  // again.
  options.sst_file_manager.reset(
      rocksdb::NewSstFileManager(rocksdb::Env::Default(), options.info_log));
  return options;
}

}  // namespace

rocksdb::Options MetaFileOptions() {
  rocksdb::Options options = BaseOptions();
  options.write_buffer_size = kMetaWriteBufferBytes;
  return options;
}

rocksdb::Options ChunkFileOptions() {
  rocksdb::Options options = BaseOptions();
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  table.format_version = 5;
  table.no_block_cache = true;
  table.block_size = 1;  // every chunk its own block: damage is one chunk's
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.disable_auto_compactions = true;
  options.write_buffer_size = 1 << 20;  // never used: files are ingested
  // Start writing back early, so that the final sync is short.
  options.bytes_per_sync = 8 << 20;
  return options;
}

absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  // Wrapped errors keep "No space left" only in their text.
  if (status.IsNoSpace() || message.find("No space left on device") != std::string::npos ||
      message.find("Disk quota exceeded") != std::string::npos) {
    return Refusal(v1::ERROR_REASON_DISK_FULL, "",
                   absl::StrCat(message, "; free some space and try again"));
  }
  if (status.IsNotFound()) return absl::NotFoundError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsInvalidArgument()) return absl::InvalidArgumentError(message);
  if (status.IsBusy() || status.IsTryAgain()) return absl::UnavailableError(message);
  return absl::InternalError(message);
}

Database::Database(std::string dir) : dir_(std::move(dir)), damage_(std::make_shared<Damage>()) {}

Database::~Database() {
  if (db_ != nullptr) rocksdb::CancelAllBackgroundWork(db_.get(), /*wait=*/false);
  damage_->Release();
  for (rocksdb::ColumnFamilyHandle* family : families_) db_->DestroyColumnFamilyHandle(family);
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& dir) {
  std::error_code error;
  std::filesystem::create_directories(absl::StrCat(dir, "/db"), error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("data directory ", dir, ": cannot be made: ", error.message()));
  }
  std::unique_ptr<Database> database(new Database(dir));
  MP_RETURN_IF_ERROR(CheckFiles(dir + "/db"));
  MP_RETURN_IF_ERROR(database->OpenRocks());
  MP_RETURN_IF_ERROR(database->CheckTables());
  database->mark_ = std::make_unique<LogMark>(dir + "/db");
  MP_RETURN_IF_ERROR(database->CheckFormat());
  return database;
}

absl::Status Database::OpenRocks() {
  rocksdb::Options logs = BaseOptions();
  logs.write_buffer_size = kLogWriteBufferBytes;
  rocksdb::Options meta = MetaFileOptions();
  meta.disable_auto_compactions =
      true;  // until it is verified: they read, and delete what they read
  const std::vector<rocksdb::ColumnFamilyDescriptor> wanted = {
      {rocksdb::kDefaultColumnFamilyName, meta},
      {"chunks", ChunkFileOptions()},
      {"logs", logs},
      {"curves", logs}};
  rocksdb::DBOptions options = DatabaseOptions();
  options.listeners.push_back(damage_);
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(options, absl::StrCat(dir_, "/db"), wanted, &families_, &db);
  if (status.ok()) {
    db_.reset(db);
    return absl::OkStatus();
  }
  families_.clear();
  const std::string text = status.ToString();
  // Before what is said of the lock: it is a file, which cannot be made there.
  if (text.find("Permission denied") != std::string::npos ||
      text.find("Read-only file system") != std::string::npos) {
    return absl::PermissionDeniedError(
        absl::StrCat("data directory ", dir_, " cannot be written: ", text));
  }
  if (text.find("lock") != std::string::npos && text.find("LOCK") != std::string::npos) {
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", dir_,
                     " is in use by another milepost-coordinator: stop it, or give this one "
                     "its own --data-dir"));
  }
  if (text.find("Column families not opened") != std::string::npos) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data directory ", dir_, " was written by a newer version of milepost: ", text));
  }
  absl::Status error =
      FromRocks(status, absl::StrCat("data directory ", dir_, " cannot be opened"));
  if (!absl::IsDataLoss(error)) return error;
  return absl::DataLossError(absl::StrCat(error.message(), kStoreIsDamaged));
}

absl::Status Database::CheckTables() {
  MP_RETURN_IF_ERROR(VerifyTables(db(), rocksdb::kDefaultColumnFamilyName));
  return FromRocks(db_->EnableAutoCompaction({meta()}), absl::StrCat("opening ", dir_));
}

absl::Status Database::CheckFormat() {
  std::string text;
  absl::Status status = Get(meta(), kFormatKey, &text);
  if (absl::IsNotFound(status)) {
    rocksdb::WriteBatch batch;
    batch.Put(meta(), kFormatKey, absl::StrCat(kFormatVersion));
    return Write(&batch, /*sync=*/true);
  }
  MP_RETURN_IF_ERROR(status);
  int version = 0;
  if (!absl::SimpleAtoi(text, &version) || version < 1) {
    return absl::DataLossError(
        absl::StrCat("data directory ", dir_, ": format version '", text, "' is not a number"));
  }
  if (version > kFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("data directory ", dir_, " has format ", version,
                     ", written by a newer version of milepost; ", "this one reads up to format ",
                     kFormatVersion, ": use the newer milepost-coordinator"));
  }
  return absl::OkStatus();
}

absl::Status Database::Write(rocksdb::WriteBatch* batch, bool sync, Space space) {
  MP_RETURN_IF_ERROR(CheckSpace(space));
  if (damage_->TakeStopCompactions()) StopCompactions();
  rocksdb::WriteOptions options;
  options.sync = sync;
  options.protection_bytes_per_key = 8;
  if (!sync) return FromRocks(db_->Write(options, batch), absl::StrCat("writing to ", dir_));
  // What was there before is synced with it, and it comes after that.
  const auto [log, bytes] = CurrentLog();
  const uint64_t written = kLogHeaderBytes + batch->GetDataSize();
  MP_RETURN_IF_ERROR(FromRocks(db_->Write(options, batch), absl::StrCat("writing to ", dir_)));
  if (log > 0 && CurrentLog().first == log) mark_->Note(log, bytes + written);
  return absl::OkStatus();
}

void Database::StopCompactions() {
  for (rocksdb::ColumnFamilyHandle* family : {meta(), logs(), curves()}) {
    const rocksdb::Status status = db_->SetOptions(family, {{"disable_auto_compactions", "true"}});
    if (!status.ok()) spdlog::warn("compactions go on: {}", status.ToString());
  }
}

absl::Status Database::SyncLog() {
  const auto [log, bytes] = CurrentLog();
  MP_RETURN_IF_ERROR(FromRocks(db_->SyncWAL(), absl::StrCat("writing to ", dir_)));
  if (log > 0) mark_->Note(log, bytes);
  return absl::OkStatus();
}

std::pair<uint64_t, uint64_t> Database::CurrentLog() const {
  std::unique_ptr<rocksdb::LogFile> log;
  if (!db_->GetCurrentWalFile(&log).ok() || log == nullptr) return {0, 0};
  return {log->LogNumber(), log->SizeFileBytes()};
}

absl::Status Database::CheckSpace(Space space) const {
  MP_ASSIGN_OR_RETURN(const uint64_t free, FreeBytes(dir_));
  // A deletion is small, and what makes room must not wait for room.
  const uint64_t least = space == Space::kFrees ? kLowSpaceBytes / 8 : kLowSpaceBytes;
  return free >= least ? absl::OkStatus() : DiskFull(dir_, free, least);
}

absl::Status Database::Get(rocksdb::ColumnFamilyHandle* family, absl::string_view key,
                           std::string* value) const {
  const absl::Status status = FromRocks(
      db_->Get(rocksdb::ReadOptions(), family, rocksdb::Slice(key.data(), key.size()), value),
      absl::StrCat("reading ", dir_));
  if (family == meta()) damage_->NoteRecords(status);
  return status;
}

}  // namespace milepost::coordinator
