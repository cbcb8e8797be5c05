#include "engine/ops/attention/attention_cpu_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cpu/tile_product.h"

namespace milepost::kernels {
namespace {

class Attention : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Attention);
class TileProducts : public OnEveryTarget {};
MP_ON_EVERY_TARGET(TileProducts);

struct Reference {
  std::vector<double> out, lse;
};

int64_t KvHeads(const AttentionShape& s) { return s.kv_heads == 0 ? s.heads : s.kv_heads; }
int64_t PackedWidth(const AttentionShape& s) { return (s.heads + 2 * KvHeads(s)) * s.head_dim; }

// Ids of documents of these lengths, a sequence's worth after the other; empty: none.
using Documents = std::vector<int32_t>;
Documents OfLengths(const AttentionShape& s, const std::vector<int64_t>& lengths) {
  Documents ids;
  int32_t id = -1;  // as padding in front would have
  for (int64_t length : lengths) ids.insert(ids.end(), length, id++ * 3);
  EXPECT_EQ(ids.size(), static_cast<size_t>(s.batch * s.sequence));
  return ids;
}

// The definition, in fp64.
Reference Attend(const AttentionShape& s, const std::vector<double>& qkv,
                 const Documents& documents = {}) {
  const int64_t channels = s.heads * s.head_dim;
  const int64_t row = PackedWidth(s);
  Reference r;
  r.out.assign(s.batch * s.sequence * channels, 0.0);
  r.lse.assign(s.batch * s.heads * s.sequence, 0.0);
  std::vector<double> score(s.sequence);
  const auto sees = [&](int64_t b, int64_t q, int64_t k) {
    const int64_t row = b * s.sequence;
    const bool in_window = s.window == 0 || q - k < s.window;
    return (k <= q || !s.causal) && in_window &&
           (documents.empty() || documents[row + q] == documents[row + k]);
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const double* query = &qkv[b * s.sequence * row + h * s.head_dim];
      const int64_t shared = h / (s.heads / KvHeads(s));
      const double* keys = &qkv[b * s.sequence * row + (s.heads + shared) * s.head_dim];
      const double* values = keys + KvHeads(s) * s.head_dim;
      for (int64_t q = 0; q < s.sequence; ++q) {
        double sum = 0;
        for (int64_t k = 0; k < s.sequence; ++k) {
          if (!sees(b, q, k)) continue;
          double dot = 0;
          for (int64_t d = 0; d < s.head_dim; ++d) dot += query[q * row + d] * keys[k * row + d];
          score[k] = dot / std::sqrt(static_cast<double>(s.head_dim));
          sum += std::exp(score[k]);
        }
        const double lse = std::log(sum);
        r.lse[(b * s.heads + h) * s.sequence + q] = lse;
        double* out = &r.out[(b * s.sequence + q) * channels + h * s.head_dim];
        for (int64_t k = 0; k < s.sequence; ++k) {
          if (!sees(b, q, k)) continue;
          const double p = std::exp(score[k] - lse);
          for (int64_t d = 0; d < s.head_dim; ++d) out[d] += p * values[k * row + d];
        }
      }
    }
  }
  return r;
}

template <typename T>
struct Results {
  std::vector<T> out, dqkv;
  std::vector<float> lse;

  Results(const AttentionShape& s, const std::vector<T>& qkv, const std::vector<T>& d_out,
          const Documents& documents = {})
      : out(d_out.size(), FromFloat<T>(NAN)),
        dqkv(qkv.size(), FromFloat<T>(NAN)),
        lse(s.batch * s.heads * s.sequence, NAN) {
    const DType type = kDTypeOf<T>;
    AlignedBuffer forward(AttentionForwardWorkspaceBytes(s, type, MaxThreads()));
    AlignedBuffer backward(AttentionBackwardWorkspaceBytes(s, type, MaxThreads()));
    const int32_t* ids = documents.empty() ? nullptr : documents.data();
    AttentionForward(s, qkv.data(), ids, out.data(), lse.data(), forward.data());
    AttentionBackward(s, qkv.data(), ids, out.data(), lse.data(), d_out.data(), dqkv.data(),
                      backward.data());
  }
};

