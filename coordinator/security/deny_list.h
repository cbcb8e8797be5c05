// Workers that are shut out although their certificates are valid. They are listed in a file, one
// id per line, which is read again when it changes. Without a file nobody is denied.
//
// The list fails closed when the file cannot be read, or has a line that cannot be an id. Denied
// workers then stay denied, and the ids on valid lines are denied too. Before any good read, every
// worker is denied. The error is logged. Thread-safe; time is an argument.
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

// The file's name in the coordinator's folder of certificates.
inline constexpr char kDeniedWorkersFile[] = "denied-workers";

class DenyList {
 public:
  // Empty: nobody is denied.
  explicit DenyList(std::string path) : path_(std::move(path)) {}

  // True when the worker with this id is denied. Checks the file at most once a second.
  bool Has(absl::string_view id, absl::Time now);

 private:
  // False: the file cannot be read, or has lines that cannot be ids. `ids` gets the others.
  bool Parse(absl::flat_hash_set<std::string>* ids, std::string* why) const;
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  absl::Mutex mutex_;
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::flat_hash_set<std::string> ids_ ABSL_GUARDED_BY(mutex_);
  bool known_ ABSL_GUARDED_BY(mutex_) = false;   // a good file, or no file, was seen once
  std::string trouble_ ABSL_GUARDED_BY(mutex_);  // the last error that was logged
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_DENY_LIST_H_
