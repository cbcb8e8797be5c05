#include "engine/ops/attention/cached_attention_cuda_kernel.h"
#include "engine/ops/attention/cached_attention_cpu_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/attention/cached_attention_cuda_kernel-inl.h"

namespace milepost::kernels::cuda {
namespace {

// One row and head in fp64, over keys and values of positions [0, seen) that are in the window.
template <typename T>
std::vector<double> Reference(const CachedAttentionShape& s, const std::vector<T>& cache,
                              const T* query, int64_t g, int64_t seen) {
  std::vector<double> scores(seen), out(s.head_dim, 0.0);
  double max = -INFINITY, weight = 0;
  const int64_t begin = s.window == 0 ? 0 : std::max<int64_t>(0, seen - s.window);
  for (int64_t k = begin; k < seen; ++k) {
    double dot = 0;
    for (int64_t i = 0; i < s.head_dim; ++i) {
      dot += double{ToFloat(query[i])} * ToFloat(cache[(g * s.positions + k) * s.head_dim + i]);
    }
    scores[k] = dot / std::sqrt(static_cast<double>(s.head_dim));
    max = std::max(max, scores[k]);
  }
  const int64_t values = s.kv_heads * s.positions * s.head_dim;
  for (int64_t k = begin; k < seen; ++k) {
    const double p = std::exp(scores[k] - max);
    weight += p;
    for (int64_t i = 0; i < s.head_dim; ++i) {
      out[i] += p * ToFloat(cache[values + (g * s.positions + k) * s.head_dim + i]);
    }
  }
  for (double& x : out) x /= weight;
  return out;
}

// `rows` rows of which `count` count, behind `first` that are in the cache.
template <typename T>
void TestCached(const CachedAttentionShape& s, int64_t first, int64_t rows, int64_t count) {
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim, dim = s.head_dim;
  const auto packed = RandomVector<T>(rows * width, 3, 0.7f);
  const auto before = RandomVector<T>(2 * s.kv_heads * s.positions * dim, 4, 0.7f);
  HostArray<T> qkv(packed), cache(before), out(rows * s.heads * dim);
  HostArray<int32_t> positions(std::vector<int32_t>(1, static_cast<int32_t>(first)));
  HostArray<int64_t> last(std::vector<int64_t>(1, count - 1));
  RunKernel(MakeCachedAttention<T>({.shape = s,
                                    .rows = rows,
                                    .positions = positions.data(),
                                    .last = last.data(),
                                    .qkv = qkv.data(),
                                    .cache = cache.data(),
                                    .out = out.data()}));

  std::vector<T> want_cache = before;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t kind = 0; kind < 2; ++kind) {
      for (int64_t g = 0; g < s.kv_heads; ++g) {
        std::copy_n(&packed[r * width + (s.heads + kind * s.kv_heads + g) * dim], dim,
                    &want_cache[((kind * s.kv_heads + g) * s.positions + first + r) * dim]);
      }
    }
  }
  const std::vector<T> kept = cache.values(), got = out.values();
  for (size_t i = 0; i < kept.size(); ++i) ASSERT_EQ(ToFloat(kept[i]), ToFloat(want_cache[i])) << i;
  const double bar = sizeof(T) == 4 ? 2e-6 : kDTypeOf<T> == DType::kBf16 ? 4e-3 : 5e-4;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < s.heads; ++h) {
      std::vector<double> want(dim, 0.0);
      if (r < count) {
        want = Reference(s, want_cache, &packed[r * width + h * dim], h / (s.heads / s.kv_heads),
                         first + r + 1);
      }
      for (int64_t i = 0; i < dim; ++i) {
        ASSERT_NEAR(ToFloat(got[(r * s.heads + h) * dim + i]), want[i],
                    bar * std::abs(want[i]) + (r < count ? 1e-6 : 0))
            << r << " " << h << " " << i;
      }
    }
  }
}

