#include "engine/runtime/session/fill_interval.h"

#include <algorithm>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/runtime/session/parameter_store.h"

namespace milepost::runtime {
namespace {

absl::Status FillBf16(int64_t begin, int64_t end, bf16* out, const ReadElements& read) {
  constexpr int64_t kPiece = 1 << 20;
  std::vector<float> values(static_cast<size_t>(std::min(kPiece, end - begin)));
  for (int64_t at = begin; at < end; at += kPiece) {
    const int64_t last = std::min(at + kPiece, end);
    MP_RETURN_IF_ERROR(read(at, last, values.data()));
    kernels::CastToBf16(values.data(), last - at, out + (at - begin));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillInterval(const v1::TensorInfo& tensor, const StateInterval& target,
                          const ReadElements& read) {
  if (tensor.dtype() != kPackedDType) {
    const bool rounds = tensor.dtype() == Name(DType::kBf16);
    absl::Status status;
    target.ForPieces(target.begin, target.end, [&](int64_t begin, int64_t end) {
      if (!status.ok()) return;
      const int64_t at = target.ElementsBefore(begin);
      status = rounds ? FillBf16(begin, end, reinterpret_cast<bf16*>(target.data) + at, read)
                      : read(begin, end, reinterpret_cast<float*>(target.data) + at);
    });
    return status;
  }
  int64_t elements = 1;
  for (const int64_t dimension : tensor.shape()) elements *= dimension;
  return kernels::PackNf4(elements, target.begin, target.end, read,
                          reinterpret_cast<uint8_t*>(target.data));
}

}  // namespace milepost::runtime
