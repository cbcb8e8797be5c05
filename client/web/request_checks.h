// Checks that a browser's request must pass before the server acts on it. Pure; thread-safe.
//
// A foreign page can make a browser send requests here, with the cookie. The name that it uses may
// be foreign, too, and resolve to this host (DNS rebinding). Therefore:
// - The Host must be one of ours.
// - A request that changes something must be JSON, which no form sends, and of our own Origin.
// - Requests from other sites are refused.
#ifndef MILEPOST_CLIENT_WEB_REQUEST_CHECKS_H_
#define MILEPOST_CLIENT_WEB_REQUEST_CHECKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/http/http_server.h"

namespace milepost::client {

// "a.example:7080" -> "a.example"; "[::1]:7080" -> "[::1]"; in lower case.
std::string HostOf(absl::string_view host_and_port);

// PERMISSION_DENIED unless the Host is localhost, a loopback address, or one of `allowed`.
absl::Status CheckHost(const HttpRequest& request, const std::vector<std::string>& allowed);

// `secure`: the request came over TLS. `by_cookie`: the cookie says who calls. PERMISSION_DENIED:
// the request comes from another site. INVALID_ARGUMENT: a POST is not JSON.
absl::Status CheckSite(const HttpRequest& request, bool secure, bool by_cookie);

// The cookie's value. Empty: there is none.
std::string CookieOf(const HttpRequest& request, absl::string_view name);

// The token of "Authorization: Bearer TOKEN". Empty: there is none.
std::string BearerOf(const HttpRequest& request);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_REQUEST_CHECKS_H_
