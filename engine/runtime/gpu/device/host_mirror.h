// Host memory laid out as a device's arena, for the parts of it that travel between the two. Only
// the pages that are touched take memory.
//
//   MP_ASSIGN_OR_RETURN(HostMirror mirror, HostMirror::Make(plan.arena_bytes));
//   // optional: faster copies
//   MP_RETURN_IF_ERROR(mirror.Pin(device, {{offset, offset + bytes}}));
//
// Movable. Zeroed. The owner shares data() as it likes.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_MIRROR_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_MIRROR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/gpu/device/device.h"

namespace milepost::runtime {

class HostMirror {
 public:
  // Bytes [begin, end) from the mirror's begin.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };

  // RESOURCE_EXHAUSTED where there are no addresses for so many bytes.
  static absl::StatusOr<HostMirror> Make(int64_t bytes);
  HostMirror(HostMirror&& other) noexcept;
  HostMirror& operator=(HostMirror&& other) noexcept;
  HostMirror(const HostMirror&) = delete;
  HostMirror& operator=(const HostMirror&) = delete;
  ~HostMirror();

  char* data() const { return data_; }
  // Gives the memory back; what was there is zeros. Nothing of it may be pinned.
  void Clear();
  // Device::Pin of the pages of all ranges.
  absl::Status Pin(Device& device, std::vector<Range> ranges) const;

 private:
  HostMirror(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_HOST_MIRROR_H_
