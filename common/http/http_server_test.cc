#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "coordinator/security/init_pki.h"

namespace milepost {
namespace {

using ::testing::AllOf;
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
    options_.handler = [](const HttpRequest& request, const HttpAnswer& answer) {
      if (request.path == "/large") return answer({.body = std::string(8 << 20, 'x')});
      answer({.body = absl::StrCat(request.method, " ", request.path, " ", request.authorization)});
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
    const auto made = coordinator::InitPki(
        {.dir = dir_ + "/" + name, .hosts = {}, .workers = {}, .lifetime = absl::Hours(24)},
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

// A proxy before this server might read them otherwise.
TEST_F(HttpServerTest, WhatIsAmbiguousIsRefused) {
  options_.most_body_bytes = 100;
  Start();
  const auto answer = [&](const std::string& headers) {
    const UniqueFd fd = Connect();
    const std::string head =
        absl::StrCat("POST /x HTTP/1.1\r\nConnection: close\r\n", headers, "\r\nabcde");
    EXPECT_EQ(write(fd.get(), head.data(), head.size()), static_cast<ssize_t>(head.size()));
    return ReadAll(fd.get());
  };
  EXPECT_THAT(answer("Host: a\r\nContent-Length: 5\r\n"), HasSubstr(" 200 OK"));
  for (const char* headers :
       {"Host: a\r\nhost: b\r\nContent-Length: 5\r\n",
        "Host: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n",
        "Host: a\r\nContent-Length: +5\r\n", "Host: a\r\nContent-Length: 5, 5\r\n",
        "Host: a\r\nContent-Length: 0x5\r\n", "Content-Length: 5\r\n"}) {
    EXPECT_THAT(answer(headers), HasSubstr(" 400 Bad Request")) << headers;
  }
  EXPECT_THAT(answer("Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
              HasSubstr(" 4"));
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

// Ends the moment after a request has come, when the library's threads go round once more. With
// epoll it aborted after some thousand rounds.
TEST_F(HttpServerTest, EndsWhileItIsAsked) {
  absl::Notification* asked = nullptr;
  const auto note = [&](const HttpRequest&, const HttpAnswer& answer) {
    asked->Notify();
    answer({.body = "ok"});
  };
  for (int round = 0; round < 1000; ++round) {
    absl::Notification noted;
    asked = &noted;
    options_ = HttpOptions{.handler = note};
    Start();
    const UniqueFd fd = Connect();
    ASSERT_EQ(write(fd.get(), "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27), 27);
    noted.WaitForNotification();
    server_.reset();
  }
}

// Bodies, late answers and streams.
class HttpBodiesTest : public HttpServerTest {
 protected:
  HttpBodiesTest() {
    options_.most_body_bytes = 1 << 20;
    options_.handler = [this](const HttpRequest& request, const HttpAnswer& answer) {
      if (request.path == "/never") return;
      if (request.path == "/later") {
        absl::MutexLock lock(&mutex_);
        return later_.push_back(answer);
      }
      if (request.path == "/stream") {
        auto stream = std::make_shared<HttpStream>(64 << 10);
        stream->OnClose([this] {
          absl::MutexLock lock(&mutex_);
          ++closed_;
        });
        answer({.content_type = "text/event-stream", .stream = stream});
        absl::MutexLock lock(&mutex_);
        return streams_.push_back(std::move(stream));
      }
      std::string text = absl::StrCat(request.method, " ", request.body.size(), " ",
                                      request.content_type, " ", request.host);
      for (const auto& [name, value] : request.query) absl::StrAppend(&text, " ", name, "=", value);
      answer({.body = text, .headers = {{"Cache-Control", "max-age=60"}, {"X-Mine", "1"}}});
    };
  }
  ~HttpBodiesTest() override { server_.reset(); }

  Fetched Post(const std::string& path, const std::string& body) {
    curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/json");
    Fetched fetched = Get(path, [&](CURL* curl) {
      curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.c_str());
      curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));  // NOLINT
      curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    });
    curl_slist_free_all(headers);
    return fetched;
  }
  std::string Ask(const std::string& head) {
    const UniqueFd fd = Connect();
    EXPECT_EQ(write(fd.get(), head.data(), head.size()), static_cast<ssize_t>(head.size()));
    return ReadAll(fd.get());
  }
  UniqueFd AskFor(const std::string& path) {
    UniqueFd fd = Connect();
    const std::string head = "GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n";
    EXPECT_EQ(write(fd.get(), head.data(), head.size()), static_cast<ssize_t>(head.size()));
    return fd;
  }
  std::vector<std::shared_ptr<HttpStream>> AwaitStreams(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return streams_.size() == count; };
    mutex_.Await(absl::Condition(&there));
    return streams_;
  }
  void AwaitClosed(int count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return closed_ == count; };
    mutex_.Await(absl::Condition(&there));
  }
  // Until `text` has come.
  static std::string ReadUntil(int fd, const std::string& text) {
    std::string all;
    char buffer[4096];
    pollfd ready = {.fd = fd, .events = POLLIN};
    while (!absl::StrContains(all, text) && poll(&ready, 1, 20'000) == 1) {
      const ssize_t count = read(fd, buffer, sizeof buffer);
      if (count <= 0) break;
      all.append(buffer, count);
    }
    return all;
  }

  absl::Mutex mutex_;
  std::vector<HttpAnswer> later_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<HttpStream>> streams_ ABSL_GUARDED_BY(mutex_);
  int closed_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(HttpBodiesTest, TakesBodiesAndQueries) {
  Start();
  const Fetched small = Post("/x?a=1&b=%2Fy", "{}");
  EXPECT_EQ(small.body, absl::StrCat("POST 2 application/json 127.0.0.1:", port_, " a=1 b=/y"));
  EXPECT_THAT(small.head, HasSubstr("X-Mine: 1"));
  EXPECT_THAT(small.head, HasSubstr("Cache-Control: max-age=60"));
  EXPECT_FALSE(absl::StrContains(small.head, "no-store"));
  EXPECT_THAT(Post("/x", std::string(1 << 20, 'a')).body, HasSubstr("POST 1048576 "));
}

TEST_F(HttpBodiesTest, LargeBodiesAreRefusedUnread) {
  Start();
  EXPECT_THAT(Ask("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n"),
              HasSubstr(" 413 "));
  EXPECT_THAT(Ask("GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"), HasSubstr(" 413 "));
  EXPECT_THAT(Ask("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
              HasSubstr(" 411 "));
  EXPECT_THAT(Ask("POST /x HTTP/1.1\r\nHost: a\r\n\r\n"), HasSubstr(" 411 "));
  EXPECT_THAT(Ask("PUT /x HTTP/1.1\r\nHost: a\r\n\r\n"), HasSubstr(" 405 "));
}

TEST_F(HttpBodiesTest, AnswersMayComeLater) {
  Start();
  std::vector<UniqueFd> asked;
  for (int i = 0; i < 20; ++i) asked.push_back(AskFor("/later"));
  EXPECT_THAT(Post("/x", "{}").body, HasSubstr("POST 2"));  // they hold up nobody
  std::vector<HttpAnswer> answers;
  {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return later_.size() == 20; };
    mutex_.Await(absl::Condition(&there));
    answers.swap(later_);
  }
  for (const HttpAnswer& answer : answers) {
    answer({.body = "first"});
    answer({.body = "second"});  // goes nowhere
  }
  for (const UniqueFd& fd : asked) EXPECT_THAT(ReadUntil(fd.get(), "first"), HasSubstr("first"));
}

TEST_F(HttpBodiesTest, AClientThatLeftBeforeItsAnswerShows) {
  Start();
  UniqueFd leaves = AskFor("/later");
  const UniqueFd stays = AskFor("/later");
  std::vector<HttpAnswer> answers;
  {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return later_.size() == 2; };
    mutex_.Await(absl::Condition(&there));
    answers.swap(later_);
  }
  const auto left = [&] {
    return std::count_if(answers.begin(), answers.end(),
                         [](const HttpAnswer& answer) { return answer.ClientLeft(); });
  };
  EXPECT_EQ(left(), 0);
  leaves = UniqueFd();
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (left() == 0 && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(left(), 1);
  for (const HttpAnswer& answer : answers) answer({.body = "first"});
  EXPECT_THAT(ReadUntil(stays.get(), "first"), HasSubstr("first"));
}

TEST_F(HttpBodiesTest, RefusalsHaveTheFormThatIsWanted) {
  options_.refusal = [](int status, const std::string& why) {
    return HttpResponse{.status = status, .content_type = "text/x-mine", .body = "no: " + why};
  };
  Start();
  EXPECT_THAT(Ask("PUT /x HTTP/1.1\r\nHost: a\r\n\r\n"),
              AllOf(HasSubstr(" 405 "), HasSubstr("text/x-mine"), HasSubstr("no: GET, HEAD")));
  EXPECT_THAT(Ask("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n"),
              AllOf(HasSubstr(" 413 "), HasSubstr("no: at most 1048576 bytes")));
}

TEST_F(HttpBodiesTest, NoAnswerIsAnError) {
  Start();
  EXPECT_EQ(Get("/never").status, 500);
}

TEST_F(HttpBodiesTest, EndsWithAnswersAndStreamsOutstanding) {
  Start();
  const UniqueFd later = AskFor("/later");
  const UniqueFd reader = AskFor("/stream");
  const auto streams = AwaitStreams(1);
  streams[0]->Write("one");
  EXPECT_THAT(ReadUntil(reader.get(), "one"), HasSubstr("one"));
  {
    absl::MutexLock lock(&mutex_);
    const auto there = [&] { return later_.size() == 1; };
    mutex_.Await(absl::Condition(&there));
  }
  server_.reset();
  AwaitClosed(1);
  EXPECT_FALSE(streams[0]->Write("two"));
  std::vector<HttpAnswer> answers;
  {
    absl::MutexLock lock(&mutex_);
    answers.swap(later_);
  }
  answers[0]({.body = "too late"});
  EXPECT_EQ(ReadAll(later.get()), "");
}

TEST_F(HttpBodiesTest, StreamsBitByBit) {
  Start();
  const UniqueFd fd = AskFor("/stream");
  const auto streams = AwaitStreams(1);
  for (const char* text : {"one", "two", "three"}) {
    EXPECT_TRUE(streams[0]->Write(text));
    EXPECT_THAT(ReadUntil(fd.get(), text), HasSubstr(text));
  }
  streams[0]->Write("last");
  streams[0]->End();
  EXPECT_THAT(ReadUntil(fd.get(), "0\r\n\r\n"), HasSubstr("last"));
  AwaitClosed(1);
  EXPECT_FALSE(streams[0]->open());
}

TEST_F(HttpBodiesTest, SlowReadersAreCut) {
  Start();
  const UniqueFd slow = AskFor("/stream");
  AwaitStreams(1);
  const UniqueFd quick = AskFor("/stream");
  const auto streams = AwaitStreams(2);
  const std::string block(32 << 10, 'x');
  int written = 0;  // what the kernel holds goes first
  while (streams[0]->Write(block)) {
    ASSERT_LT(++written, 10'000);
  }
  EXPECT_FALSE(streams[0]->open());
  EXPECT_TRUE(streams[1]->Write("on and on"));
  EXPECT_THAT(ReadUntil(quick.get(), "on and on"), HasSubstr("on and on"));
}

TEST_F(HttpBodiesTest, ThatAReaderHasGoneShows) {
  Start();
  UniqueFd fd = AskFor("/stream");
  const auto streams = AwaitStreams(1);
  ASSERT_TRUE(streams[0]->Write("one"));
  ReadUntil(fd.get(), "one");
  fd = UniqueFd();
  while (streams[0]->Write("more")) absl::SleepFor(absl::Milliseconds(1));
  AwaitClosed(1);
}

TEST_F(HttpBodiesTest, ThatAReaderHasGoneIsSeenWithoutWriting) {
  Start();
  UniqueFd fd = AskFor("/stream");
  const auto streams = AwaitStreams(1);
  ASSERT_TRUE(streams[0]->Write("one"));
  ReadUntil(fd.get(), "one");
  EXPECT_FALSE(streams[0]->ReaderLeft());
  fd = UniqueFd();
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (!streams[0]->ReaderLeft() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(streams[0]->ReaderLeft());
}

}  // namespace
}  // namespace milepost
