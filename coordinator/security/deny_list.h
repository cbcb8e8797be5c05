// Workers that are shut out although their certificates are good: a file with an id a line, read
// again when it changes. No file: nobody is. A file that cannot be read lets nobody in who was out,
// and nobody at all before one was read; so does a line that can be no id, beside what the other
// lines say. Either is logged. Thread-safe; time is an argument.
#ifndef MILEPOST_COORDINATOR_SECURITY_DENY_LIST_H_
#define MILEPOST_COORDINATOR_SECURITY_DENY_LIST_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

// In the coordinator's folder of certificates.
inline constexpr char kDeniedWorkersFile[] = "denied-workers";

class DenyList {
 public:
  // Empty: nobody is denied.
  explicit DenyList(std::string path) : path_(std::move(path)) {}

  // Of a worker's id. Looks at the file at most once a second.
  bool Has(absl::string_view id, absl::Time now);

 private:
  // False: the file cannot be read, or has lines that cannot be ids. `ids`: the others.
  bool Parse(absl::flat_hash_set<std::string>* ids, std::string* why) const;
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::flat_hash_set<std::string> ids_ ABSL_GUARDED_BY(mutex_);
  bool known_ ABSL_GUARDED_BY(mutex_) = false;   // once there was a good one, or none
  std::string trouble_ ABSL_GUARDED_BY(mutex_);  // that was logged
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_DENY_LIST_H_
