// The page's server before a whole coordinator.
#include "client/web/web_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/http/http_test_client.h"
#include "common/proto_time.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/secure_server.h"
#include "coordinator/rpc/server_fixture.h"

namespace milepost::client {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

struct Asked {
  std::string path;
  std::string body = {};  // a POST where there is one
  std::vector<std::string> headers = {};
  std::string authority = {};
};

struct Told : HttpTold {
  json Json() const { return json::parse(body, nullptr, false); }
};

Told Ask(const std::string& url, const Asked& asked) {
  return Told{AskHttp({.url = absl::StrCat(url.substr(0, url.size() - 1), asked.path),
                       .body = asked.body,
                       .headers = asked.headers,
                       .authority = asked.authority})};
}

// One stream of server-sent events, in plain text. What is not read waits in the server.
class Events : public HttpRawClient {
 public:
  Events(const std::string& url, const std::string& path, const std::string& headers = "")
      : HttpRawClient(url,
                      absl::StrCat("GET ", path,
                                   " HTTP/1.1\r\nHost: localhost\r\n"
                                   "Accept: text/event-stream\r\n",
                                   headers, "\r\n"),
                      /*few_bytes=*/true) {}
};

class WebServerTest : public coordinator::ServerTest {
 protected:
  WebServerTest() { StartWeb(); }
  ~WebServerTest() override { web_.reset(); }
  void StartWeb() {
    options_web_.listen = "127.0.0.1:0";
    options_web_.coordinator = Endpoint(server_->address());
    options_web_.api.watches.comment_every = absl::Milliseconds(50);
    options_web_.api.watches.most_bytes = 128 << 10;
    auto web = WebServer::Start(options_web_);
    ASSERT_TRUE(web.ok()) << web.status();
    web_ = *std::move(web);
  }
  Told Tell(const Asked& asked) { return Ask(web_->url(), asked); }
  // Over a connection of its own, as it is.
  std::string Raw(const std::string& head) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const std::string& url = web_->url();
    sockaddr_in name = {.sin_family = AF_INET,
                        .sin_port = htons(std::stoi(url.substr(url.rfind(':') + 1)))};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    for (size_t sent = 0; sent < head.size();) {
      const ssize_t count = send(fd.get(), head.data() + sent, head.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) break;
      sent += count;
    }
    std::string all;
    char buffer[4096];
    pollfd ready = {.fd = fd.get(), .events = POLLIN};
    while (poll(&ready, 1, 30'000) == 1) {
      const ssize_t count = read(fd.get(), buffer, sizeof buffer);
      if (count <= 0) return all;
      all.append(buffer, count);
      if (absl::StrContains(all, "\r\n\r\n")) return all;
    }
    return all + " (still open)";
  }

  WebOptions options_web_;
  std::unique_ptr<WebServer> web_;
};

TEST_F(WebServerTest, PassesCallsOn) {
  const std::string job = Submit();
  EXPECT_EQ(Tell({"/api/v1/JobService/GetJob?name=" + job}).Json()["spec"]["name"], "test");
  const Told list =
      Tell({"/api/v1/JobService/ListJobs?$fields=jobs.name", R"({"states":["JOB_STATE_QUEUED"]})"});
  EXPECT_EQ(list.body, absl::StrCat(R"({"jobs":[{"name":")", job, R"("}]})"));
  EXPECT_THAT(list.head, HasSubstr("no-store"));
  const Told cancelled =
      Tell({"/api/v1/JobService/CancelJob", absl::StrCat(R"({"name":")", job, R"("})")});
  EXPECT_EQ(cancelled.Json()["state"], "JOB_STATE_CANCELLED");
  // At once, although what was read a moment ago is kept.
  EXPECT_EQ(Tell({"/api/v1/JobService/GetJob?name=" + job}).Json()["state"], "JOB_STATE_CANCELLED");
}

TEST_F(WebServerTest, ErrorsAreTheCoordinators) {
  const Told unknown = Tell({"/api/v1/JobService/GetJob?name=jobs/99"});
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.Json()["message"], "there is no job 'jobs/99'");
  EXPECT_EQ(unknown.Json()["details"][0]["reason"], "JOB_NOT_FOUND");
  EXPECT_EQ(Tell({"/api/v1/JobService/SubmitJob", R"({"spec":{"name":"x"}})"}).status, 400);
  EXPECT_EQ(Tell({"/api/v1/JobService/GetJob?nam=jobs/99"}).status, 400);
  EXPECT_EQ(Tell({"/api/v1/JobService/CancelJob?name=jobs/99"}).status, 405);
  EXPECT_EQ(Tell({"/api/v1/JobService/Nothing"}).status, 404);
  EXPECT_EQ(Tell({"/api/v1/WorkerService/Session", "{}"}).status, 404);
  EXPECT_EQ(Tell({"/api/v1/JobService/WatchJob?name=jobs/99"}).status, 400);  // no Accept
}

