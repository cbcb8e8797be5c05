// For tests: an HTTP server on loopback that receives webhooks' messages.
#ifndef MILEPOST_COORDINATOR_WEBHOOKS_RECEIVER_H_
#define MILEPOST_COORDINATOR_WEBHOOKS_RECEIVER_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace milepost::coordinator {

struct Received {
  std::string path;
  std::string delivery;
  std::string signature;
  std::string body;
};

// Answers with the status that `answer` returns (0: no answer), one connection at a time.
class Receiver {
 public:
  explicit Receiver(std::function<int(const Received&)> answer) : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    socklen_t size = sizeof address;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~Receiver() {
    stopping_ = true;
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }

  std::string Url() const { return absl::StrCat("http://127.0.0.1:", port_, "/hook"); }

 private:
  void Run() {
    while (!stopping_) {
      const int connection = accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      Serve(connection);
      close(connection);
    }
  }
  void Serve(int connection) {
    std::string text;
    char buffer[4096];
    size_t end = std::string::npos;
    size_t length = 0;
    while (end == std::string::npos || text.size() < end + 4 + length) {
      pollfd entry = {connection, POLLIN, 0};
      if (stopping_ || poll(&entry, 1, 5000) <= 0) return;
      const ssize_t got = read(connection, buffer, sizeof buffer);
      if (got <= 0) return;
      text.append(buffer, static_cast<size_t>(got));
      end = text.find("\r\n\r\n");
      if (end != std::string::npos) {
        EXPECT_TRUE(absl::SimpleAtoi(Header(text, "Content-Length"), &length));
      }
    }
    const Received received = {
        std::string(absl::StripSuffix(text.substr(0, text.find("\r\n")), " HTTP/1.1")),
        Header(text, "Milepost-Delivery"), Header(text, "Milepost-Signature"),
        text.substr(end + 4, length)};
    const int status = answer_(received);
    if (status == 0) return;
    const std::string response =
        absl::StrCat("HTTP/1.1 ", status, " X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(write(connection, response.data(), response.size()),
              static_cast<ssize_t>(response.size()));
  }
  static std::string Header(const std::string& text, const std::string& name) {
    for (absl::string_view line : absl::StrSplit(text, "\r\n")) {
      if (absl::ConsumePrefix(&line, name + ": ")) return std::string(line);
    }
    return "";
  }

  const std::function<int(const Received&)> answer_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_WEBHOOKS_RECEIVER_H_
