#include "coordinator/security/audit_log.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMaxFieldBytes = 512;

std::string TimeText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone());
}

std::string Text(const nlohmann::ordered_json& line) {
  // Bytes that are no UTF-8 come from callers too.
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string AuditLine(const AuditEntry& entry) {
  nlohmann::ordered_json line;
  const auto set = [&](const char* key, const std::string& value) {
    line[key] = value.substr(0, kMaxFieldBytes);
  };
  set("time", TimeText(entry.time));
  set("principal", entry.principal);
  set("user", entry.user);
  set("method", entry.method);
  set("resource", entry.resource);
  set("project", entry.project);
  set("code", absl::StatusCodeToString(entry.code));
  set("peer", entry.peer);
  set("request_id", entry.request_id);
  return Text(line);
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const AuditOptions& options) {
  std::unique_ptr<AuditLog> log(new AuditLog(options));
  absl::MutexLock lock(&log->mutex_);
  MP_RETURN_IF_ERROR(log->OpenFile());
  return log;
}

absl::Status AuditLog::OpenFile() {
  fd_.Reset(open(options_.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  struct stat info = {};
  if (!fd_.ok() || fstat(fd_.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open the audit log ", options_.path));
  }
  bytes_ = info.st_size;
  return absl::OkStatus();
}

void AuditLog::Write(const AuditEntry& entry) {
  absl::MutexLock lock(&mutex_);
  if (Suppress(entry)) return;
  Append(AuditLine(entry));
}

bool AuditLog::Suppress(const AuditEntry& entry) {
  const int64_t second = absl::ToUnixSeconds(entry.time);
  if (second != second_) {
    if (suppressed_ > 0) {
      nlohmann::ordered_json line;
      line["time"] = TimeText(entry.time);
      line["suppressed"] = suppressed_;
      Append(Text(line));
    }
    second_ = second;
    refusals_ = 0;
    of_caller_.clear();
    suppressed_ = 0;
  }
  if (entry.code == absl::StatusCode::kOk) return false;
  // As many callers are known as there are lines for: it is bounded.
  if (refusals_ < options_.refusals_per_second) {
    // Those that nobody has let in are one caller each time: the limit of all is theirs.
    const bool known = !entry.user.empty() || entry.principal != "nobody";
    if (!known || ++of_caller_[entry.principal] <= options_.refusals_per_caller) {
      ++refusals_;
      return false;
    }
  }
  ++suppressed_;
  return true;
}

void AuditLog::Append(const std::string& line) {
  const auto size = static_cast<int64_t>(line.size());
  if (bytes_ > 0 && bytes_ + size > options_.max_bytes) Rotate();
  if (bytes_ + size <= 2 * options_.max_bytes && WriteWhole(line)) {
    bytes_ += size;
    complained_ = false;
    return;
  }
  if (!complained_) {
    spdlog::error("the audit log {} cannot be written: is the disk full, or {}.1 in the way?",
                  options_.path, options_.path);
  }
  complained_ = true;
}

bool AuditLog::WriteWhole(const std::string& line) {
  const auto size = static_cast<ssize_t>(line.size());
  const ssize_t written = fd_.ok() ? write(fd_.get(), line.data(), line.size()) : -1;
  // The part of a line would be joined to the next one.
  if (written > 0 && written < size && ftruncate(fd_.get(), bytes_) != 0) bytes_ += written;
  return written == size;
}

void AuditLog::Rotate() {
  const auto name = [&](int age) {
    return age == 0 ? options_.path : absl::StrCat(options_.path, ".", age);
  };
  for (int age = options_.keep - 1; age >= 0; --age) {
    const int failed = std::rename(name(age).c_str(), name(age + 1).c_str());
    if (age == 0 && failed != 0) return;  // on in the same file, which is no longer moved
  }
  if (absl::Status status = OpenFile(); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
  }
}

}  // namespace milepost::coordinator
