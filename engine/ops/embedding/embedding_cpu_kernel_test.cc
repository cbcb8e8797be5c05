#include "engine/ops/embedding/embedding_cpu_kernel.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Embedding : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Embedding);

constexpr int64_t kBatch = 3, kSequence = 17, kVocabulary = 9, kPositions = 20, kSegments = 3;
constexpr int64_t kRows = kBatch * kSequence;

std::vector<int32_t> Ids(int64_t below, int64_t step) {
  std::vector<int32_t> ids(kRows);
  for (int64_t i = 0; i < kRows; ++i) ids[i] = static_cast<int32_t>(i * (i + step) % below);
  return ids;
}

// Token, position and segment of a row; the latter two given or not.
struct Indices {
  explicit Indices(bool given)
      : tokens(Ids(kVocabulary - 1, 0)), positions(Ids(kSequence, 3)), segments(Ids(kSegments, 1)) {
    if (given) return;
    for (int64_t i = 0; i < kRows; ++i) positions[i] = static_cast<int32_t>(i % kSequence);
    segments.assign(kRows, 0);
  }
  EmbeddingRows Rows(bool given) const {
    return {tokens.data(), given ? positions.data() : nullptr, given ? segments.data() : nullptr,
            kBatch, kSequence};
  }
  std::vector<int32_t> tokens, positions, segments;
};

template <typename T>
void CheckEmbedding(int64_t width, float p, bool accumulate, bool given) {
  const Indices ids(given);
  const EmbeddingRows rows = ids.Rows(given);
  const auto wte = RandomVector<T>(kVocabulary * width, 1);
  const auto wpe = RandomVector<T>(kPositions * width, 2);
  const auto wse = RandomVector<T>(kSegments * width, 7);
  const auto dy = RandomVector<T>(kRows * width, 3);
  const DropoutParams dropout{.p = p, .seed = 4, .stream = 5, .step = 6, .first_element = 640};
  std::vector<float> keep(kRows * width, 1.0f);
  if (p > 0) DropoutMultipliers(dropout, 0, kRows * width, keep.data());

  std::vector<T> out(kRows * width);
  EmbeddingForward<T>(rows, {wte.data(), wpe.data(), wse.data()}, width, dropout, out.data());
  const int64_t counts[] = {kVocabulary, kPositions, kSegments};
  std::vector<std::vector<float>> before;
  std::vector<std::vector<double>> want;
  for (int64_t count : counts) {
    before.emplace_back(count * width, 1.0f);
    want.emplace_back(count * width, accumulate ? 1.0 : 0.0);
  }
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at[] = {ids.tokens[row] * width + i, ids.positions[row] * width + i,
                            ids.segments[row] * width + i};
      const float sum = ToFloat(wte[at[0]]) + ToFloat(wpe[at[1]]) + ToFloat(wse[at[2]]);
      const int64_t element = row * width + i;
      ASSERT_EQ(ToFloat(out[element]), ToFloat(FromFloat<T>(sum * keep[element])));
      for (int t : {0, 1, 2}) want[t][at[t]] += double{ToFloat(dy[element])} * keep[element];
    }
  }
  std::vector<std::vector<float>> first;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    auto got = before;
    const auto table = [&](int t) -> TableGradient {
      return {got[t].data(), counts[t], accumulate};
    };
    EmbeddingBackward<T>(rows, dy.data(), width, dropout, table(0), table(1), table(2));
    for (int t : {0, 1, 2}) ExpectClose(got[t], want[t], 1e-6, "gradient");
    if (threads == 1) first = got;
    for (int t : {0, 1, 2}) EXPECT_TRUE(SameBits(got[t], first[t]));
  }
}

TEST_P(Embedding, MatchesDefinition) {
  for (int64_t width : {1, 7, 127, 320}) {
    for (float p : {0.0f, 0.25f}) {
      CheckEmbedding<float>(width, p, false, p > 0);
      CheckEmbedding<bf16>(width, p, true, p == 0);
      CheckEmbedding<f16>(width, p, true, p == 0);
    }
  }
}

TEST_P(Embedding, PositionsAndSegmentsMayBeMissing) {
  const Indices ids(false);
  const auto wte = RandomVector<bf16>(kVocabulary * 21, 1);
  std::vector<bf16> out(kRows * 21);
  EmbeddingForward<bf16>(ids.Rows(false), {wte.data()}, 21, DropoutParams{}, out.data());
  for (int64_t i = 0; i < kRows * 21; ++i) {
    ASSERT_EQ(out[i].bits, wte[ids.tokens[i / 21] * 21 + i % 21].bits);
  }
}

// Each output may be missing, and each accumulates or not for itself.
TEST_P(Embedding, GradientsAreIndependent) {
  const Indices ids(true);
  const EmbeddingRows rows = ids.Rows(true);
  const auto dy = RandomVector<float>(kRows * 8, 3);
  std::vector<float> dwte(kVocabulary * 8), dwpe(kPositions * 8), dwse(kSegments * 8);
  EmbeddingBackward(rows, dy.data(), 8, DropoutParams{}, {dwte.data(), kVocabulary, true},
                    {dwpe.data(), kPositions}, {dwse.data(), kSegments});
  std::vector<float> alone(kPositions * 8, 5.0f);
  EmbeddingBackward<float>(rows, dy.data(), 8, DropoutParams{}, {}, {alone.data(), kPositions}, {});
  EXPECT_TRUE(SameBits(dwpe, alone));
}

// Ranks that divide the table: what one has not, another has; none writes outside its rows.
TEST_P(Embedding, RanksThatDivideTheTable) {
  constexpr int64_t kWidth = 24, kEach = (kVocabulary + 2) / 3;
  const Indices ids(true);
  const EmbeddingRows whole = ids.Rows(true);
  const auto wte = RandomVector<float>(3 * kEach * kWidth, 1);
  const auto wpe = RandomVector<float>(kPositions * kWidth, 2);
  const auto dy = RandomVector<float>(kRows * kWidth, 3);
  std::vector<float> want(kRows * kWidth), sum(kRows * kWidth);
  EmbeddingForward<float>(whole, {wte.data(), wpe.data()}, kWidth, DropoutParams{}, want.data());
  std::vector<float> dwte(kVocabulary * kWidth);
  EmbeddingBackward(whole, dy.data(), kWidth, DropoutParams{}, {dwte.data(), kVocabulary}, {}, {});
  for (int64_t rank = 0; rank < 3; ++rank) {
    const int64_t first = rank * kEach, count = std::min(kEach, kVocabulary - first);
    std::vector<float> part(kRows * kWidth, 7.0f);
    TokenRows(whole.tokens, kRows, wte.data() + first * kWidth, first, count, kWidth, part.data());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    EmbeddingRows own = whole;
    own.first_token = static_cast<int32_t>(first);
    own.end_token = static_cast<int32_t>(first + count);
    std::vector<float> gradient(kEach * kWidth);
    EmbeddingBackward(own, dy.data(), kWidth, DropoutParams{}, {gradient.data(), kEach}, {}, {});
    gradient.resize(count * kWidth);
    EXPECT_TRUE(SameBits(gradient, std::vector<float>(&dwte[first * kWidth],
                                                      &dwte[first * kWidth] + count * kWidth)));
  }
  EmbeddingRows rows = whole;
  rows.tokens = nullptr;  // their sum has them in order
  EmbeddingForward<float>(rows, {sum.data(), wpe.data()}, kWidth, DropoutParams{}, sum.data());
  EXPECT_TRUE(SameBits(sum, want));
}

}  // namespace
}  // namespace milepost::kernels
