// Collectives over device memory, and transfers from one rank to another. A call is put on a stream
// like a kernel.
//
//   MP_RETURN_IF_ERROR(communicator.Enqueue(collective, arena, scratch, stream));
//
// Every rank of the collective enqueues the same calls in the same order (CollectivesOfStep), all
// of them on one stream; so do both ranks of their transfers. A transfer holds up its stream until
// the peer has come to it, so what goes on beside it has communicators of its own. What arrives is
// what comm::Communicator defines, with one difference: fp32 and fp64 sums may be added in another
// order than the ranks' (docs/internals/numerics.md). Sums of rounded values are added in rank
// order everywhere: the CPU's bits.
//
// Errors of peers show in Health and in the device's Synchronize, and in Enqueue where they are
// known by then. After the first one the communicator is of no further use.
//
// One thread at a time; Abort from any thread at any time. The destructor does not wait for peers
// for long, whatever they do; destroy it after the stream's work is done, or after an error.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_COMMUNICATOR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_COMMUNICATOR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/runtime/executor/collectives.h"
#include "engine/runtime/executor/row_transfers.h"

namespace milepost::runtime {

class DeviceCommunicator {
 public:
  virtual ~DeviceCommunicator() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Whether Enqueue may be called while its stream is captured. Where not, the step runs op by op.
  virtual bool capturable() const = 0;

  // Lets the network read and write this memory, in which all calls' values and scratch lie,
  // directly where it can; what it could not, in words, for a log. Everything works without. Once,
  // before the first call.
  virtual std::string Register(char* memory, int64_t bytes) {
    static_cast<void>(memory);
    static_cast<void>(bytes);
    return "";
  }

  // `scratch`: CollectiveScratchBytes(call) of device memory, 64-byte aligned; null where that is
  // 0. Does not wait for the call to be done.
  virtual absl::Status Enqueue(const Collective& call, char* arena, void* scratch,
                               cudaStream_t stream) = 0;

  // Of a kExchangeRows: moves bytes of device memory, as comm::Communicator::Exchange does, and
  // what stays. Does not wait for the call to be done. Not within a capture: its replays would move
  // as many rows.
  virtual absl::Status EnqueueRows(const RowTransfers& moves, cudaStream_t stream) = 0;

  // OK, or why calls under way will never end: UNAVAILABLE with the peer, ABORTED.
  virtual absl::Status Health() = 0;
  // Makes calls under way and later ones end with an error, promptly. The first reason stays.
  virtual void Abort(absl::string_view reason) = 0;
};

// A sum that is rounded on the wire keeps its values in bf16 there; what it receives goes into the
// values' own place. The same for every implementation, so that plans do not depend on it: some
// leave it unused.
int64_t CollectiveScratchBytes(const Collective& call);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_COMMUNICATOR_H_
