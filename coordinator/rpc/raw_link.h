// HTTP/2 by hand over TLS, for tests of what gRPC's clients do not do.
#ifndef MILEPOST_COORDINATOR_RPC_RAW_LINK_H_
#define MILEPOST_COORDINATOR_RPC_RAW_LINK_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/unique_fd.h"

namespace milepost::coordinator {

constexpr absl::Duration kPatience = absl::Seconds(30);

enum FrameType : char { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kContinuation = 9 };

inline std::string Frame(FrameType type, char flags, uint32_t stream, const std::string& payload) {
  std::string frame;
  for (const int shift : {16, 8, 0}) frame.push_back(static_cast<char>(payload.size() >> shift));
  frame.push_back(type);
  frame.push_back(flags);
  for (const int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  return frame + payload;
}

// Into the dynamic table.
inline std::string Field(const std::string& name, const std::string& value) {
  return absl::StrCat("\x40", std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

constexpr char kEndStream = 1;
constexpr char kEndHeaders = 4;
// A call of WhoAmI, whole.
inline std::string WhoAmICall(const std::string& token, uint32_t stream) {
  return absl::StrCat(Frame(kHeaders, kEndHeaders, stream,
                            absl::StrCat(Field(":method", "POST"), Field(":scheme", "https"),
                                         Field(":path", "/milepost.v1.AuthService/WhoAmI"),
                                         Field(":authority", "x"), Field("te", "trailers"),
                                         Field("content-type", "application/grpc"),
                                         Field("authorization", absl::StrCat("Bearer ", token)))),
                      Frame(kData, kEndStream, stream, std::string(5, '\0')));
}

inline sockaddr_in Loopback(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in name = {};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  name.sin_port = htons(static_cast<uint16_t>(port));
  return name;
}

inline bool Connect(int fd, const std::string& address) {
  const sockaddr_in name = Loopback(address);
  return connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
}

// A TLS connection that speaks HTTP/2 and nothing of gRPC.
class RawLink {
 public:
  explicit RawLink(const std::string& address, const std::string& settings = "")
      : context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_alpn_protos(context_, reinterpret_cast<const unsigned char*>("\x02h2"), 3);
    const timeval patience = {.tv_sec = absl::ToInt64Seconds(kPatience), .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    ssl_ = SSL_new(context_);
    EXPECT_TRUE(Connect(fd_.get(), address));
    SSL_set_fd(ssl_, fd_.get());
    ok_ = SSL_connect(ssl_) == 1 &&
          Send(absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(kSettings, 0, 0, settings)));
  }
  ~RawLink() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  bool ok() const { return ok_; }
  int fd() const { return fd_.get(); }
  bool Send(const std::string& bytes) {
    return SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) > 0;
  }
  // Until something of what is received holds `text`.
  bool Await(const std::string& text) {
    std::string received;
    char bytes[4096];
    while (!absl::StrContains(received, text)) {
      const int size = SSL_read(ssl_, bytes, sizeof bytes);
      if (size <= 0) return false;
      received.append(bytes, static_cast<size_t>(size));
    }
    return true;
  }
  // Until the other side ends it; false when it does not.
  bool AwaitEnd() {
    const absl::Time deadline = absl::Now() + kPatience;
    char bytes[4096];
    while (absl::Now() < deadline) {
      if (SSL_read(ssl_, bytes, sizeof bytes) > 0) continue;
      return errno != EAGAIN && errno != EWOULDBLOCK;
    }
    return false;
  }

 private:
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  UniqueFd fd_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  bool ok_ = false;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_RAW_LINK_H_
