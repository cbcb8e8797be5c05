// The other end of a connection. Internal to common/http.
#ifndef MILEPOST_COMMON_HTTP_HTTP_PEER_H_
#define MILEPOST_COMMON_HTTP_HTTP_PEER_H_

#include <microhttpd.h>

namespace milepost {

// True when the peer has closed the connection, or its way here, and nothing of it is left unread.
// Takes nothing out of the socket and does not block. Only while the connection is suspended, when
// the library neither reads nor frees it.
bool PeerHasLeft(MHD_Connection* suspended);

}  // namespace milepost

#endif  // MILEPOST_COMMON_HTTP_HTTP_PEER_H_
