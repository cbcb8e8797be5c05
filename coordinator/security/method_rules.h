// The one table of who may call what. A method that is not in it is called by nobody.
#ifndef MILEPOST_COORDINATOR_SECURITY_METHOD_RULES_H_
#define MILEPOST_COORDINATOR_SECURITY_METHOD_RULES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "milepost/v1/auth.pb.h"

namespace milepost::coordinator {

// What the call is about, and so where the role must be held.
enum class Scope {
  kProject,  // a job, a checkpoint or a project that the request names
  kVisible,  // nothing by itself: the answer holds what the caller may see
  kCluster,  // queues, workers, who joins: a role for "*"
  kAttempt,  // a worker's own jobs
};

enum class Audit {
  kRefusals,  // reads, and what happens many times a second
  kAlways,
};

struct MethodRule {
  absl::string_view method;  // "/milepost.v1.JobService/GetJob"
  v1::Role role;             // UNSPECIFIED: anybody who is let in
  Scope scope;
  Audit audit;
  // A worker may call it too, for what its jobs need.
  bool also_worker = false;
};

absl::Span<const MethodRule> AllRules();
// nullptr: nobody may call it.
const MethodRule* FindRule(absl::string_view method);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_METHOD_RULES_H_
