#include "client/web/request_checks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/rpc/endpoint.h"

namespace milepost::client {

std::string HostOf(absl::string_view host_and_port) {
  const size_t bracket = host_and_port.find(']');
  const size_t colon = bracket == absl::string_view::npos ? host_and_port.find(':')
                                                          : host_and_port.find(':', bracket);
  return absl::AsciiStrToLower(host_and_port.substr(0, colon));
}

absl::Status CheckHost(const HttpRequest& request, const std::vector<std::string>& allowed) {
  const std::string host = HostOf(request.host);
  if (!host.empty() && IsLoopback(host + ":0")) return absl::OkStatus();
  const bool known = std::any_of(allowed.begin(), allowed.end(), [&](const std::string& one) {
    return absl::AsciiStrToLower(one) == host;
  });
  if (known && !host.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("this server is not called '", host,
                   "': `milepost web --allow-host NAME` gives it another name"));
}

absl::Status CheckSite(const HttpRequest& request, bool secure, bool by_cookie) {
  const std::string& site = request.fetch_site;
  if (!site.empty() && site != "same-origin" && site != "none") {
    return absl::PermissionDeniedError("the request comes from another site's page");
  }
  const std::string own = absl::StrCat(secure ? "https://" : "http://", request.host);
  if (!request.origin.empty() && !absl::EqualsIgnoreCase(request.origin, own)) {
    return absl::PermissionDeniedError("the request comes from another site's page");
  }
  if (request.method != "POST") return absl::OkStatus();
  if (by_cookie && request.origin.empty()) {
    return absl::PermissionDeniedError(
        "a POST without Authorization: Bearer, as programs send it, needs a browser's Origin");
  }
  const std::string type = absl::AsciiStrToLower(absl::StripAsciiWhitespace(
      absl::string_view(request.content_type).substr(0, request.content_type.find(';'))));
  if (type == "application/json") return absl::OkStatus();
  return absl::InvalidArgumentError("a POST needs Content-Type: application/json");
}

std::string CookieOf(const HttpRequest& request, absl::string_view name) {
  for (absl::string_view one : absl::StrSplit(request.cookie, ';')) {
    one = absl::StripAsciiWhitespace(one);
    if (absl::ConsumePrefix(&one, name) && absl::ConsumePrefix(&one, "=")) return std::string(one);
  }
  return "";
}

std::string BearerOf(const HttpRequest& request) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(request.authorization, kScheme)) return "";
  return std::string(
      absl::StripAsciiWhitespace(absl::string_view(request.authorization).substr(kScheme.size())));
}

}  // namespace milepost::client
