// The parameters of the API that are not honoured. Internal to api_request.h.
#ifndef MILEPOST_CLIENT_SERVE_API_REFUSALS_H_
#define MILEPOST_CLIENT_SERVE_API_REFUSALS_H_

#include <nlohmann/json.hpp>

#include "absl/status/status.h"

namespace milepost::client {

// INVALID_ARGUMENT names a parameter of the object whose value asks for what is not there. Pure.
absl::Status CheckRefusals(const nlohmann::json& request);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_SERVE_API_REFUSALS_H_
