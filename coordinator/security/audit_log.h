// Who did what: a line of JSON per call that changed something or was refused.
//
//   {"time":"2026-01-02T03:04:05.678Z","principal":"tokens/ab","user":"alice",
//    "method":"JobService/CancelJob","resource":"jobs/7","project":"research","code":"OK",
//    "peer":"ipv4:10.0.0.9:51234","request_id":""}
//
// Append-only. At `max_bytes` the file becomes PATH.1, the older ones move up, and the oldest goes:
// never more than (keep + 1) * max_bytes on disk, and where it cannot be moved max_bytes more. What
// was refused or has failed is counted beyond some a second, of one caller and of all, and told in
// one line ("suppressed"), so that nobody can push out what others did with what they did not.
// Lines are not synced: they survive the process, not the machine.
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

// The line, with its newline; fields that are too long are cut.
std::string AuditLine(const AuditEntry& entry);

struct AuditOptions {
  std::string path;
  int64_t max_bytes = 64 << 20;
  int keep = 4;
  int refusals_per_second = 50;  // and failures, of all callers
  int refusals_per_caller = 10;  // likewise, of one
};

class AuditLog {
 public:
  // PERMISSION_DENIED and the like: the path.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const AuditOptions& options);

  // What cannot be written is told in the process's log.
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
  int64_t second_ ABSL_GUARDED_BY(mutex_) = 0;  // that the refusals were counted in
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int> of_caller_ ABSL_GUARDED_BY(mutex_);  // of refusals_
  int64_t suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool complained_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_AUDIT_LOG_H_
