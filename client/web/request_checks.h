// What a browser's request must be like before anything is done for it. Pure; thread-safe.
//
// A page of somebody else's can make a browser send requests here, with the cookie, and by a name
// of his own that leads here (DNS rebinding). So: the Host must be one of ours; what changes
// something must be JSON, which no form sends, and of our own Origin; and nothing is for other
// sites.
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

// The Host is localhost, a loopback address, or one of `allowed`. PERMISSION_DENIED.
absl::Status CheckHost(const HttpRequest& request, const std::vector<std::string>& allowed);

// `secure`: over TLS. `by_cookie`: it counts for whoever is logged in. PERMISSION_DENIED: of
// another site; INVALID_ARGUMENT: a POST that is no JSON.
absl::Status CheckSite(const HttpRequest& request, bool secure, bool by_cookie);

// The cookie's value; empty: there is none.
std::string CookieOf(const HttpRequest& request, absl::string_view name);

// Of "Authorization: Bearer TOKEN"; empty: there is none.
std::string BearerOf(const HttpRequest& request);

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_WEB_REQUEST_CHECKS_H_
