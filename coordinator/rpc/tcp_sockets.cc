#include "coordinator/rpc/tcp_sockets.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace milepost::coordinator {

std::string AddressOf(const sockaddr_storage& name) {
  char text[INET6_ADDRSTRLEN] = "";
  if (name.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(name);
    return inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text) == nullptr ? "?" : text;
  }
  if (name.ss_family != AF_INET6) return "?";
  in6_addr v6 = reinterpret_cast<const sockaddr_in6&>(name).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) {
    return inet_ntop(AF_INET, &v6.s6_addr[12], text, sizeof text) == nullptr ? "?" : text;
  }
  std::fill(std::begin(v6.s6_addr) + 8, std::end(v6.s6_addr), 0);
  return absl::StrCat(inet_ntop(AF_INET6, &v6, text, sizeof text) == nullptr ? "?" : text, "/64");
}

int64_t BytesReceived(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

void Abort(int fd) {
  const sockaddr nothing = {.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(fd, &nothing, sizeof nothing) != 0) shutdown(fd, SHUT_RDWR);  // it is no TCP
}

}  // namespace milepost::coordinator
