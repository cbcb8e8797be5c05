#include "engine/kernels/cpu/embedding.h"

#include <algorithm>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/cpu/embedding.cc"
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

template <typename T>
void ForwardRows(const int32_t* tokens, const T* wte, const T* wpe, int64_t first, int64_t last,
                 int64_t sequence, int64_t width, const DropoutParams& dropout, T* out) {
  const DF d;
  alignas(64) float keep[kDropoutChunk];
  for (int64_t row = first; row < last; ++row) {
    const T* token = wte + int64_t{tokens[row]} * width;
    const T* position = wpe == nullptr ? nullptr : wpe + row % sequence * width;
    for (int64_t at = 0; at < width; at += kDropoutChunk) {
      const int64_t count = std::min(kDropoutChunk, width - at);
      Multipliers(dropout, row * width + at, count, keep);
      ForVectors(count, [&](int64_t i, int64_t n) MP_SIMD {
        VF sum = LoadUpTo(d, token + at + i, n);
        if (position != nullptr) sum = hn::Add(sum, LoadUpTo(d, position + at + i, n));
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
void BackwardColumns(const int32_t* tokens, const T* dy, int64_t rows, int64_t sequence,
                     int64_t width, int64_t begin, int64_t end, const DropoutParams& dropout,
                     float* dwte, float* dwpe) {
  const DF d;
  alignas(64) float keep[kDropoutChunk];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t at = begin; at < end; at += kDropoutChunk) {
      const int64_t count = std::min(kDropoutChunk, end - at);
      Multipliers(dropout, row * width + at, count, keep);
      float* token = dwte == nullptr ? nullptr : dwte + int64_t{tokens[row]} * width + at;
      float* position = dwpe == nullptr ? nullptr : dwpe + row % sequence * width + at;
      ForVectors(count, [&](int64_t i, int64_t n) MP_SIMD {
        const VF g = hn::Mul(LoadUpTo(d, dy + row * width + at + i, n), LoadUpTo(d, keep + i, n));
        if (token != nullptr) AddInto(g, d, token + i, n);
        if (position != nullptr) AddInto(g, d, position + i, n);
      });
    }
  }
}

}  // namespace

void ForwardRowsF32(const int32_t* tokens, const float* wte, const float* wpe, int64_t first,
                    int64_t last, int64_t sequence, int64_t width, const DropoutParams& dropout,
                    float* out) {
  ForwardRows(tokens, wte, wpe, first, last, sequence, width, dropout, out);
}
void ForwardRowsBf16(const int32_t* tokens, const bf16* wte, const bf16* wpe, int64_t first,
                     int64_t last, int64_t sequence, int64_t width, const DropoutParams& dropout,
                     bf16* out) {
  ForwardRows(tokens, wte, wpe, first, last, sequence, width, dropout, out);
}
void ForwardRowsF16(const int32_t* tokens, const f16* wte, const f16* wpe, int64_t first,
                    int64_t last, int64_t sequence, int64_t width, const DropoutParams& dropout,
                    f16* out) {
  ForwardRows(tokens, wte, wpe, first, last, sequence, width, dropout, out);
}
void BackwardColumnsF32(const int32_t* tokens, const float* dy, int64_t rows, int64_t sequence,
                        int64_t width, int64_t begin, int64_t end, const DropoutParams& dropout,
                        float* dwte, float* dwpe) {
  BackwardColumns(tokens, dy, rows, sequence, width, begin, end, dropout, dwte, dwpe);
}
void BackwardColumnsBf16(const int32_t* tokens, const bf16* dy, int64_t rows, int64_t sequence,
                         int64_t width, int64_t begin, int64_t end, const DropoutParams& dropout,
                         float* dwte, float* dwpe) {
  BackwardColumns(tokens, dy, rows, sequence, width, begin, end, dropout, dwte, dwpe);
}
void BackwardColumnsF16(const int32_t* tokens, const f16* dy, int64_t rows, int64_t sequence,
                        int64_t width, int64_t begin, int64_t end, const DropoutParams& dropout,
                        float* dwte, float* dwpe) {
  BackwardColumns(tokens, dy, rows, sequence, width, begin, end, dropout, dwte, dwpe);
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

template <typename T, typename Columns>
void BackwardWith(Columns columns, const int32_t* tokens, const T* dy, int64_t batch,
                  int64_t sequence, int64_t width, int64_t vocabulary, int64_t positions,
                  const DropoutParams& dropout, bool accumulate, float* dwte, float* dwpe) {
  if (!accumulate && dwte != nullptr) Fill(dwte, vocabulary * width, 0.0f);
  if (!accumulate && dwpe != nullptr) Fill(dwpe, positions * width, 0.0f);
  ParallelFor(0, width, 64, [&](int64_t begin, int64_t end) {
    columns(tokens, dy, batch * sequence, sequence, width, begin, end, dropout, dwte, dwpe);
  });
}

}  // namespace

template <>
void EmbeddingForward(const int32_t* tokens, const float* wte, const float* wpe, int64_t batch,
                      int64_t sequence, int64_t width, const DropoutParams& dropout, float* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRowsF32);
  ParallelFor(0, batch * sequence, 16, [&](int64_t first, int64_t last) {
    run(tokens, wte, wpe, first, last, sequence, width, dropout, out);
  });
}
template <>
void EmbeddingForward(const int32_t* tokens, const bf16* wte, const bf16* wpe, int64_t batch,
                      int64_t sequence, int64_t width, const DropoutParams& dropout, bf16* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRowsBf16);
  ParallelFor(0, batch * sequence, 16, [&](int64_t first, int64_t last) {
    run(tokens, wte, wpe, first, last, sequence, width, dropout, out);
  });
}
template <>
void EmbeddingForward(const int32_t* tokens, const f16* wte, const f16* wpe, int64_t batch,
                      int64_t sequence, int64_t width, const DropoutParams& dropout, f16* out) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardRowsF16);
  ParallelFor(0, batch * sequence, 16, [&](int64_t first, int64_t last) {
    run(tokens, wte, wpe, first, last, sequence, width, dropout, out);
  });
}

template <>
void EmbeddingBackward(const int32_t* tokens, const float* dy, int64_t batch, int64_t sequence,
                       int64_t width, int64_t vocabulary, int64_t positions,
                       const DropoutParams& dropout, bool accumulate, float* dwte, float* dwpe) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardColumnsF32), tokens, dy, batch, sequence, width,
               vocabulary, positions, dropout, accumulate, dwte, dwpe);
}
template <>
void EmbeddingBackward(const int32_t* tokens, const bf16* dy, int64_t batch, int64_t sequence,
                       int64_t width, int64_t vocabulary, int64_t positions,
                       const DropoutParams& dropout, bool accumulate, float* dwte, float* dwpe) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardColumnsBf16), tokens, dy, batch, sequence, width,
               vocabulary, positions, dropout, accumulate, dwte, dwpe);
}
template <>
void EmbeddingBackward(const int32_t* tokens, const f16* dy, int64_t batch, int64_t sequence,
                       int64_t width, int64_t vocabulary, int64_t positions,
                       const DropoutParams& dropout, bool accumulate, float* dwte, float* dwpe) {
  BackwardWith(HWY_DYNAMIC_DISPATCH(BackwardColumnsF16), tokens, dy, batch, sequence, width,
               vocabulary, positions, dropout, accumulate, dwte, dwpe);
}

}  // namespace milepost::kernels
#endif  // HWY_ONCE
