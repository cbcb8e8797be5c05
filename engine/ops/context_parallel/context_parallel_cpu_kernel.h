// Cuts pieces out of rows, and puts them in: what context ranks send to each other.
//
//   kernels::TakeHeads(shape, x, /*part=*/peer, PackedPiece(shape, send));   // to be sent
//   kernels::TakeHeads(shape, x, own, PieceOf(shape, y, own));               // the own piece
//
// Bytes are copied as they are, but for SumSharedHeads. Parallel, but for CopyPiece.
#ifndef MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CPU_KERNEL_H_

#include <cstdint>

#include "absl/types/span.h"
#include "engine/ops/context_parallel/context_parallel_contract.h"

namespace milepost::kernels {

// Where the rows of a piece lie: of each sequence one behind the other, HeadRowBytes() each.
template <typename Byte>
struct PieceRows {
  Byte* data = nullptr;         // of the first sequence
  int64_t sequence_stride = 0;  // in rows
};

// Alone: the sequences one behind the other.
template <typename Byte>
PieceRows<Byte> PackedPiece(const HeadsExchangeShape& shape, Byte* data) {
  return {data, shape.tokens};
}
// In rows by heads: the tokens of rank `of`.
template <typename Byte>
PieceRows<Byte> PieceOf(const HeadsExchangeShape& shape, Byte* by_heads, int64_t of) {
  return {by_heads + of * shape.tokens * shape.HeadRowBytes(), shape.ranks * shape.tokens};
}

// The heads of rank `part`, out of rows by tokens.
void TakeHeads(const HeadsExchangeShape& shape, const char* by_tokens, int64_t part,
               PieceRows<char> to);
// Into them, but for heads that ranks share.
void PutHeads(const HeadsExchangeShape& shape, PieceRows<const char> from, int64_t part,
              char* by_tokens);
// Those that ranks share: each the sum of what these ranks have, in fp32 and in rank order, rounded
// once. Nothing where they share none. `pieces`: by rank. T: float, bf16 or f16.
template <typename T>
void SumSharedHeads(const HeadsExchangeShape& shape, absl::Span<const PieceRows<const char>> pieces,
                    T* by_tokens);
void CopyPiece(const HeadsExchangeShape& shape, PieceRows<const char> from, PieceRows<char> to);

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CPU_KERNEL_H_
