// Refusals that programs can act on: statuses with the details of error_details.proto.
//
//   return Refusal(v1::ERROR_REASON_JOB_NOT_FOUND, name,
//                  absl::StrCat("there is no job '", name, "'"));
//
// A detail is a payload of the status under its type's URL, so that it outlives Annotate;
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
// Of a detail's type; its name follows.
inline constexpr char kDetailUrlPrefix[] = "type.googleapis.com/google.rpc.";

// "JOB_NOT_FOUND"
std::string ReasonName(v1::ErrorReason reason);
// UNSPECIFIED when it is none that we know.
v1::ErrorReason ReasonOfName(absl::string_view name);
// The one that the reason comes with; kUnknown for UNSPECIFIED.
absl::StatusCode CodeOf(v1::ErrorReason reason);

// With the reason's code, and an ErrorInfo; with FAILED_PRECONDITION a PreconditionFailure too,
// with RESOURCE_EXHAUSTED a QuotaFailure. `subject`: the name of what it is about, or whose limit
// it is; may be empty.
absl::Status Refusal(v1::ErrorReason reason, absl::string_view subject, absl::string_view message);

// The same, with a RetryInfo: repeated after `delay` the call may succeed.
absl::Status RetryAfter(absl::Status refusal, absl::Duration delay);

// UNSPECIFIED: the status has no reason, or none that we know.
v1::ErrorReason ReasonOf(const absl::Status& status);
// That the status asks for.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

// Puts a message of error_details.proto into the status, instead of one of its type.
void SetDetail(const google::protobuf::Message& detail, absl::Status* status);

}  // namespace milepost

#endif  // MILEPOST_COMMON_ERROR_DETAILS_H_
