#include "engine/runtime/gpu/backend/tables_on_device.h"

#include "common/status_macros.h"

namespace milepost::runtime {

absl::StatusOr<void*> TablesOnDevice::Reserve(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  constexpr int64_t kPiece = 256 << 10;
  const int64_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (whole >= kPiece) {  // the piece that is begun is left to small ones
    MP_ASSIGN_OR_RETURN(char* large, device_->Allocate(whole));
    bytes_ += whole;
    return static_cast<void*>(large);
  }
  if (whole > left_) {
    left_ = kPiece;
    MP_ASSIGN_OR_RETURN(free_, device_->Allocate(left_));
    bytes_ += left_;
  }
  char* data = free_;
  free_ += whole;
  left_ -= whole;
  return data;
}

absl::StatusOr<void*> TablesOnDevice::UploadBytes(const void* data, int64_t bytes) {
  MP_ASSIGN_OR_RETURN(void* table, Reserve(bytes));
  MP_RETURN_IF_ERROR(device_->Copy(stream_, table, data, bytes));
  MP_RETURN_IF_ERROR(device_->Synchronize(stream_, timeout_));
  return table;
}

}  // namespace milepost::runtime
