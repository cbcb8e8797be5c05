#include "engine/optim/adamw/adamw_cpu_kernel.h"
#include "engine/optim/adamw/adamw_cuda_kernel.h"
#include "engine/optim/lamb/lamb_cuda_kernel-inl.h"
#include "engine/optim/muon/muon_cuda_kernel-inl.h"

#include <gtest/gtest.h>

#include <memory>

#include "engine/kernels/cuda/elementwise_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/optim/adamw_8bit/adamw_8bit_cpu_kernel.h"
#include "engine/optim/adamw_8bit/adamw_8bit_cuda_kernel-inl.h"
#include "engine/optim/lamb/lamb_cpu_kernel.h"
#include "engine/optim/muon/muon_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

// Tensors of a shard; chunks of the first are two.
const std::vector<FlatRange> kBlockRanges = {{0, 4501}, {4608, 4613}, {4864, 6000}};
constexpr int64_t kBlockElements = 6144;

AdamWParams ParamsOf(size_t segment, int64_t step) {
  return {.learning_rate = 1e-2f * static_cast<float>(segment + 1),
          .beta2 = 0.95f,
          .weight_decay = segment == 1 ? 0.0f : 0.1f,
          .gradient_scale = 0.37f,
          .step = step};
}

// What a launch reads from device memory.
struct Tables {
  Tables(const std::vector<SegmentFactors>& segments, const StepFactors& at, bool skip)
      : chunks(MakeChunks(kBlockRanges)),
        factors(segments),
        step(std::vector<StepFactors>{at}),
        control(std::vector<UpdateControl>{{0.37f, skip ? 1u : 0u}}) {}
  template <typename T>
  FlatUpdate<T> Update() {
    return {.chunks = chunks.data(),
            .chunk_count = chunks.size(),
            .factors = factors.data(),
            .step = step.data(),
            .control = control.data()};
  }
  HostArray<FlatChunk> chunks;
  HostArray<SegmentFactors> factors;
  HostArray<StepFactors> step;
  HostArray<UpdateControl> control;
};

template <typename T>
class OtherOptimizers : public testing::Test {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & HWY_AVX2) == 0) {
      GTEST_SKIP() << "the CPU's kernels round between product and sum here";
    }
  }
};
using Types = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(OtherOptimizers, Types);

// Several steps, so that states are those of the kernel.
TYPED_TEST(OtherOptimizers, AdamW8BitIsTheCpus) {
  using T = TypeParam;
  constexpr int64_t kBlocks = kBlockElements / kQuantizedBlock;
  std::vector<float> want_p = RandomVector<float>(kBlockElements, 1);
  std::vector<uint8_t> want_m(kBlockElements), want_v(kBlockElements);
  std::vector<float> m_scale(kBlocks), v_scale(kBlocks);
  std::vector<T> want_copy(kBlockElements, FromFloat<T>(2));
  HostArray<float> p(want_p), ms(m_scale), vs(v_scale);
  HostArray<uint8_t> m(want_m), v(want_v);
  HostArray<T> copy(want_copy);
  for (int64_t step = 1; step <= 3; ++step) {
    std::vector<float> g = RandomVector<float>(kBlockElements, 10 + step);
    for (int64_t i = 256; i < 512; ++i) g[i] = 0;  // a block without a gradient
    g[4500] = 1e-9f;
    std::vector<SegmentFactors> factors;
    for (size_t i = 0; i < kBlockRanges.size(); ++i) {
      const int64_t begin = kBlockRanges[i].begin, block = begin / kQuantizedBlock;
      factors.push_back(SegmentFactorsOf(ParamsOf(i, step)));
      kernels::AdamW8Bit<T>(ParamsOf(i, step), kBlockRanges[i].end - begin, want_p.data() + begin,
                            {want_m.data() + begin, m_scale.data() + block, want_v.data() + begin,
                             v_scale.data() + block},
                            g.data() + begin, want_copy.data() + begin);
    }
    HostArray<float> gradient(g);
    Tables tables(factors, StepFactorsOf(ParamsOf(0, step)), false);
    RunKernel(MakeAdamW8Bit<T>({tables.chunks.data(),
                                tables.chunks.size(),
                                tables.factors.data(),
                                tables.step.data(),
                                tables.control.data(),
                                p.data(),
                                {m.data(), ms.data(), v.data(), vs.data()},
                                gradient.data(),
                                copy.data()}));
    ASSERT_TRUE(SameBits(m.values(), want_m)) << step;
    ASSERT_TRUE(SameBits(v.values(), want_v)) << step;
    ASSERT_TRUE(SameBits(ms.values(), m_scale)) << step;
    ASSERT_TRUE(SameBits(vs.values(), v_scale)) << step;
    ASSERT_TRUE(SameBits(p.values(), want_p)) << step;
    ASSERT_TRUE(SameBits(copy.values(), want_copy)) << step;
  }
}

