#include "engine/ops/embedding/embedding_cuda_kernel-inl.h"

#include "engine/ops/embedding/embedding_cpu_kernel.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/kernels/cuda/testing/run_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr auto kRunEmbedding = [](const auto& kernel) { return RunAnywhere(kernel, 21); };

constexpr int64_t kVocabulary = 29, kPositions = 40, kSegments = 2;

std::vector<int32_t> Ids(int64_t n, int64_t below, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> ids(n);
  // Half of them one id: a run over several blocks.
  for (int32_t& id : ids) id = generator() % 2 ? 3 % below : generator() % below;
  return ids;
}

struct EmbeddingCase {
  int64_t batch, sequence, width;
  float p;
  bool all_given;      // positions and segments
  int64_t before = 0;  // of a sample: the tokens before a rank's part, behind which are 3
};
const EmbeddingCase kEmbeddingCases[] = {{3, 37, 64, 0.2f, true},      {9, 33, 192, 0, false},
                                         {2, 40, 24, 0.3f, true},      {1, 1, 7, 0, false},
                                         {41, 40, 24, 0, true},        {8, 32, 64, 0.1f, false},
                                         {3, 12, 64, 0.2f, false, 20}, {2, 9, 24, 0.3f, false, 7}};

struct Inputs {
  explicit Inputs(const EmbeddingCase& c)
      : n(c.batch * c.sequence),
        tokens(Ids(n, kVocabulary, 1)),
        positions(Ids(n, kPositions, 2)),
        segments(Ids(n, kSegments, 3)),
        token_array(tokens),
        position_array(positions),
        segment_array(segments),
        at(std::vector<StepPosition>{{6, 2}}),
        cpu_rows{tokens.data(),
                 c.all_given ? positions.data() : nullptr,
                 c.all_given ? segments.data() : nullptr,
                 c.batch,
                 c.sequence,
                 c.before},
        rows{token_array.data(),
             c.all_given ? position_array.data() : nullptr,
             c.all_given ? segment_array.data() : nullptr,
             c.batch,
             c.sequence,
             c.before} {
    const auto own = static_cast<uint64_t>(c.sequence * c.width);
    const auto before = static_cast<uint64_t>(c.before * c.width);
    const uint64_t gap = c.before == 0 ? 0 : before + 3 * static_cast<uint64_t>(c.width);
    cpu = {.p = c.p,
           .seed = 3,
           .stream = 4,
           .step = 6,
           .first_element = 2 * (own + gap) + before,
           .run = gap == 0 ? 0 : own,
           .gap = gap};
    mask = MaskOf({.p = c.p,
                   .seed = 3,
                   .stream = 4,
                   .position = at.data(),
                   .elements_per_sample = own + gap,
                   .own_begin = before,
                   .own_elements = gap == 0 ? 0 : own});
  }
  int64_t n;
  std::vector<int32_t> tokens, positions, segments;
  HostArray<int32_t> token_array, position_array, segment_array;
  HostArray<StepPosition> at;
  DropoutParams cpu;
  DropoutMask mask;
  EmbeddingRows cpu_rows, rows;
};

template <typename T>
class EmbeddingKernels : public testing::Test {};
using Types = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(EmbeddingKernels, Types);

TYPED_TEST(EmbeddingKernels, ForwardIsTheCpus) {
  using T = TypeParam;
  for (const EmbeddingCase& test : kEmbeddingCases) {
    Inputs in(test);
    const auto wte = RandomVector<T>(kVocabulary * test.width, 4);
    const auto wpe = RandomVector<T>(kPositions * test.width, 5);
    const auto wse = RandomVector<T>(kSegments * test.width, 6);
    std::vector<T> want(in.n * test.width);
    kernels::EmbeddingForward<T>(in.cpu_rows,
                                 {wte.data(), wpe.data(), test.all_given ? wse.data() : nullptr},
                                 test.width, in.cpu, want.data());
    HostArray<T> tokens(wte), positions(wpe), segments(wse), out(in.n * test.width);
    const EmbeddingTables<T> tables = {tokens.data(), positions.data(),
                                       test.all_given ? segments.data() : nullptr};
    if (EmbedsItems(test.width, in.mask)) {
      RunKernel(
          EmbeddingForwardKernel<T, ItemShare>{in.rows, tables, test.width, in.mask, out.data()});
    } else {
      RunKernel(
          EmbeddingForwardKernel<T, SingleShare>{in.rows, tables, test.width, in.mask, out.data()});
    }
    EXPECT_TRUE(SameBits(out.values(), want)) << test.width;
  }
}

