// Which jobs a List call is about.
//
//   MP_RETURN_IF_ERROR(CheckFilter(request));
//   if (Matches(request, job)) ...
//
// Pure.
#ifndef MILEPOST_COORDINATOR_CORE_JOB_FILTER_H_
#define MILEPOST_COORDINATOR_CORE_JOB_FILTER_H_

#include <string>

#include "absl/status/status.h"
#include "milepost/v1/job.pb.h"

namespace milepost::coordinator {

// INVALID_ARGUMENT, naming the field, when it cannot be asked for.
absl::Status CheckFilter(const v1::ListJobsRequest& request);

// All of the request's fields but `project`, which is the caller's right as well, and the page.
bool Matches(const v1::ListJobsRequest& request, const v1::Job& job);

// The same for requests that differ only in their page; else another, but for a chance of 2^-64.
std::string FilterDigest(const v1::ListJobsRequest& request);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_JOB_FILTER_H_
