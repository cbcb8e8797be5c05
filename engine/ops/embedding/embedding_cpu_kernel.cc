#include "engine/ops/embedding/embedding_cpu_kernel.h"

#include <algorithm>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/embedding/embedding_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

constexpr int64_t kDropoutChunk = 256;

// Multipliers of elements [at, at + count): all 1 without dropout.
HWY_INLINE void Multipliers(const DropoutParams& dropout, int64_t at, int64_t count, float* keep) {
  if (dropout.p > 0.0f) {
    DropoutRow(dropout, static_cast<uint64_t>(at), count, keep);
  } else {
    std::fill(keep, keep + count, 1.0f);
  }
}

struct Places {
  int64_t token, position, segment;
};
HWY_INLINE Places PlacesOf(const EmbeddingRows& rows, int64_t row) {
  return {
      rows.tokens == nullptr ? row : rows.tokens[row],
      rows.positions == nullptr ? rows.first_position + row % rows.sequence : rows.positions[row],
      rows.segments == nullptr ? 0 : rows.segments[row]};
}

template <typename T>
void ForwardRows(const EmbeddingRows& rows, const EmbeddingTables<T>& tables, int64_t first,
                 int64_t last, int64_t width, const DropoutParams& dropout, T* out) {
  const DF d;
  alignas(64) float keep[kDropoutChunk];
  for (int64_t row = first; row < last; ++row) {
    const Places at_row = PlacesOf(rows, row);
    const T* token = tables.wte + at_row.token * width;
    const T* position = tables.wpe == nullptr ? nullptr : tables.wpe + at_row.position * width;
    const T* segment = tables.wse == nullptr ? nullptr : tables.wse + at_row.segment * width;
    for (int64_t at = 0; at < width; at += kDropoutChunk) {
      const int64_t count = std::min(kDropoutChunk, width - at);
      Multipliers(dropout, row * width + at, count, keep);
      ForVectors(count, [&](int64_t i, int64_t n) MP_SIMD {
        VF sum = LoadUpTo(d, token + at + i, n);
        if (position != nullptr) sum = hn::Add(sum, LoadUpTo(d, position + at + i, n));
        if (segment != nullptr) sum = hn::Add(sum, LoadUpTo(d, segment + at + i, n));
        StoreUpTo(hn::Mul(sum, LoadUpTo(d, keep + i, n)), d, out + row * width + at + i, n);
      });
    }
  }
}

HWY_INLINE void AddInto(VF value, DF d, float* sum, int64_t n) {
  StoreUpTo(hn::Add(LoadUpTo(d, sum, n), value), d, sum, n);
}

// Columns [begin, end) of every row, in row order: a thread owns columns, so no two add to one
// place.
template <typename T>
void BackwardColumns(const EmbeddingRows& rows, const T* dy, int64_t width, int64_t begin,
                     int64_t end, const DropoutParams& dropout, float* dwte, float* dwpe,
                     float* dwse) {
  const DF d;
  alignas(64) float keep[kDropoutChunk];
  for (int64_t row = 0; row < rows.batch * rows.sequence; ++row) {
    const Places at_row = PlacesOf(rows, row);
    const bool own = at_row.token >= rows.first_token && at_row.token < rows.end_token;
    for (int64_t at = begin; at < end; at += kDropoutChunk) {
      const int64_t count = std::min(kDropoutChunk, end - at);
      Multipliers(dropout, row * width + at, count, keep);
      float* token =
          dwte == nullptr || !own ? nullptr : dwte + (at_row.token - rows.first_token) * width + at;
      float* position = dwpe == nullptr ? nullptr : dwpe + at_row.position * width + at;
      float* segment = dwse == nullptr ? nullptr : dwse + at_row.segment * width + at;
      ForVectors(count, [&](int64_t i, int64_t n) MP_SIMD {
        const VF g = hn::Mul(LoadUpTo(d, dy + row * width + at + i, n), LoadUpTo(d, keep + i, n));
        if (token != nullptr) AddInto(g, d, token + i, n);
        if (position != nullptr) AddInto(g, d, position + i, n);
        if (segment != nullptr) AddInto(g, d, segment + i, n);
      });
    }
  }
}

}  // namespace