template <typename T>
void CheckAttention(const AttentionShape& s, const Documents& documents = {}) {
  SCOPED_TRACE(testing::Message() << "B" << s.batch << " T" << s.sequence << " H" << s.heads << " D"
                                  << s.head_dim << " G" << s.kv_heads << " bytes " << sizeof(T)
                                  << (s.causal ? " causal" : "") << " window " << s.window
                                  << " documents " << documents.size());
  const int64_t outputs = s.batch * s.sequence * s.heads * s.head_dim;
  const auto qkv = RandomVector<T>(s.batch * s.sequence * PackedWidth(s), 11);
  const auto d_out = RandomVector<T>(outputs, 12);
  const Results<T> run(s, qkv, d_out, documents);
  const Reference reference = Attend(s, ToDouble(qkv), documents);
  ExpectClose(run.out, reference.out, kTolerance<T>, "out");
  ExpectClose(run.lse, reference.lse, 2e-5, "lse");
  const auto d_out_f64 = ToDouble(d_out);
  ExpectGradient(
      run.dqkv, ToDouble(qkv),
      [&](const std::vector<double>& x) { return Dot(Attend(s, x, documents).out, d_out_f64); },
      kTolerance<T>, "dqkv", s.sequence > 100 ? 24 : 96);
}

TEST_P(Attention, MatchesDefinitionOnOddSizes) {
  for (const AttentionShape& s : {AttentionShape{2, 7, 2, 8}, AttentionShape{1, 1, 1, 16},
                                  AttentionShape{1, 65, 2, 24}, AttentionShape{2, 64, 1, 64},
                                  AttentionShape{1, 127, 1, 40}, AttentionShape{1, 17, 3, 128}}) {
    CheckAttention<float>(s);
    CheckAttention<bf16>(s);
    CheckAttention<f16>(s);
  }
}

// Fewer heads of keys than of queries: one, some, and as many, over one block of keys and several.
TEST_P(Attention, MatchesDefinitionWithSharedKeys) {
  for (int64_t kv_heads : {1, 2, 4}) {
    CheckAttention<float>({2, 9, 4, 8, kv_heads});
    CheckAttention<bf16>({1, 70, 4, 16, kv_heads});
    CheckAttention<f16>({1, 70, 4, 16, kv_heads});
  }
  CheckAttention<float>({1, 131, 6, 24, 2});
  CheckAttention<bf16>({2, 65, 3, 40, 1});
  CheckAttention<f16>({2, 65, 3, 40, 1});
}

// More keys than one forward tile holds: the online softmax rescales.
TEST_P(Attention, MatchesDefinitionAcrossTiles) {
  CheckAttention<float>({1, 300, 1, 32});
  CheckAttention<bf16>({1, 300, 1, 64});
  CheckAttention<f16>({1, 300, 1, 64});
}

TEST_P(Attention, MatchesDefinitionWithoutTheCausalMask) {
  for (const AttentionShape& s :
       {AttentionShape{2, 7, 2, 8, 0, false}, AttentionShape{1, 1, 1, 16, 0, false},
        AttentionShape{1, 64, 1, 16, 0, false}, AttentionShape{1, 130, 2, 24, 1, false}}) {
    CheckAttention<float>(s);
    CheckAttention<bf16>(s);
    CheckAttention<f16>(s);
  }
  CheckAttention<float>({1, 300, 1, 8, 0, false});
}

// Documents that end within blocks of keys, between them, and more than a forward tile on.
TEST_P(Attention, MatchesDefinitionWithinDocuments) {
  for (bool causal : {true, false}) {
    const AttentionShape few{2, 9, 2, 8, 0, causal};
    CheckAttention<float>(few, OfLengths(few, {4, 1, 4, 9}));
    CheckAttention<bf16>(few, OfLengths(few, {1, 8, 1, 1, 7}));
    CheckAttention<f16>(few, OfLengths(few, {1, 8, 1, 1, 7}));
    const AttentionShape blocks{1, 200, 2, 8, 1, causal};
    CheckAttention<float>(blocks, OfLengths(blocks, {64, 3, 61, 1, 71}));
    CheckAttention<bf16>(blocks, OfLengths(blocks, {10, 130, 60}));
    CheckAttention<f16>(blocks, OfLengths(blocks, {10, 130, 60}));
    const AttentionShape tiles{1, 340, 1, 8, 0, causal};
    CheckAttention<float>(tiles, OfLengths(tiles, {315, 25}));
    CheckAttention<bf16>(tiles, OfLengths(tiles, {339, 1}));
    CheckAttention<f16>(tiles, OfLengths(tiles, {339, 1}));
  }
}

