// The kernels behind context_parallel_cuda_kernel.h. A thread moves one Unit: 16 bytes, or 4 or 2
// where heads are no multiple of that.
#ifndef MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CUDA_KERNEL_INL_H_
#define MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CUDA_KERNEL_INL_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "common/status_macros.h"
#include "engine/kernels/cuda/context.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/context_parallel/context_parallel_cuda_kernel.h"

namespace milepost::kernels::cuda {

// HeadsExchangeShape, as a kernel carries it: sizes in units.
struct UnitsOfHeads {
  UnitsOfHeads(const HeadsExchangeShape& s, int64_t unit_bytes)
      : ranks(s.ranks),
        query_parts(s.query_parts),
        tokens(s.tokens),
        rows(s.PieceRows()),
        kv_heads(s.kv_heads),
        head(s.head_bytes / unit_bytes),
        queries(s.heads * head),
        own_queries(s.OwnHeads() * head),
        own_keys(s.OwnKvHeads() * head) {}

  int64_t ranks, query_parts, tokens, rows;  // rows of a piece
  int64_t kv_heads, head, queries, own_queries, own_keys;

  MP_DEVICE int64_t PieceRow() const { return own_queries + 2 * own_keys; }
  MP_DEVICE int64_t TokenRow() const { return queries + 2 * kv_heads * head; }
  // Of a row by tokens: where column `column` of rank `rank`'s piece lies.
  MP_DEVICE int64_t TokenColumn(int64_t rank, int64_t column) const {
    const int64_t group = rank / query_parts;
    if (column < own_queries) return group * own_queries + column;
    const int64_t first_key = queries + group * kv_heads / (ranks / query_parts) * head;
    const int64_t key = column - own_queries;
    return key < own_keys ? first_key + key : first_key + kv_heads * head + key - own_keys;
  }
};

// Rows of HeadPieces.
template <typename Unit>
struct PieceRowsOfRanks {
  Unit* packed;
  Unit* by_heads;
  int64_t own;

  MP_DEVICE Unit* Packed(const UnitsOfHeads& u, int64_t rank, int64_t row) const {
    const int64_t place = rank - (rank > own ? 1 : 0);
    return packed + (place * u.rows + row) * u.PieceRow();
  }
  MP_DEVICE Unit* ByHeads(const UnitsOfHeads& u, int64_t rank, int64_t row) const {
    const int64_t sequence = row / u.tokens, token = row % u.tokens;
    return by_heads + ((sequence * u.ranks + rank) * u.tokens + token) * u.PieceRow();
  }
  MP_DEVICE Unit* Row(const UnitsOfHeads& u, int64_t rank, int64_t row) const {
    return rank == own ? ByHeads(u, rank, row) : Packed(u, rank, row);
  }
};

template <typename Unit, bool kTake>
struct MoveHeadsKernel {
  static constexpr int kThreads = 256;
  using Tokens = std::conditional_t<kTake, const Unit, Unit>;
  using Piece = std::conditional_t<kTake, Unit, const Unit>;
  UnitsOfHeads u;
  int64_t columns;  // of a piece's row, that are moved
  Tokens* by_tokens;
  PieceRowsOfRanks<Piece> pieces;

  Grid grid() const { return {.x = CeilDiv(u.rows * columns, kThreads), .y = u.ranks}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread(), rank = c.block_y();
    const int64_t row = i / columns, column = i % columns;
    if (row >= u.rows) return;
    Piece* piece = pieces.Row(u, rank, row) + column;
    Tokens* tokens = by_tokens + row * u.TokenRow() + u.TokenColumn(rank, column);
    if constexpr (kTake) {
      c.Store(piece, c.Load(tokens));
    } else {
      c.Store(tokens, c.Load(piece));
    }
  }
};

// The pieces of other ranks, between rows by heads and where they lie packed.
template <typename Unit, bool kToPacked>
struct RepackPiecesKernel {
  static constexpr int kThreads = 256;
  using Rows = std::conditional_t<kToPacked, const Unit, Unit>;
  using Packing = std::conditional_t<kToPacked, Unit, const Unit>;
  UnitsOfHeads u;
  int64_t columns;  // of a piece's row
  Rows* by_heads;
  Packing* packed;
  int64_t own;

  Grid grid() const { return {.x = CeilDiv(u.rows * columns, kThreads), .y = u.ranks - 1}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t i = c.block() * kThreads + c.thread();
    const int64_t rank = c.block_y() + (c.block_y() >= own ? 1 : 0);
    const int64_t row = i / columns, column = i % columns;
    if (row >= u.rows) return;
    Rows* there = PieceRowsOfRanks<Rows>{nullptr, by_heads, own}.ByHeads(u, rank, row) + column;
    Packing* here = PieceRowsOfRanks<Packing>{packed, nullptr, own}.Packed(u, rank, row) + column;
    if constexpr (kToPacked) {
      c.Store(here, c.Load(there));
    } else {
      c.Store(there, c.Load(here));
    }
  }
};

// Heads that lie one behind the other, in rows by tokens and in pieces, and how many ranks have the
// same one. In elements.
struct SharedHeads {
  int64_t heads, first;    // of a row by tokens
  int64_t own, own_first;  // of a piece's row
  int64_t sharers;
};

// A thread has kN elements of a row of one head, to each of which a row of blocks belongs:
// kPack<T>, or 1 where a head is no multiple of it.
template <typename T, int kN>
struct SumSharedHeadsKernel {
  static constexpr int kThreads = 256;
  UnitsOfHeads u;  // in elements
  SharedHeads shared;
  PieceRowsOfRanks<const T> pieces;
  T* by_tokens;

