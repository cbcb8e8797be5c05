#include "client/serve/api_error.h"

#include <nlohmann/json.hpp>

#include "absl/strings/cord.h"
#include "common/http/http_status.h"

namespace milepost::client {
namespace {

using ErrorFields = nlohmann::ordered_json;

constexpr char kParam[] = "milepost/api-param";
constexpr char kCode[] = "milepost/api-code";

ErrorFields Payload(const absl::Status& status, const char* name) {
  const auto found = status.GetPayload(name);
  return found.has_value() ? ErrorFields(std::string(*found)) : ErrorFields(nullptr);
}

const char* TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string ErrorText(int http_status, absl::string_view message, ErrorFields param,
                      ErrorFields code) {
  const ErrorFields error = {{"message", std::string(message)},
                             {"type", TypeOf(http_status)},
                             {"param", std::move(param)},
                             {"code", std::move(code)}};
  return ErrorFields({{"error", error}})
      .dump(-1, ' ', false, ErrorFields::error_handler_t::replace);
}

}  // namespace

absl::Status BadParameter(absl::string_view param, absl::string_view message,
                          absl::string_view code) {
  absl::Status status = absl::InvalidArgumentError(message);
  status.SetPayload(kParam, absl::Cord(param));
  return code.empty() ? status : WithErrorCode(std::move(status), code);
}

absl::Status WithErrorCode(absl::Status status, absl::string_view code) {
  status.SetPayload(kCode, absl::Cord(code));
  return status;
}

std::string ErrorJson(const absl::Status& status) {
  return ErrorText(HttpStatusOf(status), status.message(), Payload(status, kParam),
                   Payload(status, kCode));
}

std::string ErrorJson(int http_status, absl::string_view message) {
  return ErrorText(http_status, message, nullptr, nullptr);
}

}  // namespace milepost::client