TEST_F(WebServerTest, WatchesAreShared) {
  const std::string job = Submit();
  const std::string path =
      absl::StrCat("/api/v1/JobService/WatchJob?name=", job, "&$fields=name,state");
  std::vector<std::unique_ptr<Events>> pages;
  for (int i = 0; i < 20; ++i) {
    pages.push_back(std::make_unique<Events>(web_->url(), path));
    EXPECT_THAT(pages.back()->Until("JOB_STATE_QUEUED"), HasSubstr("data: {\"name\":\"" + job));
  }
  EXPECT_EQ(web_->coordinator_streams(), 1u);
  ASSERT_EQ(
      Tell({"/api/v1/JobService/CancelJob", absl::StrCat(R"({"name":")", job, R"("})")}).status,
      200);
  for (const auto& page : pages) {
    const std::string all = page->Until("event: end");
    EXPECT_THAT(all, HasSubstr("JOB_STATE_CANCELLED"));
    EXPECT_THAT(page->Until("\"code\":0"), HasSubstr("event: end\ndata: {\"code\":0"));
  }
}

TEST_F(WebServerTest, StreamsThatNobodyReadsEnd) {
  const std::string job = Submit();
  {
    Events page(web_->url(), "/api/v1/JobService/WatchJob?name=" + job);
    page.Until("data:");
    EXPECT_EQ(web_->coordinator_streams(), 1u);
  }
  while (web_->coordinator_streams() > 0) absl::SleepFor(absl::Milliseconds(5));
}

TEST_F(WebServerTest, LogsArriveWhole) {
  coordinator::FakeWorker worker(server_->address(), "a", 1);
  EXPECT_TRUE(worker.Receive().has_welcome());
  const std::string job = Submit();
  const v1::StartRank rank = worker.Receive().start_rank();
  // More than may wait for a reader.
  constexpr int kLines = 400;
  for (int i = 0; i < kLines; ++i) {
    v1::LogLine line;
    line.set_job(job);
    line.set_generation(rank.generation());
    *line.mutable_time() = ToProto(absl::Now());
    line.set_text(absl::StrCat("line ", i, " ", std::string(8000, 'x'), "<script>"));
    worker.Log(line);
  }
  Events page(web_->url(),
              absl::StrCat("/api/v1/JobService/StreamLogs?name=", job, "&follow=true"));
  const std::string all = page.Until(absl::StrCat("line ", kLines - 1, " "));
  for (int i = 0; i < kLines; ++i) {
    EXPECT_THAT(all, HasSubstr(absl::StrCat("line ", i, " "))) << i;
  }
  EXPECT_THAT(all, Not(HasSubstr("<script>")));  // JSON has < as \u003c
}