// Windows that end within blocks of keys, between them, and more than a forward tile back; one that
// is a query's own key alone, and one that no query leaves.
TEST_P(Attention, MatchesDefinitionWithinAWindow) {
  for (int64_t window : {1, 5, 64, 65, 100, 199, 1000}) {
    const AttentionShape s{1, 200, 2, 8, 1, true, window};
    CheckAttention<float>(s);
    CheckAttention<bf16>(s);
    CheckAttention<float>(s, OfLengths(s, {64, 3, 61, 1, 71}));
  }
  CheckAttention<f16>({2, 130, 1, 16, 0, true, 70});
  const AttentionShape tiles{1, 600, 1, 8, 0, true, 270};
  CheckAttention<float>(tiles);
  CheckAttention<bf16>(tiles, OfLengths(tiles, {500, 100}));
}

// Of the parts together: out, lse and the gradients of queries are the whole's to the bit, those of
// keys and values their sum.
template <typename T>
void CheckParts(AttentionShape s, const Documents& documents = {}) {
  SCOPED_TRACE(testing::Message() << s.queries.parts << " parts of " << s.sequence << " queries");
  const int64_t outputs = s.batch * s.sequence * s.heads * s.head_dim;
  const auto qkv = RandomVector<T>(s.batch * s.sequence * PackedWidth(s), 51);
  const auto d_out = RandomVector<T>(outputs, 52);
  const int64_t parts = s.queries.parts;
  s.queries = {};
  const Results<T> whole(s, qkv, d_out, documents);
  std::vector<double> out(outputs), lse(whole.lse.size()), dqkv(qkv.size());
  const auto add = [](const auto& values, std::vector<double>* sums) {
    const std::vector<double> own = ToDouble(values);
    for (size_t i = 0; i < own.size(); ++i) (*sums)[i] += own[i];
  };
  for (int64_t part = 0; part < parts; ++part) {
    s.queries = {parts, part};
    const Results<T> run(s, qkv, d_out, documents);
    add(run.out, &out);
    add(run.lse, &lse);
    add(run.dqkv, &dqkv);
  }
  EXPECT_EQ(out, ToDouble(whole.out));
  EXPECT_EQ(lse, ToDouble(whole.lse));
  const int64_t queries = s.heads * s.head_dim;
  std::vector<T> keys;
  std::vector<double> key_sums;
  for (size_t i = 0; i < dqkv.size(); ++i) {
    if (static_cast<int64_t>(i) % PackedWidth(s) < queries) {
      ASSERT_EQ(dqkv[i], static_cast<double>(ToFloat(whole.dqkv[i]))) << i;
    } else {
      keys.push_back(whole.dqkv[i]);
      key_sums.push_back(dqkv[i]);
    }
  }
  ExpectClose(keys, key_sums, kTolerance<T>, "gradients of keys and values");
}

TEST_P(Attention, PartsOfQueriesAreTheWholeTogether) {
  for (const int64_t parts : {2, 3, 9}) {
    AttentionShape s{2, 330, 4, 16, 2};
    s.queries.parts = parts;
    CheckParts<float>(s);
    CheckParts<bf16>(s);
    CheckParts<f16>(s, OfLengths(s, {64, 100, 166, 1, 329}));
    s.causal = false;
    CheckParts<float>(s);
    s = {1, 330, 1, 8, 1, true, 70, {parts}};
    CheckParts<float>(s);
    CheckParts<bf16>(s, OfLengths(s, {200, 130}));
  }
}

