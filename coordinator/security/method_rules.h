// The only table of who may call what. Nobody can call a method that is not in it. Pure and
// thread-safe.
#ifndef MILEPOST_COORDINATOR_SECURITY_METHOD_RULES_H_
#define MILEPOST_COORDINATOR_SECURITY_METHOD_RULES_H_

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "milepost/v1/auth.pb.h"

namespace milepost::coordinator {

// What the call is about. The caller needs the role there.
enum class Scope {
  kProject,  // a job, checkpoint or project that the request names
  kVisible,  // nothing: the answer holds what the caller may see
  kCluster,  // queues, workers, joining hosts: a role for "*"
  kAttempt,  // a worker's own jobs
};

enum class Audit {
  kRefusals,  // reads, and calls that happen many times a second
  kAlways,
};

struct MethodRule {
  absl::string_view method;  // "/milepost.v1.JobService/GetJob"
  v1::Role role;             // UNSPECIFIED: every authenticated caller
  Scope scope;
  Audit audit;
  // A worker may also call it, for what its jobs need.
  bool also_worker = false;
};

absl::Span<const MethodRule> AllRules();
// nullptr: nobody may call it.
const MethodRule* FindRule(absl::string_view method);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_METHOD_RULES_H_
