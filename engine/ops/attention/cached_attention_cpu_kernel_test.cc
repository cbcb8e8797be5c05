#include "engine/ops/attention/cached_attention_cpu_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class CachedAttentions : public OnEveryTarget {};
MP_ON_EVERY_TARGET(CachedAttentions);

int64_t Width(const CachedAttentionShape& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

// Causal attention over a whole text, in fp64, by the definition.
std::vector<double> Attend(const CachedAttentionShape& s, const std::vector<double>& qkv) {
  const int64_t rows = static_cast<int64_t>(qkv.size()) / Width(s);
  const int64_t dim = s.head_dim;
  std::vector<double> out(rows * s.heads * dim, 0.0);
  for (int64_t h = 0; h < s.heads; ++h) {
    const int64_t key = (s.heads + h / (s.heads / s.kv_heads)) * dim;
    const int64_t value = key + s.kv_heads * dim;
    for (int64_t q = 0; q < rows; ++q) {
      std::vector<double> weights(q + 1);
      double sum = 0;
      const int64_t begin = s.window == 0 ? 0 : std::max<int64_t>(0, q - s.window + 1);
      for (int64_t k = begin; k <= q; ++k) {
        double dot = 0;
        for (int64_t i = 0; i < dim; ++i) {
          dot += qkv[q * Width(s) + h * dim + i] * qkv[k * Width(s) + key + i];
        }
        sum += weights[k] = std::exp(dot / std::sqrt(static_cast<double>(dim)));
      }
      for (int64_t k = begin; k <= q; ++k) {
        for (int64_t i = 0; i < dim; ++i) {
          out[(q * s.heads + h) * dim + i] += weights[k] / sum * qkv[k * Width(s) + value + i];
        }
      }
    }
  }
  return out;
}

// A text that comes in pieces of these many rows. The cache starts as NaNs.
template <typename T>
std::vector<T> InPieces(const CachedAttentionShape& s, const std::vector<T>& qkv,
                        const std::vector<int64_t>& pieces) {
  const int64_t longest = *std::max_element(pieces.begin(), pieces.end());
  AlignedBuffer workspace(CachedAttentionWorkspaceBytes(s, longest, kDTypeOf<T>, MaxThreads()) +
                          64);
  AlignedBuffer cache(2 * s.kv_heads * s.positions * s.head_dim * sizeof(T));
  std::vector<T> out(qkv.size() / Width(s) * s.heads * s.head_dim);
  int64_t first = 0;
  for (int64_t rows : pieces) {
    CachedAttention(s, first, rows, qkv.data() + first * Width(s), static_cast<T*>(cache.data()),
                    out.data() + first * s.heads * s.head_dim, workspace.data());
    first += rows;
  }
  return out;
}

template <typename T>
void Check(const CachedAttentionShape& s, const std::vector<int64_t>& pieces) {
  int64_t rows = 0;
  for (int64_t piece : pieces) rows += piece;
  SCOPED_TRACE(testing::Message() << "P" << s.positions << " H" << s.heads << " D" << s.head_dim
                                  << " G" << s.kv_heads << " rows " << rows << " pieces "
                                  << pieces.size() << " bytes " << sizeof(T));
  const auto qkv = RandomVector<T>(rows * Width(s), 5);
  ExpectClose(InPieces(s, qkv, pieces), Attend(s, ToDouble(qkv)), kTolerance<T>, "out");
}

template <typename T>
void CheckAll() {
  Check<T>({.positions = 7, .heads = 2, .head_dim = 8, .kv_heads = 2}, {1, 1, 3, 1, 1});
  Check<T>({.positions = 70, .heads = 4, .head_dim = 24, .kv_heads = 2}, {66, 1, 2, 1});
  Check<T>({.positions = 133, .heads = 6, .head_dim = 40, .kv_heads = 1}, {64, 64, 5});
  Check<T>({.positions = 300, .heads = 1, .head_dim = 64, .kv_heads = 1}, {200, 65, 1, 1});
}

TEST_P(CachedAttentions, MatchTheDefinitionHoweverTheTextComes) {
  CheckAll<float>();
  CheckAll<bf16>();
  CheckAll<f16>();
}

// More keys than one tile holds, row by row at the end; wide heads.
TEST_P(CachedAttentions, MatchTheDefinitionAcrossTiles) {
  Check<float>({.positions = 600, .heads = 2, .head_dim = 32, .kv_heads = 1}, {530, 1, 1, 1});
  Check<bf16>({.positions = 290, .heads = 5, .head_dim = 128, .kv_heads = 1}, {256, 1, 1, 32});
}

// Windows within a tile, over several, of one key, and of more than there are.
TEST_P(CachedAttentions, MatchTheDefinitionWithinAWindow) {
  for (int64_t window : {1, 3, 64, 100, 290, 700}) {
    const CachedAttentionShape s{
        .positions = 600, .heads = 4, .head_dim = 16, .kv_heads = 2, .window = window};
    Check<float>(s, {2, 1, 66, 1, 1});
    Check<float>(s, {400, 130, 1, 1});
    Check<bf16>(s, {300, 70, 1});
  }
  Check<f16>({.positions = 100, .heads = 2, .head_dim = 24, .kv_heads = 1, .window = 65},
             {80, 1, 1});
}

// A score that only one key has: neither stale keys nor the tile's padding are seen.
TEST_P(CachedAttentions, ForgetWhatIsWrittenAgain) {
  const CachedAttentionShape s{.positions = 80, .heads = 2, .head_dim = 16, .kv_heads = 1};
  const auto old = RandomVector<float>(80 * Width(s), 7, 30.0F);
  const auto text = RandomVector<float>(10 * Width(s), 8);
  std::vector<float> cache(2 * s.positions * s.head_dim);
  AlignedBuffer workspace(CachedAttentionWorkspaceBytes(s, 80, DType::kF32, MaxThreads()));
  std::vector<float> out(80 * s.heads * s.head_dim);
  CachedAttention(s, 0, 80, old.data(), cache.data(), out.data(), workspace.data());
  CachedAttention(s, 0, 9, text.data(), cache.data(), out.data(), workspace.data());
  CachedAttention(s, 9, 1, text.data() + 9 * Width(s), cache.data(),
                  out.data() + 9 * s.heads * s.head_dim, nullptr);
  out.resize(10 * s.heads * s.head_dim);
  ExpectClose(out, Attend(s, ToDouble(text)), kTolerance<float>, "out");
}

// Rows of texts in caches of their own, which lie in another order, against each text alone.
template <typename T>
void CheckTexts(const CachedAttentionShape& s) {
  SCOPED_TRACE(testing::Message() << "D" << s.head_dim << " window " << s.window);
  const std::vector<int32_t> texts = {3, -1, 0, 2};
  const std::vector<int32_t> lengths = {300, 0, 1, 65};  // with the row
  std::vector<T> caches(5 * s.TextElements(), T{});
  std::vector<T> rows, want;
  AlignedBuffer workspace(CachedAttentionWorkspaceBytes(s, 300, kDTypeOf<T>, MaxThreads()));
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto qkv = RandomVector<T>((lengths[i] + 1) * Width(s), 20 + i);
    rows.insert(rows.end(), qkv.end() - Width(s), qkv.end());
    std::vector<T> own(s.TextElements(), T{}), out(300 * s.heads * s.head_dim, T{});
    if (lengths[i] > 1) {
      CachedAttention(s, 0, lengths[i] - 1, qkv.data(), own.data(), out.data(), workspace.data());
    }
    if (texts[i] >= 0) {
      std::copy(own.begin(), own.end(), caches.begin() + texts[i] * s.TextElements());
      CachedAttention(s, lengths[i] - 1, 1, rows.data() + i * Width(s), own.data(), out.data(),
                      workspace.data());
    } else {
      std::fill(out.begin(), out.end(), T{});
    }
    want.insert(want.end(), out.begin(), out.begin() + s.heads * s.head_dim);
  }
  const std::vector<T> unused(caches.begin() + s.TextElements(),
                              caches.begin() + 2 * s.TextElements());
  std::vector<int32_t> positions;
  for (const int32_t length : lengths) positions.push_back(length - 1);
  std::vector<T> got(want.size(), T{});
  CachedRowsAttention(s, {positions.data(), texts.data(), 4}, rows.data(), caches.data(),
                      got.data());
  EXPECT_TRUE(SameBits(got, want));
  EXPECT_TRUE(SameBits(unused, std::vector<T>(caches.begin() + s.TextElements(),
                                              caches.begin() + 2 * s.TextElements())));
  // They were kept: of the first, the last position's keys.
  const T* key = caches.data() + 3 * s.TextElements() + 299 * s.head_dim;
  EXPECT_TRUE(SameBits(std::vector<T>(key, key + s.head_dim),
                       std::vector<T>(rows.begin() + s.heads * s.head_dim,
                                      rows.begin() + (s.heads + 1) * s.head_dim)));
}

TEST_P(CachedAttentions, RowsOfSeveralTextsAreThoseOfEach) {
  for (const int threads : {1, 5}) {
    const ThreadCount scope(threads);
    for (const int64_t window : {0, 70}) {
      CheckTexts<float>(
          {.positions = 300, .heads = 6, .head_dim = 24, .kv_heads = 2, .window = window});
      CheckTexts<bf16>(
          {.positions = 310, .heads = 2, .head_dim = 64, .kv_heads = 2, .window = window});
      CheckTexts<f16>(
          {.positions = 300, .heads = 4, .head_dim = 40, .kv_heads = 1, .window = window});
    }
  }
}

TEST(CachedAttentionThreads, ThreadCountDoesNotMatter) {
  const CachedAttentionShape s{.positions = 400, .heads = 6, .head_dim = 64, .kv_heads = 2};
  const auto qkv = RandomVector<float>(330 * Width(s), 9);
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 5}) {
    const ThreadCount scope(threads);
    results.push_back(InPieces(s, qkv, {256, 70, 1, 1, 1, 1}));
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

}  // namespace
}  // namespace milepost::kernels
