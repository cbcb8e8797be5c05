// How much is kept of what workers send: whoever has a worker's certificate may send anything.
//
//   MP_RETURN_IF_ERROR(CheckHello(hello));
//   BoundWorkerMessage(&message);
//
// Pure and thread-safe.
#ifndef MILEPOST_COORDINATOR_DESKS_WORKER_LIMITS_H_
#define MILEPOST_COORDINATOR_DESKS_WORKER_LIMITS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "milepost/v1/worker.pb.h"

namespace google::protobuf {
class Message;
}

namespace milepost::coordinator {

// Bytes of a text that is shown on a line.
inline constexpr size_t kMaxLineBytes = 256;

// INVALID_ARGUMENT: what is wrong with it.
absl::Status CheckHello(const v1::Hello& hello);

// Cuts texts and lists in it, at any depth, down to what is kept, and drops times that are none and
// fields that are not known:
// one worker's words must fit many times into a list that users are sent. No batches of log lines.
void BoundWorkerMessage(google::protobuf::Message* message);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_DESKS_WORKER_LIMITS_H_