TYPED_TEST(OtherOptimizers, LambIsTheCpus) {
  using T = TypeParam;
  const auto gradient = RandomVector<float>(kBlockElements, 4);
  std::vector<float> want_p = RandomVector<float>(kBlockElements, 1), want_m(kBlockElements, 0.1f),
                     want_v(kBlockElements, 0.2f);
  std::vector<T> want_copy(kBlockElements, FromFloat<T>(2));
  HostArray<float> p(want_p), m(want_m), v(want_v), g(gradient);
  HostArray<T> copy(want_copy);
  std::vector<SegmentFactors> factors;
  std::vector<double> norms(2 * kBlockRanges.size());
  std::vector<FlatRange> chunk_ranges;
  for (size_t i = 0; i < kBlockRanges.size(); ++i) {
    const int64_t begin = kBlockRanges[i].begin, n = kBlockRanges[i].end - begin;
    AdamWParams params = ParamsOf(i, 3);
    AlignedBuffer workspace(kernels::LambWorkspaceBytes(n));
    kernels::LambMoments(params, n, want_p.data() + begin, want_m.data() + begin,
                         want_v.data() + begin, gradient.data() + begin, workspace.data(),
                         norms.data() + 2 * i);
    const bool scaled = i != 1;
    factors.push_back({.rate = params.learning_rate,
                       .decay = params.weight_decay,
                       .norms = scaled ? static_cast<int32_t>(i) : -1});
    if (scaled) {
      params.learning_rate *= static_cast<float>(std::sqrt(norms[2 * i] / norms[2 * i + 1]));
    }
    kernels::LambApply<T>(params, n, want_p.data() + begin, want_m.data() + begin,
                          want_v.data() + begin, want_copy.data() + begin);
    const int64_t first = chunk_ranges.empty() ? 0 : chunk_ranges.back().end;
    chunk_ranges.push_back({first, first + CeilDiv(n, kChunkElements)});
  }
  Tables tables(factors, StepFactorsOf(ParamsOf(0, 3)), false);
  HostArray<FlatRange> ranges(chunk_ranges);
  HostArray<double> sums(2 * tables.chunks.size()), got_norms(norms.size());
  FlatUpdate<float> moments = tables.Update<float>();
  moments.p = p.data();
  moments.states[0] = m.data();
  moments.states[1] = v.data();
  moments.g = g.data();
  RunKernel(LambMomentsKernel{moments, sums.data()});
  RunKernel(LambNormsKernel{tables.control.data(), ranges.data(), ranges.size(), sums.data(),
                            got_norms.data()});
  for (size_t i = 0; i < norms.size(); ++i) {
    EXPECT_NEAR(got_norms.values()[i], norms[i], 1e-12 * norms[i]);
  }
  FlatUpdate<T> apply = tables.Update<T>();
  apply.p = p.data();
  apply.states[0] = m.data();
  apply.states[1] = v.data();
  apply.copy = copy.data();
  RunKernel(LambApplyKernel<T>{apply, got_norms.data()});
  EXPECT_TRUE(SameBits(m.values(), want_m));
  EXPECT_TRUE(SameBits(v.values(), want_v));
  ExpectNear(p.values(), want_p, 1e-6, 1e-7, "p");
  ExpectNear(copy.values(), want_copy, kTolerance<T>, 1e-7, "copy");
}