TEST_F(WebServerTest, RecoversWhenTheCoordinatorDoes) {
  const std::string job = Submit();
  Events page(web_->url(), "/api/v1/JobService/WatchJob?name=" + job);
  page.Until("data:");
  const std::string address = server_->address();
  server_.reset();
  EXPECT_THAT(page.Until("event: end"), HasSubstr("event: end"));
  EXPECT_THAT(page.Until("\"code\":14"), HasSubstr("\"code\":14"));
  EXPECT_EQ(Tell({"/api/v1/JobService/GetJob?name=" + job}).status, 503);
  options_.listen = address;
  Start();
  while (Tell({"/api/v1/JobService/GetJob?name=" + job}).status == 503) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(Tell({"/api/v1/JobService/GetJob?name=" + job}).Json()["name"], job);
}

TEST_F(WebServerTest, OtherSitesGetNothing) {
  const auto status = [&](std::vector<std::string> headers, const std::string& body = "{}") {
    return Tell({"/api/v1/JobService/ListJobs", body, std::move(headers)}).status;
  };
  const std::string own = web_->url().substr(0, web_->url().size() - 1);
  EXPECT_EQ(status({"Origin: " + own}), 200);
  EXPECT_EQ(status({"Origin: http://evil.example"}), 403);
  EXPECT_EQ(status({"Origin: null"}), 403);
  EXPECT_EQ(status({"Sec-Fetch-Site: cross-site"}), 403);
  EXPECT_EQ(status({"Sec-Fetch-Site: same-site"}, ""), 403);
  EXPECT_EQ(status({"Host: evil.example"}), 403);
  EXPECT_EQ(Tell({"/", "", {"Host: evil.example"}}).status, 403);
  EXPECT_THAT(Raw("POST /api/v1/JobService/ListJobs HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}"),
              HasSubstr(" 400 "));
}

TEST_F(WebServerTest, AbuseIsRefused) {
  EXPECT_THAT(Raw("POST /api/v1/JobService/ListJobs HTTP/1.1\r\nHost: localhost\r\n"
                  "Content-Type: application/json\r\nContent-Length: 10485760\r\n\r\n{"),
              HasSubstr(" 413 "));
  std::string bomb = "GET / HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 3000; ++i)
    absl::StrAppend(&bomb, "X-", i, ": ", std::string(50, 'a'), "\r\n");
  EXPECT_THAT(Raw(bomb + "\r\n"), Not(HasSubstr(" 200 ")));
  for (const char* path : {"/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page/../index.htm",
                           "/./style.css", "//etc/passwd", "/index.html/"}) {
    EXPECT_EQ(Tell({path}).status, 404) << path;
  }
  EXPECT_EQ(Tell({"/"}).status, 200);
}

TEST_F(WebServerTest, ThePageIsStrict) {
  const Told page = Tell({"/"});
  EXPECT_THAT(page.head, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page.head, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(page.head, HasSubstr("nosniff"));
  EXPECT_THAT(page.head, Not(HasSubstr("unsafe")));
  EXPECT_THAT(page.body, Not(HasSubstr("<script>")));
  EXPECT_THAT(page.body, Not(HasSubstr("style=")));
  const size_t at = page.head.find("ETag: ");
  ASSERT_NE(at, std::string::npos);
  const std::string tag = page.head.substr(at + 6, page.head.find('\r', at) - at - 6);
  const Told again = Tell({"/", "", {"If-None-Match: " + tag}});
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.body, "");
}

TEST_F(WebServerTest, SpecsAreReadAndWritten) {
  const Told wrong = Tell({"/api/v1/spec:parse", R"({"yaml":"name: a\nmodle: 1\n"})"});
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr("spec:2: modle: unknown field; did you mean 'model'?"));
  const Told parsed =
      Tell({"/api/v1/spec:parse", R"({"yaml":"name: a\ntrain: {precision: bf16}\n"})"});
  EXPECT_EQ(parsed.Json()["spec"]["train"]["precision"], "PRECISION_BF16");
  const Told text = Tell({"/api/v1/spec:render", parsed.body});
  EXPECT_EQ(text.Json()["yaml"], "name: a\ntrain:\n  precision: bf16\n");
  EXPECT_EQ(Tell({"/api/v1/spec:parse", "[]"}).status, 400);
  EXPECT_EQ(Tell({"/api/v1/spec:nothing", "{}"}).status, 404);
}