// Back and forth: with a causal mask no part sees many more keys than another.
TEST(QueryPart, PartsAreAlike) {
  constexpr int64_t kSequence = 64 * 24;
  for (const int64_t parts : {1, 2, 3, 4, 6}) {
    int64_t owners = 0, least = kSequence * kSequence, most = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const QueryPart queries = {parts, part};
      int64_t seen = 0;
      for (int64_t q = 0; q < kSequence; ++q) {
        owners += queries.Owns(q);
        if (queries.Owns(q)) seen += q + 1;
      }
      least = std::min(least, seen);
      most = std::max(most, seen);
    }
    EXPECT_EQ(owners, kSequence);
    EXPECT_EQ(least, most) << parts;  // an even number of rounds
  }
}

TEST_P(Attention, AWindowOfAllIsNone) {
  AttentionShape s{1, 150, 2, 16};
  const auto qkv = RandomVector<float>(150 * 96, 41), d_out = RandomVector<float>(150 * 32, 42);
  const Results<float> none(s, qkv, d_out);
  s.window = 150;
  const Results<float> all(s, qkv, d_out);
  EXPECT_TRUE(SameBits(none.out, all.out));
  EXPECT_TRUE(SameBits(none.dqkv, all.dqkv));
}

// What is in front of a query's window does not change one bit of its output, and no query behind
// a key's reach changes the key's gradient.
TEST_P(Attention, WhatIsBeforeTheWindowIsNotSeen) {
  const AttentionShape s{1, 150, 2, 16, 0, true, 20};
  auto qkv = RandomVector<float>(150 * 96, 51);
  auto d_out = RandomVector<float>(150 * 32, 52);
  const Results<float> before(s, qkv, d_out);
  for (int64_t i = 0; i < 70 * 96; ++i) qkv[i] *= -2;
  for (int64_t i = 120 * 32; i < 150 * 32; ++i) d_out[i] *= -3;
  const Results<float> after(s, qkv, d_out);
  for (int64_t i = 89 * 32; i < 150 * 32; ++i) ASSERT_EQ(after.out[i], before.out[i]) << i;
  for (int64_t i = 89 * 96; i < 101 * 96; ++i) ASSERT_EQ(after.dqkv[i], before.dqkv[i]) << i;
}

// What other documents hold does not change one bit, and their keys get no gradient.
TEST_P(Attention, DocumentsDoNotReachEachOther) {
  for (bool causal : {true, false}) {
    const AttentionShape s{1, 150, 2, 16, 0, causal};
    const Documents documents = OfLengths(s, {70, 50, 30});
    auto qkv = RandomVector<float>(150 * 96, 31);
    auto d_out = RandomVector<float>(150 * 32, 32);
    const Results<float> before(s, qkv, d_out, documents);
    for (int64_t i = 0; i < 70 * 96; ++i) qkv[i] *= -2;
    for (int64_t i = 120 * 32; i < 150 * 32; ++i) d_out[i] *= -3;
    const Results<float> after(s, qkv, d_out, documents);
    for (int64_t i = 70 * 32; i < 150 * 32; ++i) ASSERT_EQ(after.out[i], before.out[i]) << i;
    for (int64_t i = 70 * 96; i < 120 * 96; ++i) ASSERT_EQ(after.dqkv[i], before.dqkv[i]) << i;
  }
}

// Head dimensions that leave a remainder of every kind, the largest among them.
TEST_P(Attention, MatchesDefinitionOnWideHeads) {
  CheckAttention<float>({1, 33, 1, 256});
  CheckAttention<bf16>({1, 33, 1, 200});
  CheckAttention<f16>({1, 33, 1, 200});
}

// Scores of several hundred: only the running maximum keeps them finite.
TEST_P(Attention, LargeScoresStayFinite) {
  const AttentionShape s{1, 300, 1, 64};
  const auto qkv = RandomVector<float>(300 * 3 * 64, 5, 8.0f);
  const auto d_out = RandomVector<float>(300 * 64, 6);
  const Results<float> run(s, qkv, d_out);
  const Reference reference = Attend(s, ToDouble(qkv));
  ExpectClose(run.out, reference.out, 3e-4, "out");
  for (float value : run.dqkv) ASSERT_TRUE(std::isfinite(value));
}

