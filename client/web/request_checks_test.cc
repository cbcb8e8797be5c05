#include "client/web/request_checks.h"

#include <gtest/gtest.h>

namespace milepost::client {
namespace {

HttpRequest PostOf(const std::string& origin, const std::string& type = "application/json") {
  return {.method = "POST",
          .path = "/login",
          .host = "127.0.0.1:7080",
          .origin = origin,
          .content_type = type};
}

TEST(RequestChecks, HostsAreOurs) {
  const auto host = [](const std::string& name) {
    return CheckHost({.method = "GET", .path = "/", .host = name}, {"Train.example.org", "0.0.0.0"})
        .ok();
  };
  for (const char* good : {"127.0.0.1:7080", "localhost", "LOCALHOST:1", "[::1]:7080", "127.9.9.9",
                           "train.example.org:7080"}) {
    EXPECT_TRUE(host(good)) << good;
  }
  for (const char* bad : {"", ":7080", "evil.example", "127.0.0.1.evil.example", "localhost.evil:1",
                          "127.evil.example", "train.example.org.evil:80", "[::2]:7080"}) {
    EXPECT_FALSE(host(bad)) << bad;
  }
}

TEST(RequestChecks, PostsComeFromOurOwnPage) {
  const auto may = [](const HttpRequest& request, bool by_cookie, bool secure = false) {
    return CheckSite(request, secure, by_cookie).ok();
  };
  EXPECT_TRUE(may(PostOf("http://127.0.0.1:7080"), true));
  EXPECT_TRUE(may(PostOf(""), false));  // a program
  EXPECT_FALSE(may(PostOf(""), true));
  EXPECT_FALSE(may(PostOf("null"), false));
  EXPECT_FALSE(may(PostOf("http://evil.example"), false));
  EXPECT_FALSE(may(PostOf("http://127.0.0.1:7081"), false));  // another server of this host
  EXPECT_FALSE(may(PostOf("http://127.0.0.1:7080"), true, /*secure=*/true));
  EXPECT_TRUE(may(PostOf("https://127.0.0.1:7080"), true, /*secure=*/true));
}

TEST(RequestChecks, PostsAreJson) {
  for (const char* type : {"text/plain", "", "application/x-www-form-urlencoded",
                           "multipart/form-data", "text/plain; application/json"}) {
    EXPECT_FALSE(CheckSite(PostOf("http://127.0.0.1:7080", type), false, true).ok()) << type;
  }
  EXPECT_TRUE(
      CheckSite(PostOf("http://127.0.0.1:7080", "Application/JSON; charset=utf-8"), false, true)
          .ok());
}

TEST(RequestChecks, NothingIsForOtherSites) {
  HttpRequest request{.method = "GET", .path = "/api/v1/session", .host = "localhost:7080"};
  for (const char* site : {"cross-site", "same-site"}) {
    request.fetch_site = site;
    EXPECT_FALSE(CheckSite(request, false, true).ok()) << site;
  }
  for (const char* site : {"", "same-origin", "none"}) {
    request.fetch_site = site;
    EXPECT_TRUE(CheckSite(request, false, true).ok()) << site;
  }
}

TEST(RequestChecks, FindsCookiesAndTokens) {
  const HttpRequest request{.method = "GET",
                            .path = "/",
                            .authorization = "bearer  mp_1 ",
                            .cookie = "a=1; milepost-70=x;milepost-7080=y=z ; b=2"};
  EXPECT_EQ(CookieOf(request, "milepost-7080"), "y=z");
  EXPECT_EQ(CookieOf(request, "milepost-708"), "");
  EXPECT_EQ(BearerOf(request), "mp_1");
  EXPECT_EQ(BearerOf({.method = "GET", .path = "/", .authorization = "Basic YTpi"}), "");
}

}  // namespace
}  // namespace milepost::client