TYPED_TEST(OtherOptimizers, MuonIsTheCpus) {
  using T = TypeParam;
  const auto gradient = RandomVector<float>(kBlockElements, 4);
  std::vector<float> want_p = RandomVector<float>(kBlockElements, 1);
  std::vector<T> want_copy(kBlockElements, FromFloat<T>(2));
  std::vector<SegmentFactors> factors;
  for (size_t i = 0; i < kBlockRanges.size(); ++i) {
    factors.push_back({.rate = 0.02f * static_cast<float>(i + 1), .shrink = 0.99f});
    kernels::MuonApply<T>(
        factors[i].shrink, factors[i].rate, kBlockRanges[i].end - kBlockRanges[i].begin,
        want_p.data() + kBlockRanges[i].begin, gradient.data() + kBlockRanges[i].begin,
        want_copy.data() + kBlockRanges[i].begin);
  }
  Tables tables(factors, {}, false);
  HostArray<float> p(RandomVector<float>(kBlockElements, 1)), g(gradient);
  HostArray<T> copy(std::vector<T>(kBlockElements, FromFloat<T>(2)));
  FlatUpdate<T> apply = tables.Update<T>();
  apply.p = p.data();
  apply.g = g.data();
  apply.copy = copy.data();
  RunKernel(MuonApplyKernel<T>{apply});
  EXPECT_TRUE(SameBits(p.values(), want_p));
  EXPECT_TRUE(SameBits(copy.values(), want_copy));
}

TEST(Muon, MomentumAndIterationPieces) {
  if ((hwy::SupportedTargets() & HWY_AVX2) == 0) GTEST_SKIP();
  for (const bool nesterov : {false, true}) {
    constexpr int64_t kN = 3001;
    const auto gradient = RandomVector<float>(kN, 4);
    std::vector<float> want_m = RandomVector<float>(kN, 5), want_u(kN);
    HostArray<float> m(want_m), g(gradient), u(kN);
    kernels::MuonMomentum({0.9f, nesterov, 0.37f}, kN, want_m.data(), gradient.data(),
                          want_u.data());
    HostArray<StepFactors> step(std::vector<StepFactors>{{.momentum = 0.9f}});
    HostArray<UpdateControl> control(std::vector<UpdateControl>{{0.37f, 0}});
    RunKernel(MuonMomentumKernel{step.data(), nesterov, control.data(), kN, m.data(), g.data(),
                                 u.data()});
    EXPECT_TRUE(SameBits(m.values(), want_m));
    EXPECT_TRUE(SameBits(u.values(), want_u));
    HostArray<double> sum(std::vector<double>{16.0});
    RunKernel(MuonNormaliseKernel<float>{sum.data(), kN, g.data(), g.data()});
    RunKernel(PairKernel<MuonMixFn, float>{{2.0f, -3.0f}, g.data(), u.data(), kN, u.data()});
    HostArray<bf16> rounded(kN);
    RunKernel(MuonNormaliseKernel<bf16>{sum.data(), kN, u.data(), rounded.data()});
    const std::vector<float> mixed = u.values();
    const std::vector<bf16> factor = rounded.values();
    RunKernel(PairKernel<MuonMixFn, bf16, float>{
        {2.0f, -3.0f}, rounded.data(), g.data(), kN, rounded.data()});
    for (int64_t i = 0; i < kN; ++i) {
      ASSERT_EQ(g.values()[i], gradient[i] / 4);
      ASSERT_NEAR(mixed[i], gradient[i] / 2 - 3 * want_u[i], 1e-6);
      ASSERT_EQ(factor[i].bits, ToBf16(ToFloat(ToBf16(mixed[i])) / 4).bits);
      const float sum_of_both = std::fma(2.0f, ToFloat(factor[i]), -3.0f * (gradient[i] / 4));
      ASSERT_EQ(rounded.values()[i].bits, ToBf16(sum_of_both).bits);
      if (i > 100) break;
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
