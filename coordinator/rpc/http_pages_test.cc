// The pages for monitoring, of a whole coordinator.
#include <curl/curl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/secure_server.h"
#include "coordinator/rpc/server_fixture.h"

namespace milepost::coordinator {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

struct Fetched {
  long status = 0;  // NOLINT: curl's type
  std::string body;
  std::string content_type;
};

size_t Append(char* data, size_t size, size_t count, void* text) {
  static_cast<std::string*>(text)->append(data, size * count);
  return size * count;
}

// `authority`: of a server with TLS; empty: plain text.
Fetched Get(const std::string& address, const std::string& path, const std::string& authority = "",
            const std::string& token = "", const std::string& accept = "*/*") {
  Fetched fetched;
  CURL* curl = curl_easy_init();
  const std::string url = absl::StrCat(authority.empty() ? "http://" : "https://", address, path);
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_TIMEOUT, 20L);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Append);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &fetched.body);
  if (!authority.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, authority.c_str());
  if (!token.empty()) {
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, token.c_str());
  }
  curl_slist* headers = curl_slist_append(nullptr, absl::StrCat("Accept: ", accept).c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  EXPECT_EQ(curl_easy_perform(curl), CURLE_OK);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &fetched.status);
  const char* content_type = nullptr;
  curl_easy_getinfo(curl, CURLINFO_CONTENT_TYPE, &content_type);
  fetched.content_type = content_type == nullptr ? "" : content_type;
  curl_slist_free_all(headers);
  curl_easy_cleanup(curl);
  return fetched;
}

class HttpPagesTest : public ServerTest {
 protected:
  HttpPagesTest() {
    options_.http = "127.0.0.1:0";
    Start();
  }
};

TEST_F(HttpPagesTest, TellsOfJobsWorkersAndTheStore) {
  FakeWorker worker(server_->address(), "a", 1);
  EXPECT_TRUE(worker.Receive().has_welcome());
  const std::string job = Submit();
  const v1::StartRank rank = worker.Receive().start_rank();
  std::string checkpoint;
  ASSERT_TRUE(Save(rank, 3, 1000, &checkpoint).ok());
  Submit();
  const std::string text = Get(server_->http_address(), "/metrics").body;
  EXPECT_THAT(text, HasSubstr("milepost_jobs_submitted_total{queue=\"default\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("milepost_jobs{queue=\"default\",state=\"STARTING\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("milepost_jobs{queue=\"default\",state=\"QUEUED\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr(absl::StrCat("milepost_job_checkpoint_step{job_id=\"", job, "\"} 3\n")));
  EXPECT_THAT(text, HasSubstr("milepost_store_checkpoint_bytes{state=\"kept\"} 4000\n"));
  EXPECT_THAT(text, HasSubstr("milepost_worker_connected{worker=\"workers/a\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("milepost_rpc_calls_total{code=\"OK\",method=\"JobService/SubmitJob\"} 2"));
  EXPECT_THAT(text, HasSubstr("milepost_decision_duration_seconds_count"));
  EXPECT_THAT(text, HasSubstr("milepost_store_free_bytes"));
  EXPECT_THAT(text, HasSubstr("milepost_store_damaged 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("milepost_tls_certificate")));
}

// Prometheus itself asks for it: procedures.monitoring.
TEST_F(HttpPagesTest, SpeaksOpenMetricsToWhoAsksForIt) {
  Submit();
  const auto get = [&](const std::string& accept) {
    return Get(server_->http_address(), "/metrics", "", "", accept);
  };
  EXPECT_EQ(get("*/*").content_type, "text/plain; version=0.0.4; charset=utf-8");
  for (int i = 0; i < 2; ++i) {  // the second is the first one's page
    const Fetched page = get("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    EXPECT_EQ(page.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    EXPECT_THAT(page.body, HasSubstr("# TYPE milepost_jobs_submitted counter\n"));
    EXPECT_THAT(page.body, HasSubstr("milepost_jobs_submitted_total{queue=\"default\"} 1\n"));
    EXPECT_THAT(page.body, EndsWith("\n# EOF\n"));
  }
  EXPECT_THAT(get("text/plain").body, Not(HasSubstr("# EOF")));
}

// What Prometheus itself says of the names, kinds and texts.
TEST_F(HttpPagesTest, PromtoolFindsNothing) {
  if (std::system("promtool --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no promtool (scripts/bootstrap --monitoring)";
  }
  FakeWorker worker(server_->address(), "a", 1, 1, {}, 0, v1::DEVICE_KIND_CUDA);
  EXPECT_TRUE(worker.Receive().has_welcome());
  Submit();
  const Fetched page = Get(server_->http_address(), "/metrics");
  FILE* promtool = popen("promtool check metrics 2>&1", "w");
  ASSERT_NE(promtool, nullptr);
  fwrite(page.body.data(), 1, page.body.size(), promtool);
  EXPECT_EQ(pclose(promtool), 0);
}

TEST_F(HttpPagesTest, IsHealthyAndHasNoOtherPages) {
  EXPECT_EQ(Get(server_->http_address(), "/healthz").body, "ok\n");
  EXPECT_EQ(Get(server_->http_address(), "/../../etc/passwd").status, 404);
}

TEST_F(HttpPagesTest, AnAddressInUseIsSaid) {
  ServerOptions second = options_;
  second.store.dir = dir_ + "/second";
  second.http = server_->http_address();
  const auto server = CoordinatorServer::Start(second);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("--http: cannot listen on"));
}

TEST_F(HttpPagesTest, PlainTextIsForLoopback) {
  ServerOptions second = options_;
  second.store.dir = dir_ + "/second";
  second.http = "0.0.0.0:0";
  const auto server = CoordinatorServer::Start(second);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("--http: 0.0.0.0:0"));
}

class SecureHttpPagesTest : public SecureServerTest {
 protected:
  SecureHttpPagesTest() {
    options_.http = "127.0.0.1:0";
    Start();
  }
  Fetched Scrape(const std::string& token, const std::string& path = "/metrics") {
    return Get(server_->http_address(), path, dir_ + "/pki/client/ca.crt", token);
  }
};

TEST_F(SecureHttpPagesTest, MetricsAreForViewersOfEveryProject) {
  EXPECT_EQ(Scrape("").status, 401);
  EXPECT_EQ(Scrape("mp_forged").status, 401);
  EXPECT_EQ(Scrape(MakeToken({{"vision", v1::ROLE_ADMIN}}).secret()).status, 403);
  const v1::CreateTokenResponse token = MakeToken({{"*", v1::ROLE_VIEWER}});
  const Fetched page = Scrape(token.secret());
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("milepost_tls_certificate_end_timestamp_seconds"));
  EXPECT_EQ(Scrape("", "/healthz").status, 200);
  v1::RevokeTokenRequest revoke;
  revoke.set_name(token.token().name());
  grpc::ClientContext context;
  v1::Token revoked;
  ASSERT_TRUE(v1::AuthService::NewStub(MakeChannel(User(AdminToken())))
                  ->RevokeToken(&context, revoke, &revoked)
                  .ok());
  EXPECT_EQ(Scrape(token.secret()).status, 401);
}

}  // namespace
}  // namespace milepost::coordinator