// Rows of texts, at positions of their own, in caches that lie in another order.
template <typename T>
void TestTexts(const CachedAttentionShape& s) {
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim, dim = s.head_dim;
  const std::vector<int32_t> texts = {2, -1, 0, 3}, places = {7, 0, 0, 23};
  const auto packed = RandomVector<T>(4 * width, 3, 0.7f);
  const auto before = RandomVector<T>(4 * s.TextElements(), 4, 0.7f);
  HostArray<T> qkv(packed), caches(before), out(4 * s.heads * dim);
  HostArray<int32_t> positions(places), of(texts);
  RunKernel(MakeCachedAttention<T>({.shape = s,
                                    .rows = 4,
                                    .positions = positions.data(),
                                    .texts = of.data(),
                                    .apart = true,
                                    .qkv = qkv.data(),
                                    .cache = caches.data(),
                                    .out = out.data()}));
  std::vector<T> want_caches = before;
  const std::vector<T> got = out.values();
  const double bar = sizeof(T) == 4 ? 2e-6 : 4e-3;
  for (int64_t r = 0; r < 4; ++r) {
    std::vector<T> own;
    if (texts[r] >= 0) {
      const auto begin = want_caches.begin() + texts[r] * s.TextElements();
      for (int64_t g = 0; g < 2 * s.kv_heads; ++g) {
        std::copy_n(&packed[r * width + (s.heads + g) * dim], dim,
                    begin + (g * s.positions + places[r]) * dim);
      }
      own.assign(begin, begin + s.TextElements());
    }
    for (int64_t h = 0; h < s.heads; ++h) {
      std::vector<double> want(dim, 0.0);
      if (!own.empty()) {
        want = Reference(s, own, &packed[r * width + h * dim], h / (s.heads / s.kv_heads),
                         places[r] + 1);
      }
      for (int64_t i = 0; i < dim; ++i) {
        ASSERT_NEAR(ToFloat(got[(r * s.heads + h) * dim + i]), want[i],
                    bar * std::abs(want[i]) + (own.empty() ? 0 : 1e-6))
            << r << " " << h << " " << i;
      }
    }
  }
  EXPECT_TRUE(SameBits(caches.values(), want_caches));
}

TEST(CachedAttentionKernel, RowsOfSeveralTextsAreTheReferences) {
  for (int64_t window : {0, 5}) {
    TestTexts<float>({.positions = 24, .heads = 4, .head_dim = 8, .kv_heads = 2, .window = window});
    TestTexts<bf16>({.positions = 30, .heads = 3, .head_dim = 64, .kv_heads = 1, .window = window});
  }
}

// A chunk of a text whose cache is not the first.
TEST(CachedAttentionKernel, APieceIsOfItsText) {
  const CachedAttentionShape s{.positions = 12, .heads = 2, .head_dim = 8, .kv_heads = 1};
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  const auto packed = RandomVector<float>(5 * width, 3, 0.7f);
  const auto before = RandomVector<float>(2 * s.TextElements(), 4, 0.7f);
  HostArray<float> qkv(packed), caches(before),
      alone(std::vector<float>(before.begin() + s.TextElements(), before.end())), out(5 * 16),
      want(5 * 16);
  HostArray<int32_t> positions(std::vector<int32_t>{4, 5, 6, 7, 8}), texts({1, 1, 1, 1, 1});
  HostArray<int64_t> last(std::vector<int64_t>(1, 3));
  CachedAttentionArgs<float> args = {.shape = s,
                                     .rows = 5,
                                     .positions = positions.data(),
                                     .last = last.data(),
                                     .texts = texts.data(),
                                     .qkv = qkv.data(),
                                     .cache = caches.data(),
                                     .out = out.data()};
  RunKernel(MakeCachedAttention(args));
  args.texts = nullptr;
  args.cache = alone.data();
  args.out = want.data();
  RunKernel(MakeCachedAttention(args));
  EXPECT_TRUE(SameBits(out.values(), want.values()));
  const std::vector<float> both = caches.values();
  EXPECT_TRUE(
      SameBits(std::vector<float>(both.begin() + s.TextElements(), both.end()), alone.values()));
  EXPECT_TRUE(SameBits(std::vector<float>(both.begin(), both.begin() + s.TextElements()),
                       std::vector<float>(before.begin(), before.begin() + s.TextElements())));
}

TEST(CachedAttentionKernel, IsTheReference) {
  TestCached<float>({.positions = 24, .heads = 4, .head_dim = 8, .kv_heads = 2}, 0, 5, 5);
  TestCached<float>({.positions = 24, .heads = 2, .head_dim = 40, .kv_heads = 2}, 9, 7, 3);
  TestCached<bf16>({.positions = 40, .heads = 3, .head_dim = 64, .kv_heads = 1}, 30, 1, 1);
  TestCached<f16>({.positions = 12, .heads = 2, .head_dim = 256, .kv_heads = 2}, 3, 9, 9);
  for (int64_t window : {1, 2, 7, 12, 50}) {
    TestCached<float>({.positions = 24, .heads = 4, .head_dim = 8, .kv_heads = 2, .window = window},
                      6, 9, 8);
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
