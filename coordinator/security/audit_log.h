// The audit log: one line of JSON for each call that changed something or was refused.
//
//   {"time":"2026-01-02T03:04:05.678Z","principal":"tokens/ab","user":"alice",
//    "method":"JobService/CancelJob","resource":"jobs/7","project":"research","code":"OK",
//    "peer":"ipv4:10.0.0.9:51234","request_id":""}
//
// Append-only. At `max_bytes` the file becomes PATH.1, older ones move up, and the oldest is
// deleted. The log takes at most (keep + 1) * max_bytes on disk, and max_bytes more when the file
// cannot be moved.
//
// Refused and failed calls are limited per second, for one caller and in total. Further ones are
// only counted, and reported in one line ("suppressed"). So nobody can push out records of what
// others did. Lines are not synced: they survive the process, but not a crash of the machine.
//
// Thread-safe. Blocks on the file.
#ifndef MILEPOST_COORDINATOR_SECURITY_AUDIT_LOG_H_
#define MILEPOST_COORDINATOR_SECURITY_AUDIT_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {

struct AuditEntry {
  absl::Time time;
  std::string principal;
  std::string user;
  std::string method;
  std::string resource;
  std::string project;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string peer;
  std::string request_id;
};

// The line with its newline. Fields that are too long are cut.
std::string AuditLine(const AuditEntry& entry);

struct AuditOptions {
  std::string path;
  int64_t max_bytes = 64 << 20;
  int keep = 4;
  int refusals_per_second = 50;  // refusals and failures of all callers
  int refusals_per_caller = 10;  // likewise, of one caller
};

class AuditLog {
 public:
  // Errors such as PERMISSION_DENIED name the path.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const AuditOptions& options);

  // When the entry cannot be written, the process's log says so.
  void Write(const AuditEntry& entry);

 private:
  explicit AuditLog(const AuditOptions& options) : options_(options) {}
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WriteWhole(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Rotate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Append(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Suppress(const AuditEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AuditOptions options_;
  absl::Mutex mutex_;
  UniqueFd fd_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t second_ ABSL_GUARDED_BY(mutex_) = 0;  // in which the refusals were counted
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int> of_caller_ ABSL_GUARDED_BY(mutex_);  // parts of refusals_
  int64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool complained_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_AUDIT_LOG_H_
