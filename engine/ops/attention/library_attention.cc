#include "engine/ops/attention/library_attention.h"

#include <limits>

#include "common/round_up.h"

namespace milepost::ops {
namespace {

// Of every call: what is small (descriptors, alignment), and what each document adds to that.
constexpr int64_t kFixedBytes = int64_t{1} << 20;
constexpr int64_t kBytesPerDocument = 512;
constexpr int64_t kFloatBytes = 4;

bool TakesHeads(int64_t head_dim, bool documents) {
  // With documents cuDNN's other scratch would grow with their number but for multiples of 16.
  return head_dim <= 256 && head_dim % (documents ? 16 : 8) == 0;
}

int64_t RowWidth(const LibraryAttentionSizes& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

// cuDNN's offsets of documents are 32 bits, and those of grouped heads' gradients are multiplied.
bool OffsetsFit(const LibraryAttentionSizes& s) {
  const int64_t largest = s.batch * s.sequence * RowWidth(s) * (s.heads / s.kv_heads);
  return !s.documents || largest <= std::numeric_limits<int32_t>::max();
}

// The gradients of probabilities of one head in 16 bits, in whole tiles.
int64_t ProbabilityBytes(int64_t sequence) {
  return RoundUp(sequence, 64) * RoundUp(sequence, 128) * 2;
}

// The largest divisor of `count` of which each part has `bytes`, all of them no more than `most`;
// 1 where even one is more.
int64_t LargestPart(int64_t count, int64_t bytes, int64_t most) {
  for (int64_t part = count; part > 1; --part) {
    if (count % part == 0 && part * bytes <= most) return part;
  }
  return 1;
}

// Besides the probabilities' gradients: a number for each row and head, and with grouped heads the
// gradients of keys and values by head of queries; with documents these are laid out like qkv.
int64_t OtherBytes(const LibraryAttentionSizes& s, const LibraryAttention& call) {
  const int64_t group = s.heads / s.kv_heads;
  const int64_t rows = call.sequences * s.sequence;
  const int64_t heads = call.kv_heads * group;
  if (s.documents) {
    return rows * s.heads * kFloatBytes +
           (group > 1 ? 2 * rows * RowWidth(s) * group * kFloatBytes : 0) +
           PlannedDocuments(s.batch, s.sequence) * kBytesPerDocument;
  }
  return rows * heads * kFloatBytes +
         (group > 1 ? 2 * rows * heads * s.head_dim * s.element_bytes : 0);
}

// Beside the rest, sums of the queries' gradients; with documents these, too, are laid out like
// qkv.
LibraryAttention InOneCall(const LibraryAttentionSizes& s, int64_t documents) {
  LibraryAttention call = {.taken = true, .sequences = s.batch, .kv_heads = s.kv_heads};
  call.forward_bytes = kFixedBytes + documents * kBytesPerDocument;
  const int64_t width = s.documents ? RowWidth(s) : s.heads * s.head_dim;
  call.backward_bytes =
      kFixedBytes + s.batch * s.sequence * width * kFloatBytes + OtherBytes(s, call);
  return call;
}

}  // namespace

LibraryAttention LibraryAttentionOf(const LibraryAttentionSizes& s, int64_t call_bytes) {
  if (s.element_bytes != 2 || s.query_parts > 1 || !TakesHeads(s.head_dim, s.documents) ||
      !OffsetsFit(s)) {
    return {};
  }
  const int64_t documents = s.documents ? PlannedDocuments(s.batch, s.sequence) : 0;
  if (!s.exact) return InOneCall(s, documents);
  const int64_t by_head = ProbabilityBytes(s.sequence) * std::max<int64_t>(1, documents);
  const int64_t by_group = by_head * (s.heads / s.kv_heads);
  LibraryAttention call;
  call.sequences = s.documents ? s.batch : LargestPart(s.batch, by_group * s.kv_heads, call_bytes);
  const bool whole_heads = call.sequences > 1 && !s.documents;
  call.kv_heads = whole_heads ? s.kv_heads : LargestPart(s.kv_heads, by_group, call_bytes);
  const int64_t probabilities = by_group * call.kv_heads * (s.documents ? 1 : call.sequences);
  if (probabilities > kMostAttentionCallBytes) return {};
  call.taken = true;
  call.forward_bytes = kFixedBytes + documents * kBytesPerDocument;
  call.backward_bytes = kFixedBytes + probabilities + OtherBytes(s, call);
  return call;
}

}  // namespace milepost::ops
