// Workers that are shut out although their certificates are good: a file with an id a line, read
// again when it changes. No file: nobody is. Thread-safe; time is an argument.
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
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::flat_hash_set<std::string> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_DENY_LIST_H_
