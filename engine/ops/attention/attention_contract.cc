#include "engine/ops/attention/attention_contract.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "engine/dtype/half.h"
#include "engine/ops/attention/attention_layout_contract.h"

namespace milepost::kernels {
namespace {

template <template <typename> typename Arrays>
int64_t BytesPerThread(const AttentionShape& shape, DType type) {
  const AttentionSizes sizes(shape);
  const size_t bytes = type == DType::kBf16 ? Arrays<bf16>(sizes, Carver(nullptr)).bytes
                                            : Arrays<float>(sizes, Carver(nullptr)).bytes;
  return static_cast<int64_t>(bytes);
}

}  // namespace

absl::Status CheckAttentionShape(const AttentionShape& s) {
  if (s.batch > 0 && s.sequence > 0 && s.heads > 0 && s.head_dim > 0 && s.head_dim <= 256 &&
      s.head_dim % 8 == 0 && (s.kv_heads == 0 || (s.kv_heads > 0 && s.heads % s.kv_heads == 0)) &&
      (s.window == 0 || (s.window > 0 && s.causal)) && s.queries.part >= 0 &&
      s.queries.part < s.queries.parts) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "attention over batch=%d sequence=%d heads=%d head_dim=%d kv_heads=%d window=%d, part "
      "%d of %d: sizes must be positive, the width of a head a multiple of 8 and at most 256, "
      "kv_heads a divisor of heads, a window causal, and a part below their number",
      s.batch, s.sequence, s.heads, s.head_dim, s.kv_heads, s.window, s.queries.part,
      s.queries.parts));
}

int64_t AttentionForwardWorkspaceBytes(const AttentionShape& shape, DType type, int threads) {
  return BytesPerThread<ForwardArrays>(shape, type) * threads;
}

int64_t AttentionBackwardWorkspaceBytes(const AttentionShape& shape, DType type, int threads) {
  const int64_t heads = shape.batch * (shape.kv_heads == 0 ? shape.heads : shape.kv_heads);
  return BytesPerThread<BackwardArrays>(shape, type) * std::min<int64_t>(threads, heads);
}

int64_t CachedAttentionWorkspaceBytes(const CachedAttentionShape& shape, int64_t rows, DType type,
                                      int threads) {
  return rows == 1 ? 0 : AttentionForwardWorkspaceBytes(KeyTileOf(shape), type, threads);
}

namespace cuda {

int64_t AttentionWorkspaceBytes(const AttentionShape& shape) {
  return shape.batch * shape.heads * shape.sequence * static_cast<int64_t>(sizeof(float));
}

}  // namespace cuda
}  // namespace milepost::kernels