void ForwardRowsF32(const EmbeddingRows& rows, const EmbeddingTables<float>& tables, int64_t first,
                    int64_t last, int64_t width, const DropoutParams& dropout, float* out) {
  ForwardRows(rows, tables, first, last, width, dropout, out);
}
void ForwardRowsBf16(const EmbeddingRows& rows, const EmbeddingTables<bf16>& tables, int64_t first,
                     int64_t last, int64_t width, const DropoutParams& dropout, bf16* out) {
  ForwardRows(rows, tables, first, last, width, dropout, out);
}
void BackwardColumnsF32(const EmbeddingRows& rows, const float* dy, int64_t width, int64_t begin,
                        int64_t end, const DropoutParams& dropout, float* dwte, float* dwpe,
                        float* dwse) {
  BackwardColumns(rows, dy, width, begin, end, dropout, dwte, dwpe, dwse);
}
void BackwardColumnsBf16(const EmbeddingRows& rows, const bf16* dy, int64_t width, int64_t begin,
                         int64_t end, const DropoutParams& dropout, float* dwte, float* dwpe,
                         float* dwse) {
  BackwardColumns(rows, dy, width, begin, end, dropout, dwte, dwpe, dwse);
}
void ForwardRowsF16(const EmbeddingRows& rows, const EmbeddingTables<f16>& tables, int64_t first,
                    int64_t last, int64_t width, const DropoutParams& dropout, f16* out) {
  ForwardRows(rows, tables, first, last, width, dropout, out);
}
void BackwardColumnsF16(const EmbeddingRows& rows, const f16* dy, int64_t width, int64_t begin,
                        int64_t end, const DropoutParams& dropout, float* dwte, float* dwpe,
                        float* dwse) {
  BackwardColumns(rows, dy, width, begin, end, dropout, dwte, dwpe, dwse);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(ForwardRowsF32);
HWY_EXPORT(ForwardRowsBf16);
HWY_EXPORT(ForwardRowsF16);
HWY_EXPORT(BackwardColumnsF32);
HWY_EXPORT(BackwardColumnsBf16);
HWY_EXPORT(BackwardColumnsF16);

namespace {

template <typename T, typename Run>
void ForwardWith(Run run, const EmbeddingRows& rows, const EmbeddingTables<T>& tables,
                 int64_t width, const DropoutParams& dropout, T* out) {
  ParallelFor(0, rows.batch * rows.sequence, 16, [&](int64_t first, int64_t last) {
    run(rows, tables, first, last, width, dropout, out);
  });
}

template <typename T, typename Columns>
void BackwardWith(Columns columns, const EmbeddingRows& rows, const T* dy, int64_t width,
                  const DropoutParams& dropout, const TableGradient& dwte,
                  const TableGradient& dwpe, const TableGradient& dwse) {
  for (const TableGradient* table : {&dwte, &dwpe, &dwse}) {
    if (table->data == nullptr || table->accumulate) continue;
    Fill(table->data, table->rows * width, 0.0f);
  }
  ParallelFor(0, width, 64, [&](int64_t begin, int64_t end) {
    columns(rows, dy, width, begin, end, dropout, dwte.data, dwpe.data, dwse.data);
  });
}

}  // namespace

template <typename T>
void TokenRows(const int32_t* tokens, int64_t rows, const T* table, int64_t first, int64_t count,
               int64_t width, T* out) {
  ParallelFor(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t own = tokens[row] - first;
      if (own >= 0 && own < count) {
        std::copy_n(table + own * width, width, out + row * width);
      } else {
        std::fill_n(out + row * width, width, T{});
      }
    }
  });
}
template void TokenRows(const int32_t*, int64_t, const float*, int64_t, int64_t, int64_t, float*);
template void TokenRows(const int32_t*, int64_t, const bf16*, int64_t, int64_t, int64_t, bf16*);
template void TokenRows(const int32_t*, int64_t, const f16*, int64_t, int64_t, int64_t, f16*);

template <>
void EmbeddingForward(const EmbeddingRows& rows, const EmbeddingTables<float>& tables,
                      int64_t width, const DropoutParams& dropout, float* out) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(ForwardRowsF32), rows, tables, width, dropout, out);
}
template <>
void EmbeddingForward(const EmbeddingRows& rows, const EmbeddingTables<bf16>& tables, int64_t width,
                      const DropoutParams& dropout, bf16* out) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(ForwardRowsBf16), rows, tables, width, dropout, out);
}
template <>
void EmbeddingForward(const EmbeddingRows& rows, const EmbeddingTables<f16>& tables, int64_t width,
                      const DropoutParams& dropout, f16* out) {
  ForwardWith(HWY_DYNAMIC_DISPATCH(ForwardRowsF16), rows, tables, width, dropout, out);
}
template <>
void EmbeddingBackward(const EmbeddingRows& rows, const float* dy, int64_t width,
                       const DropoutParams& dropout, const TableGradient& dwte,
                       const TableGradient& dwpe, const TableGradient& dwse) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardColumnsF32), rows, dy, width, dropout, dwte, dwpe,
               dwse);
}
template <>
void EmbeddingBackward(const EmbeddingRows& rows, const bf16* dy, int64_t width,
                       const DropoutParams& dropout, const TableGradient& dwte,
                       const TableGradient& dwpe, const TableGradient& dwse) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardColumnsBf16), rows, dy, width, dropout, dwte, dwpe,
               dwse);
}
template <>
void EmbeddingBackward(const EmbeddingRows& rows, const f16* dy, int64_t width,
                       const DropoutParams& dropout, const TableGradient& dwte,
                       const TableGradient& dwpe, const TableGradient& dwse) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardColumnsF16), rows, dy, width, dropout, dwte, dwpe,
               dwse);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
