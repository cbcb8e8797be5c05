// Errors as clients of OpenAI's API expect them.
//
//   return BadParameter("n", "this server makes one answer: n must be 1");
//   ...
//   answer({.status = HttpStatusOf(status), .body = ErrorJson(status)});
//
// Inside, an error is a status (common/http/http_status.h). Pure; thread-safe.
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

// {"error": {"message", "type", "param", "code"}}, on one line; param and code may be null.
std::string ErrorJson(const absl::Status& status);

// What HttpServer refuses with this HTTP status, in the same form.
std::string ErrorJson(int http_status, absl::string_view message);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_API_ERROR_H_
