// Collectives over device memory. A call is put on the communication stream like a kernel.
//
//   MP_RETURN_IF_ERROR(communicator.Enqueue(collective, arena, scratch));
//
// Every rank of the collective enqueues the same calls in the same order (CollectivesOfStep).
// Errors of peers show in Health and in the device's Synchronize, not in Enqueue.
#ifndef MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_DEVICE_COMMUNICATOR_H_
#define MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_DEVICE_COMMUNICATOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/runtime/collectives.h"

namespace milepost::runtime {

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Device memory that Enqueue of this call needs, 256-byte aligned; 0: none. The same for every
  // implementation (CollectiveScratchBytes), so that plans do not depend on it.
  // Does not wait for the call to be done. May be captured.
  virtual absl::Status Enqueue(const Collective& call, char* arena, void* scratch) = 0;

  // OK, or why calls under way will never end: UNAVAILABLE with the peer, ABORTED.
  virtual absl::Status Health() = 0;
  // Makes calls under way and later ones end with an error, promptly. Thread-safe.
  virtual void Abort(absl::string_view reason) = 0;
};

// A sum that is rounded on the wire keeps the values in bf16 there, twice: those that it sends and
// those that it receives.
int64_t CollectiveScratchBytes(const Collective& call);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CUDA_BACKEND_DEVICE_COMMUNICATOR_H_
