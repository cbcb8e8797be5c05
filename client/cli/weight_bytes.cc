#include "client/cli/weight_bytes.h"

#include <cstdint>
#include <cstring>

#include "engine/state/half.h"

namespace milepost::client {

void DecodeF32(absl::string_view bytes, DType dtype, float* values) {
  if (dtype == DType::kF32) {
    std::memcpy(values, bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < bytes.size() / 2; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    values[i] = state::Bf16ToF32(bits);
  }
}

void EncodeWeights(absl::Span<const float> values, DType dtype, std::string* bytes) {
  bytes->resize(values.size() * static_cast<size_t>(ByteSize(dtype)));
  if (dtype == DType::kF32) {
    std::memcpy(bytes->data(), values.data(), bytes->size());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits =
        dtype == DType::kBf16 ? state::F32ToBf16(values[i]) : state::F32ToF16(values[i]);
    std::memcpy(bytes->data() + 2 * i, &bits, 2);
  }
}

}  // namespace milepost::client
