#include "coordinator/http/http_server.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/security/init_pki.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

size_t Append(char* data, size_t size, size_t count, void* text) {
  static_cast<std::string*>(text)->append(data, size * count);
  return size * count;
}

struct Fetched {
  long status = 0;  // NOLINT: curl's type
  std::string body;
  std::string head;
  CURLcode error = CURLE_OK;
};

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-http-XXXXXX");
    dir_ = mkdtemp(pattern.data());
    options_.handler = [](const HttpRequest& request) {
      if (request.path == "/large") return HttpResponse{.body = std::string(8 << 20, 'x')};
      return HttpResponse{
          .body = absl::StrCat(request.method, " ", request.path, " ", request.authorization)};
    };
  }
  ~HttpServerTest() override {
    server_.reset();
    std::filesystem::remove_all(dir_);
  }

  void Start() {
    UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in name = {.sin_family = AF_INET};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
    ASSERT_EQ(listen(listener.get(), 100), 0);
    ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
    port_ = ntohs(name.sin_port);
    options_.sockets.clear();
    options_.sockets.push_back(std::move(listener));
    auto server = HttpServer::Start(std::move(options_));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void StartWithTls() {
    MakePki("pki");
    options_.tls_dir = dir_ + "/pki/coordinator";
    Start();
  }
  void MakePki(const std::string& name) {
    const auto made =
        InitPki({.dir = dir_ + "/" + name, .hosts = {}, .workers = {}, .lifetime = absl::Hours(24)},
                absl::Now());
    ASSERT_TRUE(made.ok()) << made.status();
  }

  // `prepare` may set more options.
  Fetched Get(const std::string& path, const std::function<void(CURL*)>& prepare = nullptr,
              const std::string& pki = "") {
    Fetched fetched;
    CURL* curl = curl_easy_init();
    const std::string scheme = pki.empty() ? "http" : "https";
    const std::string url = absl::StrCat(scheme, "://127.0.0.1:", port_, path);
    const std::string authority = dir_ + "/" + pki + "/client/ca.crt";
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, 20L);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Append);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &fetched.body);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, Append);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &fetched.head);
    if (!pki.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, authority.c_str());
    if (prepare) prepare(curl);
    fetched.error = curl_easy_perform(curl);
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &fetched.status);
    curl_easy_cleanup(curl);
    return fetched;
  }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port_))};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    return fd;
  }
  // Until the other side closes, or 20 seconds are over.
  static std::string ReadAll(int fd) {
    std::string text;
    char buffer[4096];
    pollfd ready = {.fd = fd, .events = POLLIN};
    while (poll(&ready, 1, 20'000) == 1) {
      const ssize_t count = read(fd, buffer, sizeof buffer);
      if (count <= 0) return text;
      text.append(buffer, count);
    }
    return text + " (still open)";
  }

  std::string dir_;
  HttpOptions options_;
  int port_ = 0;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersWhatTheHandlerSays) {
  Start();
  const Fetched page = Get("/metrics?a=b");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.body, "GET /metrics ");
  EXPECT_THAT(page.head, HasSubstr("nosniff"));
  const Fetched head = Get("/x", [](CURL* curl) { curl_easy_setopt(curl, CURLOPT_NOBODY, 1L); });
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
}

TEST_F(HttpServerTest, OtherMethodsAreRefusedUnread) {
  Start();
  const UniqueFd fd = Connect();
  const std::string head = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n";
  ASSERT_EQ(write(fd.get(), head.data(), head.size()), static_cast<ssize_t>(head.size()));
  EXPECT_THAT(ReadAll(fd.get()), HasSubstr("405"));
}

TEST_F(HttpServerTest, HeadsAreBounded) {
  Start();
  const UniqueFd fd = Connect();
  std::string head = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 2000; ++i)
    absl::StrAppend(&head, "X-", i, ": ", std::string(100, 'a'), "\r\n");
  // It answers, and closes, before it has all of it.
  for (size_t sent = 0; sent < head.size();) {
    const ssize_t count = send(fd.get(), head.data() + sent, head.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += count;
  }
  const std::string answer = ReadAll(fd.get());
  EXPECT_FALSE(absl::StrContains(answer, "200 OK")) << answer;
  EXPECT_FALSE(absl::StrContains(answer, "still open")) << answer;
  EXPECT_EQ(Get("/x").status, 200);
}

// More than its threads, and each in the middle of something.
TEST_F(HttpServerTest, WhoIsSlowHoldsUpNobody) {
  Start();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(Connect());
    const std::string text = i % 2 == 0 ? "GET /x HT" : "GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
    ASSERT_EQ(write(slow.back().get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Get("/x").body, "GET /x ");
}

TEST_F(HttpServerTest, WhoIsSilentIsCut) {
  options_.silence = absl::Seconds(1);
  Start();
  const UniqueFd fd = Connect();
  EXPECT_EQ(ReadAll(fd.get()), "");
}

TEST_F(HttpServerTest, ConnectionsOfOneAddressAreBounded) {
  options_.connections_of_address = 3;
  Start();
  std::vector<UniqueFd> many;
  for (int i = 0; i < 4; ++i) many.push_back(Connect());
  EXPECT_EQ(ReadAll(many.back().get()), "");
}

TEST_F(HttpServerTest, SpeaksTls13Alone) {
  StartWithTls();
  const auto authorize = [](CURL* curl) {
    curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, "secret");
  };
  EXPECT_EQ(Get("/x", authorize, "pki").body, "GET /x Bearer secret");
  const auto older = [](CURL* curl) {
    curl_easy_setopt(curl, CURLOPT_SSLVERSION,
                     long{CURL_SSLVERSION_TLSv1_2} | long{CURL_SSLVERSION_MAX_TLSv1_2});  // NOLINT
  };
  EXPECT_EQ(Get("/x", older, "pki").error, CURLE_SSL_CONNECT_ERROR);
  EXPECT_NE(Get("/x").error, CURLE_OK);  // plain text
}

TEST_F(HttpServerTest, BadCertificatesAreNamed) {
  MakePki("pki");
  options_.tls_dir = dir_ + "/pki/coordinator";
  std::ofstream(options_.tls_dir + "/tls.crt") << "nonsense";
  const auto server = HttpServer::Start(std::move(options_));
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("tls.crt"));
}

TEST_F(HttpServerTest, TakesANewCertificateUp) {
  options_.look_at_tls_files = absl::Milliseconds(10);
  StartWithTls();
  ASSERT_EQ(Get("/x", nullptr, "pki").status, 200);
  MakePki("other");
  for (const char* file : {"tls.key", "tls.crt", "ca.crt"}) {
    std::filesystem::rename(dir_ + "/other/coordinator/" + file, dir_ + "/pki/coordinator/" + file);
  }
  while (Get("/x", nullptr, "other").error != CURLE_OK) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_NE(Get("/x", nullptr, "pki").error, CURLE_OK);
}

}  // namespace
}  // namespace milepost::coordinator
