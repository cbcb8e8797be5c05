// The templates of all projects (docs/use/jobs.md, "Templates"). Thread-safe; changes block on the
// disk, and whoever reads meanwhile waits for them.
//
//   TemplateTable templates(store);
//   MP_RETURN_IF_ERROR(templates.Load());
//   MP_ASSIGN_OR_RETURN(v1::Template made, templates.Put(wanted, {.create = true}, absl::Now()));
#ifndef MILEPOST_COORDINATOR_RPC_TEMPLATE_TABLE_H_
#define MILEPOST_COORDINATOR_RPC_TEMPLATE_TABLE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

class Store;

// "projects/p/templates/gpt2"
std::string TemplateName(absl::string_view project, absl::string_view id);
// Of such a name; empty when it is not of that form.
std::string ProjectOfTemplate(absl::string_view name);

struct TemplateLimits {
  size_t of_project = 100;
  size_t of_all = 2000;
};

class TemplateTable {
 public:
  explicit TemplateTable(Store* store, const TemplateLimits& limits = {})
      : store_(store), limits_(limits) {}
  // What is stored; once, before all else.
  absl::Status Load();

  absl::StatusOr<v1::Template> Get(const std::string& name);
  // By name, after `after`, without their text: those whose project `wanted` answers true to.
  std::vector<v1::Template> List(const std::string& after, int limit,
                                 const std::function<bool(const std::string&)>& wanted);

  struct PutOptions {
    bool create = false;  // ALREADY_EXISTS when there is one; else NOT_FOUND when there is none
    bool allow_missing = false;
    bool validate_only = false;
  };
  // INVALID_ARGUMENT for a text that is no template; ABORTED unless the etag is empty or its own.
  absl::StatusOr<v1::Template> Put(const v1::Template& wanted, const PutOptions& options,
                                   absl::Time now);
  absl::Status Delete(const std::string& name, const std::string& etag);

 private:
  absl::StatusOr<const v1::TemplateRecord*> FindLocked(const std::string& name) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoomLocked(const std::string& project) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Store* const store_;
  const TemplateLimits limits_;
  absl::Mutex mutex_;
  std::map<std::string, v1::TemplateRecord> records_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_TEMPLATE_TABLE_H_