TEST_F(WebServerTest, ListensOnLoopbackAloneWithoutTls) {
  WebOptions options;
  options.coordinator = Endpoint(server_->address());
  options.listen = "0.0.0.0:0";
  const auto plain = WebServer::Start(options);
  EXPECT_EQ(plain.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(plain.status().message()), HasSubstr("--tls-dir"));
  options.tls_dir = "/nowhere";
  const auto open = WebServer::Start(options);  // everybody would be let in
  EXPECT_EQ(open.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(open.status().message()), HasSubstr("the coordinator lets in"));
  options.listen = "127.0.0.1";
  EXPECT_FALSE(WebServer::Start(options).ok());
}

class SecureWebTest : public coordinator::SecureServerTest {
 protected:
  SecureWebTest() {
    Start();
    Web({});
  }
  ~SecureWebTest() override { web_.reset(); }
  void Web(const SessionOptions& sessions) {
    web_.reset();
    WebOptions options;
    options.listen = "127.0.0.1:0";
    options.tls_dir = dir_ + "/pki/coordinator";
    options.coordinator = User("");
    options.sessions = sessions;
    options.api.calls.kept = absl::ZeroDuration();
    auto web = WebServer::Start(options);
    ASSERT_TRUE(web.ok()) << web.status();
    web_ = *std::move(web);
  }
  Told Tell(Asked asked) {
    asked.authority = dir_ + "/pki/client/ca.crt";
    return Ask(web_->url(), asked);
  }
  std::string Own() const { return "Origin: " + web_->url().substr(0, web_->url().size() - 1); }
  Told Login(const std::string& token) {
    return Tell({"/login", json{{"token", token}}.dump(), {Own()}});
  }
  // As a header to send back.
  static std::string Cookie(const Told& told) {
    const size_t at = told.head.find("Set-Cookie: ");
    if (at == std::string::npos) return "";
    return "Cookie: " + told.head.substr(at + 12, told.head.find(';', at) - at - 12);
  }
  Told Jobs(std::vector<std::string> headers) {
    return Tell({"/api/v1/JobService/ListJobs", "{}", std::move(headers)});
  }

  std::unique_ptr<WebServer> web_;
};

TEST_F(SecureWebTest, NothingWithoutALogin) {
  const Told told = Jobs({});
  EXPECT_EQ(told.status, 403);  // without an Origin it is no page's
  const Told page = Jobs({Own()});
  EXPECT_EQ(page.status, 401);
  EXPECT_EQ(page.Json()["details"][0]["reason"], "CREDENTIALS_MISSING");
  const Told session = Tell({"/api/v1/session"});
  EXPECT_EQ(session.status, 200);
  EXPECT_EQ(session.Json()["loginNeeded"], true);
  EXPECT_FALSE(session.Json().contains("principal"));
  EXPECT_EQ(Login("mp_forged").status, 401);
  EXPECT_EQ(Login("").status, 401);
  EXPECT_EQ(Cookie(Login("mp_forged")), "");
}

TEST_F(SecureWebTest, TokensOfProgramsArePassedOn) {
  const std::string bearer = "Authorization: Bearer " + AdminToken();
  EXPECT_EQ(Jobs({bearer}).status, 200);
  EXPECT_EQ(Jobs({"Authorization: Bearer mp_forged"}).status, 401);
  const char kSpec[] = R"({"yaml":"name: a\n"})";
  EXPECT_EQ(Tell({"/api/v1/spec:parse", kSpec, {"Authorization: Bearer mp_forged"}}).status, 401);
  EXPECT_EQ(Tell({"/api/v1/spec:parse", kSpec, {bearer}}).status, 200);
}

