// The HTTP status of an error.
//
//   answer({.status = HttpStatusOf(status), .body = ...});
//
// As google.rpc.Code assigns them:
// https://github.com/googleapis/googleapis/blob/master/google/rpc/code.proto. Pure; thread-safe.
#ifndef MILEPOST_COMMON_HTTP_HTTP_STATUS_H_
#define MILEPOST_COMMON_HTTP_HTTP_STATUS_H_

#include "absl/status/status.h"

namespace milepost {

int HttpStatusOf(const absl::Status& status);

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_HTTP_STATUS_H_
