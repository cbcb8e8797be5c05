// The API as an OpenAPI 3 document, generated from the protobuf descriptors. Pure; thread-safe.
#ifndef MILEPOST_CLIENT_WEB_OPENAPI_H_
#define MILEPOST_CLIENT_WEB_OPENAPI_H_

#include <string>

namespace milepost::client {

// Returns JSON.
std::string OpenApiJson();

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_OPENAPI_H_