TEST_P(Attention, NanReachesTheOutput) {
  const AttentionShape s{1, 5, 1, 16};
  auto qkv = RandomVector<float>(5 * 3 * 16, 5);
  qkv[2 * 48 + 16] = std::numeric_limits<float>::quiet_NaN();  // key of position 2
  const Results<float> run(s, qkv, RandomVector<float>(5 * 16, 6));
  EXPECT_TRUE(std::isfinite(run.out[1 * 16]));
  EXPECT_TRUE(std::isnan(run.out[2 * 16]));
}

template <typename T>
void CheckThreads(const AttentionShape& s, const Documents& documents = {}) {
  const int64_t outputs = s.batch * s.sequence * s.heads * s.head_dim;
  const auto qkv = RandomVector<T>(s.batch * s.sequence * PackedWidth(s), 21);
  const auto d_out = RandomVector<T>(outputs, 22);
  std::vector<Results<T>> runs;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    runs.emplace_back(s, qkv, d_out, documents);
  }
  for (const auto& run : runs) {
    EXPECT_TRUE(SameBits(run.out, runs[0].out));
    EXPECT_TRUE(SameBits(run.lse, runs[0].lse));
    EXPECT_TRUE(SameBits(run.dqkv, runs[0].dqkv));
  }
}

TEST_P(Attention, SameBitsOnAnyThreadCount) {
  CheckThreads<float>({1, 200, 3, 32});
  CheckThreads<bf16>({1, 330, 1, 64});
  CheckThreads<f16>({1, 330, 1, 64});
  CheckThreads<bf16>({1, 150, 6, 32, 2});
  CheckThreads<f16>({1, 150, 6, 32, 2});
  CheckThreads<bf16>({1, 330, 2, 32, 1, true, 90});
  const AttentionShape bounded{1, 330, 2, 32, 0, false};
  CheckThreads<float>(bounded, OfLengths(bounded, {100, 200, 30}));
}

TEST_P(Attention, ChecksTheShape) {
  EXPECT_TRUE(CheckAttentionShape({1, 1, 1, 8}).ok());
  EXPECT_TRUE(CheckAttentionShape({2, 512, 12, 256}).ok());
  for (const AttentionShape& s :
       {AttentionShape{0, 1, 1, 8}, AttentionShape{1, 1, 1, 12}, AttentionShape{1, 1, 1, 264},
        AttentionShape{1, 1, 1, 0}, AttentionShape{1, 1, 4, 8, 3}, AttentionShape{1, 1, 4, 8, -1},
        AttentionShape{1, 1, 4, 8, 2, false, 3}, AttentionShape{1, 1, 4, 8, 2, true, -1}}) {
    EXPECT_EQ(CheckAttentionShape(s).code(), absl::StatusCode::kInvalidArgument);
  }
}

// The bf16 product against fp64, with rows or columns of A contiguous.
TEST_P(TileProducts, MatchesDefinition) {
  constexpr int64_t kM = 12, kN = 80, kK = 18;
  const auto a = RandomVector<bf16>(kM * kK, 1);
  const auto b = RandomVector<bf16>(kK * kN, 2);
  std::vector<double> want(kM * kN);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      for (int64_t k = 0; k < kK; ++k) {  // word (k / 2, j) of B holds rows k and k + 1
        want[i * kN + j] +=
            double{ToFloat(a[i * kK + k])} * ToFloat(b[(k / 2 * kN + j) * 2 + k % 2]);
      }
    }
  }
  std::vector<bf16> columns(kM * kK);
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t k = 0; k < kK; ++k) columns[(k / 2 * kM + i) * 2 + k % 2] = a[i * kK + k];
  }
  for (const bool dot : {false, true}) {
    const TileProduct product = ChooseTileProduct(DType::kBf16, dot);
    std::vector<float> c(kM * kN);
    product({a.data(), kK / 2, 1, b.data(), kN, c.data(), kN}, kM, kN, kK / 2, false);
    ExpectClose(c, want, 1e-6, "rows");
    product({columns.data(), 1, kM, b.data(), kN, c.data(), kN}, kM, kN, kK / 2, true);
    std::vector<double> twice = want;
    for (double& value : twice) value *= 2;
    ExpectClose(c, twice, 1e-6, "columns, accumulated");
  }
}

}  // namespace
}  // namespace milepost::kernels
