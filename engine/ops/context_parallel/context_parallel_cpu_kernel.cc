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
  return {{{part * own, own}, {first_key, own_keys}, {first_key + keys, own_keys}}};
}

template <typename Byte>
Byte* RowOf(const HeadsExchangeShape& shape, PieceRows<Byte> rows, int64_t row) {
  const int64_t place = row / shape.tokens * rows.sequence_stride + row % shape.tokens;
  return rows.data + place * shape.HeadRowBytes();
}

// move(part of a row by tokens, of the piece's row, bytes), of the first `count` runs.
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
  ForRuns(shape, by_tokens, part, from, shape.SharesKeys() ? 1 : 3, put);
}

template <typename T>
void SumSharedKeys(const HeadsExchangeShape& shape, absl::Span<const PieceRows<const char>> pieces,
                   T* by_tokens) {
  const int64_t width = shape.head_bytes / static_cast<int64_t>(sizeof(T));
  const int64_t all = shape.heads + 2 * shape.kv_heads;
  const int64_t key = shape.OwnHeads() * shape.head_bytes;
  const auto sharing = static_cast<size_t>(shape.SharingRanks());
  ParallelFor(0, shape.PieceRows(), kPieceRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* keys = by_tokens + (row * all + shape.heads) * width;
      T* values = keys + shape.kv_heads * width;
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const auto of_head = pieces.subspan(static_cast<size_t>(head) * sharing, sharing);
        SumOfPieces(shape, of_head, row, key, width, keys + head * width);
        SumOfPieces(shape, of_head, row, key + shape.head_bytes, width, values + head * width);
      }
    }
  });
}
template void SumSharedKeys(const HeadsExchangeShape&, absl::Span<const PieceRows<const char>>,
                            float*);
template void SumSharedKeys(const HeadsExchangeShape&, absl::Span<const PieceRows<const char>>,
                            bf16*);
template void SumSharedKeys(const HeadsExchangeShape&, absl::Span<const PieceRows<const char>>,
                            f16*);

void CopyPiece(const HeadsExchangeShape& shape, PieceRows<const char> from, PieceRows<char> to) {
  const auto bytes = static_cast<size_t>(shape.tokens * shape.HeadRowBytes());
  for (int64_t row = 0; row < shape.PieceRows(); row += shape.tokens) {
    std::memcpy(RowOf(shape, to, row), RowOf(shape, from, row), bytes);
  }
}

}  // namespace milepost::kernels
