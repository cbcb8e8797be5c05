// Refusals that programs can react to: statuses with the details of error_details.proto.
//
//   return Refusal(v1::ERROR_REASON_JOB_NOT_FOUND, name,
//                  absl::StrCat("there is no job '", name, "'"));
//
// A detail is a payload of the status, keyed by its type's URL, so Annotate keeps it.
// common/rpc/status.h carries it over the network. Pure and thread-safe.
#ifndef MILEPOST_COMMON_ERROR_DETAILS_H_
#define MILEPOST_COMMON_ERROR_DETAILS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "milepost/v1/error_details.pb.h"

namespace milepost {

inline constexpr char kErrorDomain[] = "milepost";
// The prefix of a detail's type URL; the type's name follows.
inline constexpr char kDetailUrlPrefix[] = "type.googleapis.com/google.rpc.";

// "JOB_NOT_FOUND"
std::string ReasonName(v1::ErrorReason reason);
// UNSPECIFIED: the name is unknown.
v1::ErrorReason ReasonOfName(absl::string_view name);
// The status code that belongs to the reason; kUnknown for UNSPECIFIED.
absl::StatusCode CodeOf(v1::ErrorReason reason);

// A status with the reason's code and an ErrorInfo. FAILED_PRECONDITION also gets a
// PreconditionFailure, and RESOURCE_EXHAUSTED a QuotaFailure. `subject` names what the refusal is
// about, or whose limit was reached. It may be empty.
absl::Status Refusal(v1::ErrorReason reason, absl::string_view subject, absl::string_view message);

// Adds a RetryInfo: the call may succeed when it is repeated after `delay`.
absl::Status RetryAfter(absl::Status refusal, absl::Duration delay);

// UNSPECIFIED: the status has no reason, or an unknown one.
v1::ErrorReason ReasonOf(const absl::Status& status);
// The delay after which the status asks for a retry. Nullopt: it has none.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

// Puts a message of error_details.proto into the status. It replaces one of the same type.
void SetDetail(const google::protobuf::Message& detail, absl::Status* status);

}  // namespace milepost

#endif  // MILEPOST_COMMON_ERROR_DETAILS_H_
