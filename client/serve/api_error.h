// Errors as clients of OpenAI's API expect them.
//
//   return BadParameter("n", "this server makes one answer: n must be 1");
//   ...
//   answer({.status = HttpStatusOfError(status), .body = ErrorJson(status)});
//
// Inside, an error is a status. INVALID_ARGUMENT is 400, UNAUTHENTICATED 401, PERMISSION_DENIED
// 403, NOT_FOUND 404, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503, and all else 500. Pure; thread-safe.
#ifndef MILEPOST_CLIENT_SERVE_API_ERROR_H_
#define MILEPOST_CLIENT_SERVE_API_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace milepost::client {

// INVALID_ARGUMENT about a parameter, "messages[0].content". `code`: what programs tell errors
// apart by; empty: none.
absl::Status BadParameter(absl::string_view param, absl::string_view message,
                          absl::string_view code = "");
// A code for another error.
absl::Status WithErrorCode(absl::Status status, absl::string_view code);

int HttpStatusOfError(const absl::Status& status);
// {"error": {"message", "type", "param", "code"}}, on one line; param and code may be null.
std::string ErrorJson(const absl::Status& status);

// What HttpServer refuses with this HTTP status, in the same form.
std::string ErrorJson(int http_status, absl::string_view message);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_API_ERROR_H_
