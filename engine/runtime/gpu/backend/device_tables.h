// Constant tables that kernels read: made while ops are bound, copied to the device once.
//
//   MP_ASSIGN_OR_RETURN(const FlatChunk* chunks, tables.Upload(MakeChunks(ranges)));
//
// Not thread-safe. The memory lives as long as the object.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_TABLES_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_TABLES_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "common/status_macros.h"

namespace milepost::runtime {

class DeviceTables {
 public:
  virtual ~DeviceTables() = default;

  // Device address of a copy, 256-byte aligned; null for none. Blocks until it is there.
  template <typename T>
  absl::StatusOr<const T*> Upload(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (values.empty()) return static_cast<const T*>(nullptr);
    MP_ASSIGN_OR_RETURN(
        void* data, UploadBytes(values.data(), static_cast<int64_t>(values.size() * sizeof(T))));
    return static_cast<const T*>(data);
  }
  // Zeroed device memory that lives as long, for what an op keeps between launches.
  virtual absl::StatusOr<void*> Reserve(int64_t bytes) = 0;
  // Of all of it, as allocated.
  virtual int64_t bytes() const = 0;

 protected:
  virtual absl::StatusOr<void*> UploadBytes(const void* data, int64_t bytes) = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DEVICE_TABLES_H_
