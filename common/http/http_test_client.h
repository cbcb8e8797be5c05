// For tests of servers: requests by libcurl, and a client that reads as it likes.
//
//   const HttpTold told = AskHttp({.url = server.url() + "/v1/models"});
//   HttpRawClient slow(server.url(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
//   slow.Until("data: ");
#ifndef MILEPOST_COMMON_HTTP_HTTP_TEST_CLIENT_H_
#define MILEPOST_COMMON_HTTP_HTTP_TEST_CLIENT_H_

#include <arpa/inet.h>
#include <curl/curl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "common/unique_fd.h"

namespace milepost {

struct HttpAsked {
  std::string url;
  std::string body = {};  // a POST of JSON where there is one, unless the headers say otherwise
  std::vector<std::string> headers = {};
  const char* method = nullptr;  // another one
  std::string authority = {};    // a file with the certificates to trust
};

struct HttpTold {
  long status = 0;  // NOLINT: curl's type
  std::string head;
  std::string body;
};

inline size_t AppendHttp(char* data, size_t size, size_t count, void* text) {
  static_cast<std::string*>(text)->append(data, size * count);
  return size * count;
}

// Blocks for the answer, at most 100 s. A test that gets none has failed.
inline HttpTold AskHttp(const HttpAsked& asked) {
  HttpTold told;
  CURL* curl = curl_easy_init();
  curl_slist* headers = nullptr;
  const auto is_type = [](const std::string& one) {
    return absl::StartsWith(one, "Content-Type:");
  };
  if (!asked.body.empty()) {
    if (std::none_of(asked.headers.begin(), asked.headers.end(), is_type)) {
      headers = curl_slist_append(headers, "Content-Type: application/json");
    }
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, asked.body.data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, static_cast<long>(asked.body.size()));  // NOLINT
  }
  for (const std::string& one : asked.headers) headers = curl_slist_append(headers, one.c_str());
  if (asked.method != nullptr) curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, asked.method);
  if (!asked.authority.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, asked.authority.c_str());
  curl_easy_setopt(curl, CURLOPT_URL, asked.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT, 100L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, AppendHttp);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &told.body);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, AppendHttp);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &told.head);
  EXPECT_EQ(curl_easy_perform(curl), CURLE_OK) << asked.url;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &told.status);
  curl_slist_free_all(headers);
  curl_easy_cleanup(curl);
  return told;
}

// In plain text, to a server on loopback.
class HttpRawClient {
 public:
  // Sends `request`. With `few_bytes`, what is not read soon waits in the server.
  HttpRawClient(const std::string& url, const std::string& request, bool few_bytes = false)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const size_t colon = url.rfind(':');
    sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(std::stoi(url.substr(colon + 1)))};
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int few = 4096;
    if (few_bytes) setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &few, sizeof few);
    EXPECT_EQ(connect(fd_.get(), reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    EXPECT_EQ(write(fd_.get(), request.data(), request.size()),
              static_cast<ssize_t>(request.size()));
  }
  // All that came until it has `text`; or until the end, or for a minute.
  std::string Until(const std::string& text) {
    char buffer[4096];
    pollfd ready = {.fd = fd_.get(), .events = POLLIN};
    while (!absl::StrContains(all_, text) && poll(&ready, 1, 60'000) == 1) {
      const ssize_t count = read(fd_.get(), buffer, sizeof buffer);
      if (count <= 0) break;
      all_.append(buffer, static_cast<size_t>(count));
    }
    return all_;
  }

 private:
  UniqueFd fd_;
  std::string all_;
};

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_HTTP_TEST_CLIENT_H_
