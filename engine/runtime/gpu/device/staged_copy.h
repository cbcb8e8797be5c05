// Copies between a device's memory and host memory that is too large to pin: by way of a few pinned
// slots, so that the device copies one slot while the host's threads copy another. A copy straight
// from or to such memory is staged by the driver, on one thread.
//
//   MP_ASSIGN_OR_RETURN(StagedCopy staged, StagedCopy::Make(&device, stream, /*threads=*/8));
//   MP_RETURN_IF_ERROR(staged.ToHost({{host, on_device, bytes}}, absl::Seconds(60)));
//
// Not synchronised; the caller's thread drives the device. The device goes first: it unpins.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_STAGED_COPY_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_STAGED_COPY_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/runtime/gpu/device/device.h"
#include "engine/runtime/gpu/device/host_mirror.h"

namespace milepost::runtime {

class StagedCopy {
 public:
  struct Options {
    int slots = 4;
    int64_t slot_bytes = 8 << 20;  // a multiple of a page's
  };

  // `threads` of the host copy (OpenMP's). RESOURCE_EXHAUSTED, and the device's errors.
  static absl::StatusOr<StagedCopy> Make(Device* device, StreamId stream, int threads,
                                         Options options);
  static absl::StatusOr<StagedCopy> Make(Device* device, StreamId stream, int threads) {
    return Make(device, stream, threads, Options());
  }

  struct Transfer {
    char* to = nullptr;
    const char* from = nullptr;
    int64_t bytes = 0;
  };

  // After the stream's work so far. Blocks until all of it is there; `timeout` is the longest wait
  // for one slot: DEADLINE_EXCEEDED. What of it has been written after an error is not told.
  absl::Status ToHost(absl::Span<const Transfer> transfers, absl::Duration timeout);
  // The stream's later work sees it; `from` may change once this has returned. Blocks for slots.
  absl::Status ToDevice(absl::Span<const Transfer> transfers, absl::Duration timeout);
  // The same of bytes that are made as they are sent: source(begin, bytes, at) writes bytes
  // [begin, begin + bytes) to host memory `at`. It is called in order, on the calling thread.
  using Source = absl::FunctionRef<void(int64_t begin, int64_t bytes, char* at)>;
  absl::Status ToDevice(char* to, int64_t bytes, Source source, absl::Duration timeout);

 private:
  struct Slot {
    char* data = nullptr;
    EventId copied = 0;  // what the device has last done with it
  };
  StagedCopy(Device* device, StreamId stream, int threads, int64_t slot_bytes, HostMirror memory)
      : device_(device),
        stream_(stream),
        threads_(threads),
        slot_bytes_(slot_bytes),
        memory_(std::move(memory)) {}
  // Of a slot's size at most.
  std::vector<Transfer> Pieces(absl::Span<const Transfer> transfers) const;
  const Slot& SlotOf(size_t piece) const { return slots_[piece % slots_.size()]; }
  absl::Status Send(const Slot& slot, char* to, const char* from, int64_t bytes);

  Device* device_;
  StreamId stream_;
  int threads_;
  int64_t slot_bytes_;
  HostMirror memory_;
  std::vector<Slot> slots_;
  size_t turn_ = 0;  // of the slot that ToDevice fills next
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_STAGED_COPY_H_