TEST_F(SecureWebTest, ALoginIsACookie) {
  const Told login = Login(AdminToken());
  ASSERT_EQ(login.status, 200) << login.body;
  EXPECT_THAT(login.head, HasSubstr("Set-Cookie: __Host-milepost-"));
  EXPECT_THAT(login.head, HasSubstr("; Path=/; HttpOnly; SameSite=Strict; Secure"));
  EXPECT_THAT(login.head, Not(HasSubstr(AdminToken())));
  const std::string cookie = Cookie(login);
  EXPECT_EQ(Jobs({Own(), cookie}).status, 200);
  EXPECT_EQ(Tell({"/api/v1/JobService/ListJobs", "", {cookie}}).status, 200);
  const Told session = Tell({"/api/v1/session", "", {cookie}});
  EXPECT_EQ(session.Json()["principal"]["grants"][0]["role"], "ROLE_ADMIN");
  // What a browser would send for somebody else's page.
  EXPECT_EQ(Jobs({cookie, "Origin: https://evil.example"}).status, 403);
  EXPECT_EQ(Jobs({cookie}).status, 403);
  EXPECT_EQ(
      Tell({"/api/v1/JobService/ListJobs", "", {cookie, "Sec-Fetch-Site: cross-site"}}).status,
      403);
  EXPECT_EQ(Tell({"/login", R"({"token":"x"})", {"Origin: https://evil.example"}}).status, 403);
  // One digit is another.
  std::string forged = cookie;
  forged.back() = forged.back() == '0' ? '1' : '0';
  EXPECT_EQ(Jobs({Own(), forged}).status, 401);
  EXPECT_EQ(Tell({"/logout", "{}", {Own(), cookie}}).status, 200);
  EXPECT_EQ(Jobs({Own(), cookie}).status, 401);
}

TEST_F(SecureWebTest, RightsAreTheTokens) {
  v1::Job job;
  ASSERT_TRUE(Submit(User(AdminToken()), Request("vision"), &job).ok());
  const auto as = [&](const std::string& project, v1::Role role) {
    return Cookie(Login(MakeToken({{project, role}}).secret()));
  };
  const std::string get = "/api/v1/JobService/GetJob?name=" + job.name();
  const std::string name = json{{"name", job.name()}}.dump();
  const std::string viewer = as("vision", v1::ROLE_VIEWER);
  EXPECT_EQ(Tell({get, "", {viewer}}).status, 200);
  const Told refused = Tell({"/api/v1/JobService/CancelJob", name, {Own(), viewer}});
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.Json()["code"], 7);
  // Of another project: nobody tells that the job is there; and answers are not shared.
  const std::string other = as("speech", v1::ROLE_ADMIN);
  EXPECT_EQ(Tell({get, "", {other}}).status, 404);
  EXPECT_EQ(Tell({"/api/v1/JobService/ListJobs", "", {other}}).body, "{}");
  EXPECT_EQ(Tell({"/api/v1/JobService/CancelJob", name, {Own(), other}}).status, 404);
  EXPECT_EQ(Tell({"/api/v1/JobService/CancelJob", name, {Own(), as("vision", v1::ROLE_SUBMITTER)}})
                .status,
            200);
}

TEST_F(SecureWebTest, ARevokedTokensSessionsEnd) {
  const v1::CreateTokenResponse token = MakeToken({{"*", v1::ROLE_VIEWER}});
  const std::string cookie = Cookie(Login(token.secret()));
  ASSERT_EQ(Jobs({Own(), cookie}).status, 200);
  const std::string revoke = json{{"name", token.token().name()}}.dump();
  ASSERT_EQ(
      Tell({"/api/v1/AuthService/RevokeToken", revoke, {"Authorization: Bearer " + AdminToken()}})
          .status,
      200);
  EXPECT_EQ(Jobs({Own(), cookie}).status, 401);
  const Told after = Jobs({Own(), cookie});  // the session is gone too
  EXPECT_EQ(after.Json()["details"][0]["reason"], "CREDENTIALS_MISSING");
}

TEST_F(SecureWebTest, SessionsRunOut) {
  Web({.longest = absl::Milliseconds(1)});
  const std::string cookie = Cookie(Login(AdminToken()));
  while (Jobs({Own(), cookie}).status != 401) absl::SleepFor(absl::Milliseconds(1));
}

}  // namespace
}  // namespace milepost::client
