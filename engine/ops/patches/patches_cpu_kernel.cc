#include "engine/ops/patches/patches_cpu_kernel.h"

#include <algorithm>
#include <cstring>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ops/patches/patches_cpu_kernel.cc"
#include "hwy/foreach_target.h"
//
#include "engine/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace milepost::kernels::HWY_NAMESPACE {
namespace {

// Of the rows of one place of every image, `stride` apart.
template <typename T>
void SumRows(const T* x, int64_t rows, int64_t stride, int64_t width, const TokenSum& sum) {
  const DF d;
  ForVectors(width, [&](int64_t i, int64_t n) MP_SIMD {
    VF all = hn::Zero(d);
    for (int64_t row = 0; row < rows; ++row) {
      all = hn::Add(all, LoadUpTo(d, x + row * stride + i, n));
    }
    if (sum.accumulate) all = hn::Add(LoadUpTo(d, sum.to + i, n), all);
    StoreUpTo(all, d, sum.to + i, n);
  });
}

}  // namespace

// One name per element type: HWY_EXPORT takes no templates.
void SumRowsF32(const float* x, int64_t rows, int64_t stride, int64_t width, const TokenSum& sum) {
  SumRows(x, rows, stride, width, sum);
}
void SumRowsBf16(const bf16* x, int64_t rows, int64_t stride, int64_t width, const TokenSum& sum) {
  SumRows(x, rows, stride, width, sum);
}
void SumRowsF16(const f16* x, int64_t rows, int64_t stride, int64_t width, const TokenSum& sum) {
  SumRows(x, rows, stride, width, sum);
}

}  // namespace milepost::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace milepost::kernels {

HWY_EXPORT(SumRowsF32);
HWY_EXPORT(SumRowsBf16);
HWY_EXPORT(SumRowsF16);

namespace {

void SumTokens(const float* x, int64_t rows, int64_t stride, int64_t width, const TokenSum& sum) {
  HWY_DYNAMIC_DISPATCH(SumRowsF32)(x, rows, stride, width, sum);
}
void SumTokens(const bf16* x, int64_t rows, int64_t stride, int64_t width, const TokenSum& sum) {
  HWY_DYNAMIC_DISPATCH(SumRowsBf16)(x, rows, stride, width, sum);
}
void SumTokens(const f16* x, int64_t rows, int64_t stride, int64_t width, const TokenSum& sum) {
  HWY_DYNAMIC_DISPATCH(SumRowsF16)(x, rows, stride, width, sum);
}

template <typename T>
void CopyPatch(const PatchGrid& grid, const uint8_t* pixels, const T* table, T* row) {
  for (int64_t c = 0; c < grid.channels; ++c) {
    const T* of_channel = table + 256 * c;
    for (int64_t y = 0; y < grid.side; ++y) {
      const uint8_t* at = pixels + y * grid.width * grid.channels + c;
      for (int64_t x = 0; x < grid.side; ++x) *row++ = of_channel[at[x * grid.channels]];
    }
  }
}

// run(image) for each.
template <typename Run>
void ForTokens(const TokenRows& tokens, const Run& run) {
  ParallelFor(0, tokens.batch, 1, [&](int64_t first, int64_t last) {
    for (int64_t image = first; image < last; ++image) run(image);
  });
}

template <typename T>
void CopyNumbers(const T* from, int64_t n, T* to) {
  std::memcpy(static_cast<void*>(to), from, static_cast<size_t>(n) * sizeof(T));
}

}  // namespace

template <typename T>
void ImagePatches(const PatchGrid& grid, const uint8_t* images, const T* table, T* rows) {
  const int64_t per_image = grid.PerImage(), across = grid.Across();
  ParallelFor(0, grid.batch * per_image, 4, [&](int64_t first, int64_t last) {
    for (int64_t patch = first; patch < last; ++patch) {
      const int64_t image = patch / per_image, at = patch % per_image;
      const int64_t top = image * grid.height + at / across * grid.side;
      const int64_t pixel = top * grid.width + at % across * grid.side;
      CopyPatch(grid, images + pixel * grid.channels, table, rows + patch * grid.Numbers());
    }
  });
}

template <typename T>
void PatchTokens(const TokenRows& tokens, const T* rows, const T* cls, const T* positions, T* x) {
  const int64_t width = tokens.width, patches = tokens.patches * width;
  for (int64_t image = 0; image < tokens.batch; ++image) {
    T* to = x + image * (patches + width);
    Add(cls, positions, width, to);
    Add(rows + image * patches, positions + width, patches, to + width);
  }
}

template <typename T>
void PatchTokensBackward(const TokenRows& tokens, const T* dx, T* drows, const TokenSum& dcls,
                         const TokenSum& dpositions) {
  const int64_t width = tokens.width, patches = tokens.patches * width, stride = patches + width;
  ForTokens(tokens, [&](int64_t image) {
    CopyNumbers(dx + image * stride + width, patches, drows + image * patches);
  });
  if (dcls.to != nullptr) SumTokens(dx, tokens.batch, stride, width, dcls);
  if (dpositions.to == nullptr) return;
  ParallelFor(0, tokens.patches + 1, 4, [&](int64_t first, int64_t last) {
    SumTokens(dx + first * width, tokens.batch, stride, (last - first) * width,
              {dpositions.to + first * width, dpositions.accumulate});
  });
}

template <typename T>
void FirstRows(const TokenRows& tokens, const T* x, T* y) {
  const int64_t width = tokens.width, stride = (tokens.patches + 1) * width;
  ForTokens(tokens, [&](int64_t i) { CopyNumbers(x + i * stride, width, y + i * width); });
}

template <typename T>
void FirstRowsBackward(const TokenRows& tokens, const T* dy, T* dx) {
  const int64_t width = tokens.width, stride = (tokens.patches + 1) * width;
  ForTokens(tokens, [&](int64_t i) {
    CopyNumbers(dy + i * width, width, dx + i * stride);
    std::fill_n(dx + i * stride + width, stride - width, FromFloat<T>(0.0F));
  });
}

#define MP_INSTANTIATE(T)                                                            \
  template void ImagePatches(const PatchGrid&, const uint8_t*, const T*, T*);        \
  template void PatchTokens(const TokenRows&, const T*, const T*, const T*, T*);     \
  template void PatchTokensBackward(const TokenRows&, const T*, T*, const TokenSum&, \
                                    const TokenSum&);                                \
  template void FirstRows(const TokenRows&, const T*, T*);                           \
  template void FirstRowsBackward(const TokenRows&, const T*, T*)
MP_INSTANTIATE(float);
MP_INSTANTIATE(bf16);
MP_INSTANTIATE(f16);
#undef MP_INSTANTIATE

}  // namespace milepost::kernels
#endif  // HWY_ONCE