  Grid grid() const { return {.x = CeilDiv(u.rows * (u.head / kN), kThreads), .y = shared.heads}; }
  template <typename Context>
  MP_DEVICE void operator()(Context& c) const {
    const int64_t packs = u.head / kN, i = c.block() * kThreads + c.thread();
    const int64_t row = i / packs, column = i % packs * kN, head = c.block_y();
    if (row >= u.rows) return;
    const int64_t first = head / shared.own * shared.sharers;  // rank
    const int64_t at = shared.own_first + head % shared.own * u.head + column;
    const T* own = pieces.ByHeads(u, pieces.own, row) + at;
    float sum[kN] = {};
    for (int64_t rank = first; rank < first + shared.sharers; ++rank) {
      const auto part = Read<kN>(c, rank == pieces.own ? own : pieces.Packed(u, rank, row) + at);
      MP_UNROLL
      for (int k = 0; k < kN; ++k) sum[k] += part.v[k];
    }
    const int64_t to = shared.first + head * u.head + column;
    Write(c, by_tokens + row * u.TokenRow() + to, sum);
  }
};

// call(Unit()) with the widest unit of which heads of so many bytes are multiples.
template <typename Call>
absl::Status InUnits(int64_t head_bytes, const Call& call) {
  if (head_bytes % 16 == 0) return call(Pack<uint32_t, 4>());
  if (head_bytes % 4 == 0) return call(uint32_t{});
  return call(uint16_t{});
}

template <typename Unit, typename Byte>
auto* AsUnits(Byte* bytes) {
  return reinterpret_cast<std::conditional_t<std::is_const_v<Byte>, const Unit, Unit>*>(bytes);
}
template <typename Unit, typename Byte>
auto RowsOfRanks(const HeadPieces<Byte>& pieces) {
  auto* packed = AsUnits<Unit>(pieces.packed);
  return PieceRowsOfRanks<std::remove_pointer_t<decltype(packed)>>{
      packed, AsUnits<Unit>(pieces.by_heads), pieces.own};
}

// run(kernel) launches it.
template <typename Run>
absl::Status RunTakeHeads(const HeadsExchangeShape& shape, const char* by_tokens,
                          const HeadPieces<char>& to, const Run& run) {
  return InUnits(shape.head_bytes, [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t columns = shape.HeadRowBytes() / static_cast<int64_t>(sizeof(Unit));
    return run(MoveHeadsKernel<Unit, true>{UnitsOfHeads(shape, sizeof(Unit)), columns,
                                           AsUnits<Unit>(by_tokens), RowsOfRanks<Unit>(to)});
  });
}

template <typename Run>
absl::Status RunPutHeads(const HeadsExchangeShape& shape, const HeadPieces<const char>& from,
                         char* by_tokens, const Run& run) {
  if (shape.SharesQueries()) return absl::OkStatus();
  return InUnits(shape.head_bytes, [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t bytes =
        shape.SharesKeys() ? shape.OwnHeads() * shape.head_bytes : shape.HeadRowBytes();
    return run(MoveHeadsKernel<Unit, false>{UnitsOfHeads(shape, sizeof(Unit)),
                                            bytes / static_cast<int64_t>(sizeof(Unit)),
                                            AsUnits<Unit>(by_tokens), RowsOfRanks<Unit>(from)});
  });
}

template <bool kToPacked, typename Rows, typename Packing, typename Run>
absl::Status RunRepackPieces(const HeadsExchangeShape& shape, Rows* by_heads, int64_t own,
                             Packing* packed, const Run& run) {
  return InUnits(shape.head_bytes, [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t columns = shape.HeadRowBytes() / static_cast<int64_t>(sizeof(Unit));
    return run(RepackPiecesKernel<Unit, kToPacked>{UnitsOfHeads(shape, sizeof(Unit)), columns,
                                                   AsUnits<Unit>(by_heads), AsUnits<Unit>(packed),
                                                   own});
  });
}

template <typename T, typename Run>
absl::Status RunSumSharedHeads(const HeadsExchangeShape& shape, const HeadPieces<const char>& from,
                               T* by_tokens, const Run& run) {
  const UnitsOfHeads u(shape, sizeof(T));
  const PieceRowsOfRanks<const T> pieces = RowsOfRanks<T>(from);
  const int64_t keys = u.kv_heads, own_keys = shape.OwnKvHeads(), sharers = shape.KeySharers();
  const SharedHeads all[] = {
      {shape.heads, 0, shape.OwnHeads(), 0, shape.query_parts},
      {keys, u.queries, own_keys, u.own_queries, sharers},
      {keys, u.queries + keys * u.head, own_keys, u.own_queries + u.own_keys, sharers}};
  for (const SharedHeads& shared : all) {
    if (shared.heads == 0 || shared.sharers == 1) continue;
    if (u.head % kPack<T> == 0) {
      MP_RETURN_IF_ERROR(run(SumSharedHeadsKernel<T, kPack<T>>{u, shared, pieces, by_tokens}));
    } else {
      MP_RETURN_IF_ERROR(run(SumSharedHeadsKernel<T, 1>{u, shared, pieces, by_tokens}));
    }
  }
  return absl::OkStatus();
}

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CUDA_KERNEL_INL_H_
