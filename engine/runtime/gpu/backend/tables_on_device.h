// DeviceTables in a Device's memory.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_TABLES_ON_DEVICE_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_TABLES_ON_DEVICE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/runtime/gpu/backend/device_tables.h"
#include "engine/runtime/gpu/device/device.h"

namespace milepost::runtime {

class TablesOnDevice : public DeviceTables {
 public:
  // Copies on `stream`. The device must outlive it.
  TablesOnDevice(Device* device, StreamId stream, absl::Duration timeout)
      : device_(device), stream_(stream), timeout_(timeout) {}

  absl::StatusOr<void*> Reserve(int64_t bytes) override;
  int64_t bytes() const override { return bytes_; }

 protected:
  absl::StatusOr<void*> UploadBytes(const void* data, int64_t bytes) override;

 private:
  Device* const device_;
  const StreamId stream_;
  const absl::Duration timeout_;
  // What is left of the last piece that was allocated: tables are many and small.
  char* free_ = nullptr;
  int64_t left_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_TABLES_ON_DEVICE_H_
