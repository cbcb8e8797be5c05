#include "common/http/http_peer.h"

#include <sys/socket.h>

#include <cerrno>

namespace milepost {

bool PeerHasLeft(MHD_Connection* suspended) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(suspended, MHD_CONNECTION_INFO_CONNECTION_FD);
  if (info == nullptr) return false;
  char byte = 0;
  const ssize_t got = recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got >= 0) return got == 0;
  return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
}

}  // namespace milepost
