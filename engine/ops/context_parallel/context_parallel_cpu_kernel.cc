#include "engine/ops/context_parallel/context_parallel_cpu_kernel.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/dtype/half.h"
#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {
namespace {

constexpr int64_t kPieceRowsAtOnce = 16;

// The parts of a row by tokens that a rank has: of its queries, keys and values.
struct HeadRun {
  int64_t begin, bytes;
};

std::array<HeadRun, 3> RunsOf(const HeadsExchangeShape& shape, int64_t part) {
  const int64_t queries = shape.heads * shape.head_bytes, keys = shape.kv_heads * shape.head_bytes;
  const int64_t own = shape.OwnHeads() * shape.head_bytes;
  const int64_t own_keys = shape.OwnKvHeads() * shape.head_bytes;
  const int64_t first_key = queries + shape.FirstKvHead(part) * shape.head_bytes;
  const int64_t first = shape.FirstHead(part) * shape.head_bytes;
  return {{{first, own}, {first_key, own_keys}, {first_key + keys, own_keys}}};
}

template <typename Byte>
Byte* RowOf(const HeadsExchangeShape& shape, PieceRows<Byte> rows, int64_t row) {
  const int64_t place = row / shape.tokens * rows.sequence_stride + row % shape.tokens;
  return rows.data + place * shape.HeadRowBytes();
}

// move(part of a row by tokens, of the piece's row, bytes), of the first `count` runs: all, or 1,
// that of queries.
template <typename Byte, typename OtherByte, typename Move>
void ForRuns(const HeadsExchangeShape& shape, Byte* by_tokens, int64_t part,
             PieceRows<OtherByte> piece, size_t count, const Move& move) {
  const std::array<HeadRun, 3> runs = RunsOf(shape, part);
  ParallelFor(0, shape.PieceRows(), kPieceRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Byte* tokens = by_tokens + row * shape.TokenRowBytes();
      OtherByte* at = RowOf(shape, piece, row);
      for (size_t run = 0; run < count; ++run) {
        move(tokens + runs[run].begin, at, static_cast<size_t>(runs[run].bytes));
        at += runs[run].bytes;
      }
    }
  });
}

// out = the sum of the ranks' elements that lie `at` bytes into row `row` of their pieces.
template <typename T>
void SumOfPieces(const HeadsExchangeShape& shape, absl::Span<const PieceRows<const char>> pieces,
                 int64_t row, int64_t at, int64_t elements, T* out) {
  constexpr int64_t kAtOnce = 64;
  for (int64_t done = 0; done < elements; done += kAtOnce) {
    const int64_t count = std::min(kAtOnce, elements - done);
    float sums[kAtOnce] = {};
    for (const PieceRows<const char>& piece : pieces) {
      const T* part = reinterpret_cast<const T*>(RowOf(shape, piece, row) + at) + done;
      for (int64_t i = 0; i < count; ++i) sums[i] += ToFloat(part[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[done + i] = FromFloat<T>(sums[i]);
  }
}

}  // namespace

void TakeHeads(const HeadsExchangeShape& shape, const char* by_tokens, int64_t part,
               PieceRows<char> to) {
  const auto take = [](const char* tokens, char* piece, size_t bytes) {
    std::memcpy(piece, tokens, bytes);
  };
  ForRuns(shape, by_tokens, part, to, 3, take);
}

void PutHeads(const HeadsExchangeShape& shape, PieceRows<const char> from, int64_t part,
              char* by_tokens) {
  const auto put = [](char* tokens, const char* piece, size_t bytes) {
    std::memcpy(tokens, piece, bytes);
  };
  if (shape.SharesQueries()) return;
  ForRuns(shape, by_tokens, part, from, shape.SharesKeys() ? 1 : 3, put);
}

template <typename T>
void SumSharedHeads(const HeadsExchangeShape& shape, absl::Span<const PieceRows<const char>> pieces,
                    T* by_tokens) {
  if (!shape.SharesQueries() && !shape.SharesKeys()) return;
  const int64_t width = shape.head_bytes / static_cast<int64_t>(sizeof(T));
  // Heads one behind the other, of a row by tokens and of a piece.
  struct Part {
    int64_t heads, first, own, first_own, sharers;
  };
  const int64_t heads = shape.heads, kv_heads = shape.kv_heads;
  const int64_t own = shape.OwnHeads(), own_kv = shape.OwnKvHeads();
  const Part parts[] = {{shape.SharesQueries() ? heads : 0, 0, own, 0, shape.query_parts},
                        {kv_heads, heads, own_kv, own, shape.KeySharers()},
                        {kv_heads, heads + kv_heads, own_kv, own + own_kv, shape.KeySharers()}};
  ParallelFor(0, shape.PieceRows(), kPieceRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* const tokens = by_tokens + row * (heads + 2 * kv_heads) * width;
      for (const Part& part : parts) {
        for (int64_t head = 0; head < part.heads; ++head) {
          const auto sharers = static_cast<size_t>(part.sharers);
          const auto first = static_cast<size_t>(head / part.own) * sharers;
          const int64_t at = (part.first_own + head % part.own) * shape.head_bytes;
          SumOfPieces(shape, pieces.subspan(first, sharers), row, at, width,
                      tokens + (part.first + head) * width);
        }
      }
    }
  });
}
template void SumSharedHeads(const HeadsExchangeShape&, absl::Span<const PieceRows<const char>>,
                             float*);
template void SumSharedHeads(const HeadsExchangeShape&, absl::Span<const PieceRows<const char>>,
                             bf16*);
template void SumSharedHeads(const HeadsExchangeShape&, absl::Span<const PieceRows<const char>>,
                             f16*);

void CopyPiece(const HeadsExchangeShape& shape, PieceRows<const char> from, PieceRows<char> to) {
  const auto bytes = static_cast<size_t>(shape.tokens * shape.HeadRowBytes());
  for (int64_t row = 0; row < shape.PieceRows(); row += shape.tokens) {
    std::memcpy(RowOf(shape, to, row), RowOf(shape, from, row), bytes);
  }
}

}  // namespace milepost::kernels