TYPED_TEST(EmbeddingKernels, BackwardIsTheCpus) {
  using T = TypeParam;
  for (const EmbeddingCase& test : kEmbeddingCases) {
    SCOPED_TRACE(testing::Message() << test.batch << " x " << test.sequence << " x " << test.width);
    Inputs in(test);
    const int64_t sizes[3] = {kVocabulary, kPositions, kSegments};
    const auto gradient = RandomVector<T>(in.n * test.width, 7);
    HostArray<T> dy(gradient);
    std::vector<float> want[3];
    TableGradient cpu_tables[3], tables[3];
    std::unique_ptr<HostArray<float>> arrays[3];
    for (int i = 0; i < 3; ++i) {
      want[i].assign(sizes[i] * test.width, 0.5f);
      arrays[i] = std::make_unique<HostArray<float>>(want[i]);
      const bool wanted = i < 2 || test.all_given;
      cpu_tables[i] = {wanted ? want[i].data() : nullptr, sizes[i], i == 1};
      tables[i] = {wanted ? arrays[i]->data() : nullptr, sizes[i], i == 1};
    }
    kernels::EmbeddingBackward<T>(in.cpu_rows, gradient.data(), test.width, in.cpu, cpu_tables[0],
                                  cpu_tables[1], cpu_tables[2]);
    const EmbeddingWorkspace layout(in.n, test.width);
    HostArray<int32_t> order(layout.runs * kRunRows);
    HostArray<float> heads(layout.elements), tails(layout.elements);
    HostArray<RowKey> keys(RowOrderScratchBytes(in.n) / sizeof(RowKey));
    const absl::Status ran = RunEmbeddingBackward<T>(
        in.rows, dy.data(), test.width, in.mask, tables,
        {order.data(), keys.data(), heads.data(), tails.data()}, kRunEmbedding);
    ASSERT_TRUE(ran.ok()) << ran;
    for (int i = 0; i < 3; ++i) ExpectNear(arrays[i]->values(), want[i], 1e-5, 2e-5, "table");
  }
}

// A rank that has rows [10, 19) of the table: as the CPU's.
TYPED_TEST(EmbeddingKernels, RowsOfOneRankAreTheCpus) {
  using T = TypeParam;
  constexpr int64_t kFirst = 10, kCount = 9;
  for (const EmbeddingCase& test : kEmbeddingCases) {
    SCOPED_TRACE(testing::Message() << test.batch << " x " << test.sequence << " x " << test.width);
    Inputs in(test);
    const auto table = RandomVector<T>(kCount * test.width, 4);
    std::vector<T> want(in.n * test.width);
    kernels::TokenRows<T>(in.tokens.data(), in.n, table.data(), kFirst, kCount, test.width,
                          want.data());
    HostArray<T> rows(table), out(in.n * test.width);
    if (test.width % 64 == 0) {
      RunKernel(TokenRowsKernel<T, ItemShare>{in.token_array.data(), in.n, rows.data(), kFirst,
                                              kCount, test.width, out.data()});
    } else {
      RunKernel(TokenRowsKernel<T, SingleShare>{in.token_array.data(), in.n, rows.data(), kFirst,
                                                kCount, test.width, out.data()});
    }
    EXPECT_TRUE(SameBits(out.values(), want));
    // Read as rows in order, and the rest of the sum in place.
    EmbeddingRows cpu_ordered = in.cpu_rows, ordered = in.rows;
    cpu_ordered.tokens = ordered.tokens = nullptr;
    const auto wpe = RandomVector<T>(kPositions * test.width, 5);
    HostArray<T> positions(wpe);
    kernels::EmbeddingForward<T>(cpu_ordered, {want.data(), wpe.data()}, test.width, in.cpu,
                                 want.data());
    const EmbeddingTables<T> tables = {out.data(), positions.data()};
    if (EmbedsItems(test.width, in.mask)) {
      RunKernel(
          EmbeddingForwardKernel<T, ItemShare>{ordered, tables, test.width, in.mask, out.data()});
    } else {
      RunKernel(
          EmbeddingForwardKernel<T, SingleShare>{ordered, tables, test.width, in.mask, out.data()});
    }
    EXPECT_TRUE(SameBits(out.values(), want));
    // The gradient.
    const auto gradient = RandomVector<T>(in.n * test.width, 7);
    EmbeddingRows cpu_own = in.cpu_rows, own = in.rows;
    cpu_own.first_token = own.first_token = kFirst;
    cpu_own.end_token = own.end_token = kFirst + kCount;
    std::vector<float> dwte(kCount * test.width, 0.5f);
    HostArray<float> got(dwte);
    HostArray<T> dy(gradient);
    kernels::EmbeddingBackward<T>(cpu_own, gradient.data(), test.width, in.cpu,
                                  {dwte.data(), kCount, true}, {}, {});
    const EmbeddingWorkspace layout(in.n, test.width);
    HostArray<int32_t> order(layout.runs * kRunRows);
    HostArray<float> heads(layout.elements), tails(layout.elements);
    HostArray<RowKey> keys(RowOrderScratchBytes(in.n) / sizeof(RowKey));
    const TableGradient wanted[3] = {{got.data(), kCount, true}, {}, {}};
    const absl::Status ran = RunEmbeddingBackward<T>(
        own, dy.data(), test.width, in.mask, wanted,
        {order.data(), keys.data(), heads.data(), tails.data()}, kRunEmbedding);
    ASSERT_TRUE(ran.ok()) << ran;
    ExpectNear(got.values(), dwte, 1e-5, 2e-5, "table");
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
