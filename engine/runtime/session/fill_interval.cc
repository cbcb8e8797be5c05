#include "engine/runtime/session/fill_interval.h"

#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/runtime/session/parameter_store.h"

namespace milepost::runtime {
namespace {

absl::Status FillBf16(const StateInterval& target, const ReadElements& read) {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<float> values(static_cast<size_t>(std::min(kPiece, target.end - target.begin)));
  auto* out = reinterpret_cast<bf16*>(target.data);
  for (int64_t at = target.begin; at < target.end; at += kPiece) {
    const int64_t end = std::min(at + kPiece, target.end);
    MP_RETURN_IF_ERROR(read(at, end, values.data()));
    kernels::CastToBf16(values.data(), end - at, out + (at - target.begin));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillInterval(const v1::TensorInfo& tensor, const StateInterval& target,
                          const ReadElements& read) {
  if (tensor.dtype() == Name(DType::kBf16)) return FillBf16(target, read);
  if (tensor.dtype() != kPackedDType) {
    return read(target.begin, target.end, reinterpret_cast<float*>(target.data));
  }
  int64_t elements = 1;
  for (const int64_t dimension : tensor.shape()) elements *= dimension;
  return kernels::PackNf4(elements, target.begin, target.end, read,
                          reinterpret_cast<uint8_t*>(target.data));
}

}  // namespace milepost::runtime
