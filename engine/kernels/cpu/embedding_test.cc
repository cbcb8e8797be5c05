#include "engine/kernels/cpu/embedding.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Embedding : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Embedding);

constexpr int64_t kBatch = 3, kSequence = 17, kVocabulary = 9, kPositions = 20;
constexpr int64_t kRows = kBatch * kSequence;

std::vector<int32_t> Tokens() {
  std::vector<int32_t> tokens(kRows);
  for (int64_t i = 0; i < kRows; ++i) tokens[i] = static_cast<int32_t>(i * i % (kVocabulary - 1));
  return tokens;
}

template <typename T>
void CheckEmbedding(int64_t width, float p, bool accumulate) {
  const auto tokens = Tokens();
  const auto wte = RandomVector<T>(kVocabulary * width, 1);
  const auto wpe = RandomVector<T>(kPositions * width, 2);
  const auto dy = RandomVector<T>(kRows * width, 3);
  const DropoutParams dropout{.p = p, .seed = 4, .stream = 5, .step = 6, .first_element = 640};
  std::vector<float> keep(kRows * width, 1.0f);
  if (p > 0) DropoutMultipliers(dropout, 0, kRows * width, keep.data());

  std::vector<T> out(kRows * width);
  EmbeddingForward(tokens.data(), wte.data(), wpe.data(), kBatch, kSequence, width, dropout,
                   out.data());
  std::vector<float> dwte(kVocabulary * width, 1.0f), dwpe(kPositions * width, 2.0f);
  std::vector<double> want_te(dwte.size(), accumulate ? 1.0 : 0.0);
  std::vector<double> want_pe(dwpe.size(), accumulate ? 2.0 : 0.0);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const int64_t te = tokens[row] * width + i, pe = row % kSequence * width + i;
      const int64_t at = row * width + i;
      ASSERT_EQ(ToFloat(out[at]),
                ToFloat(FromFloat<T>((ToFloat(wte[te]) + ToFloat(wpe[pe])) * keep[at])));
      want_te[te] += double{ToFloat(dy[at])} * keep[at];
      want_pe[pe] += double{ToFloat(dy[at])} * keep[at];
    }
  }
  std::vector<float> first_te, first_pe;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    auto te = dwte, pe = dwpe;
    EmbeddingBackward(tokens.data(), dy.data(), kBatch, kSequence, width, kVocabulary, kPositions,
                      dropout, accumulate, te.data(), pe.data());
    ExpectClose(te, want_te, 1e-6, "dwte");
    ExpectClose(pe, want_pe, 1e-6, "dwpe");
    if (threads == 1) first_te = te, first_pe = pe;
    EXPECT_TRUE(SameBits(te, first_te) && SameBits(pe, first_pe));
  }
}

TEST_P(Embedding, MatchesDefinition) {
  for (int64_t width : {1, 7, 127, 320}) {
    for (float p : {0.0f, 0.25f}) {
      CheckEmbedding<float>(width, p, false);
      CheckEmbedding<bf16>(width, p, true);
      CheckEmbedding<f16>(width, p, true);
    }
  }
}

TEST_P(Embedding, PositionsMayBeMissing) {
  const auto tokens = Tokens();
  const auto wte = RandomVector<bf16>(kVocabulary * 21, 1);
  std::vector<bf16> out(kRows * 21);
  EmbeddingForward<bf16>(tokens.data(), wte.data(), nullptr, kBatch, kSequence, 21, DropoutParams{},
                         out.data());
  for (int64_t i = 0; i < kRows * 21; ++i) {
    ASSERT_EQ(out[i].bits, wte[tokens[i / 21] * 21 + i % 21].bits);
  }
}

TEST_P(Embedding, OneOutputMayBeMissing) {
  const auto tokens = Tokens();
  const auto dy = RandomVector<float>(kRows * 8, 3);
  std::vector<float> both(kPositions * 8), alone(kPositions * 8), dwte(kVocabulary * 8);
  EmbeddingBackward(tokens.data(), dy.data(), kBatch, kSequence, 8, kVocabulary, kPositions,
                    DropoutParams{}, false, dwte.data(), both.data());
  EmbeddingBackward<float>(tokens.data(), dy.data(), kBatch, kSequence, 8, kVocabulary, kPositions,
                           DropoutParams{}, false, nullptr, alone.data());
  EXPECT_TRUE(SameBits(both, alone));
}

}  // namespace
}  // namespace milepost::kernels
