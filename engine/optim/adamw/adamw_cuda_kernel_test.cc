#include "engine/kernels/cuda/flat_update_kernels.h"

#include "engine/optim/adamw/adamw_cpu_kernel.h"

#include <gtest/gtest.h>

#include <type_traits>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/flat_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/optim/adamw/adamw_cuda_kernel-inl.h"
#include "engine/optim/adamw/adamw_cuda_kernel.h"
#include "engine/optim/lion/lion_cpu_kernel.h"
#include "engine/optim/lion/lion_cuda_kernel-inl.h"
#include "engine/optim/lion/lion_cuda_kernel.h"
#include "engine/optim/sgd/sgd_cpu_kernel.h"
#include "engine/optim/sgd/sgd_cuda_kernel-inl.h"
#include "engine/optim/sgd/sgd_cuda_kernel.h"

namespace milepost::kernels::cuda {
namespace {

// A shard that holds the end of one tensor, a whole small one and the beginning of a third.
const std::vector<FlatRange> kRanges = {{0, 4501}, {4512, 4519}, {4544, 9999}};
constexpr int64_t kElements = 10048;
constexpr int64_t kFirstElement[] = {1024, 0, 32};  // of the tensor, where its range begins
constexpr uint64_t kSeed = 5;
constexpr uint64_t kStep = 77;

uint64_t StreamOf(int state, size_t segment) { return uint64_t(4 + state) << 32 | (segment + 3); }

// Bits can only be compared where the CPU's kernels fuse their multiply-adds.
bool CpuFuses() { return (hwy::SupportedTargets() & HWY_AVX2) != 0; }

// Of the master's roundings; those of states have their numbers.
constexpr int kMaster = -1;

template <typename T, typename S, typename P>
struct State {
  std::vector<P> p = RandomVector<P>(kElements, 1);
  std::vector<S> m = RandomVector<S>(kElements, 2, 0.1f);
  std::vector<S> v = RandomVector<S>(kElements, 3, 0.1f);
  std::vector<T> copy = std::vector<T>(kElements, FromFloat<T>(-7.0f));

  State() {
    for (S& value : v) value = FromFloat<S>(std::abs(ToFloat(value)));
  }
};

AdamWParams With(AdamWParams params, float rate, float decay) {
  params.learning_rate = rate;
  params.weight_decay = decay;
  return params;
}
SgdParams With(SgdParams params, float rate, float decay) {
  params.learning_rate = rate;
  params.weight_decay = decay;
  return params;
}
LionParams With(LionParams params, float rate, float decay) {
  params.learning_rate = rate;
  params.weight_decay = decay;
  return params;
}
template <typename Params>
Params OfSegment(const Params& params, size_t segment) {
  return With(params, 1e-3f * static_cast<float>(segment + 1), segment == 1 ? 0.0f : 0.1f);
}

template <typename T>
void CpuUpdate(const AdamWParams& a, int64_t n, float* p, float* m, float* v, const float* g,
               T* copy) {
  kernels::AdamW<T>(a, n, p, m, v, g, copy);
}
template <typename T>
void CpuUpdate(const SgdParams& a, int64_t n, float* p, float* m, float*, const float* g, T* copy) {
  kernels::Sgd<T>(a, n, p, m, g, copy);
}
template <typename T>
void CpuUpdate(const LionParams& a, int64_t n, float* p, float* m, float*, const float* g,
               T* copy) {
  kernels::Lion<T>(a, n, p, m, g, copy);
}

// The widened state, and back: at random where it is bf16.
std::vector<float> Widened(const std::vector<float>& x) { return x; }
std::vector<float> Widened(const std::vector<bf16>& x) {
  std::vector<float> out(x.size());
  kernels::CastToFloat(x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}
void Rounded(const std::vector<float>& x, int, size_t, std::vector<float>* out) { *out = x; }
void Rounded(const std::vector<float>& x, int state, size_t segment, std::vector<bf16>* out) {
  const FlatRange range = kRanges[segment];
  kernels::RoundToBf16AtRandom(
      x.data() + range.begin, range.end - range.begin,
      {kSeed, StreamOf(state, segment), kStep, static_cast<uint64_t>(kFirstElement[segment])},
      out->data() + range.begin);
}

template <typename Params, typename T, typename S, typename P>
void UpdateOnCpu(const Params& params, const std::vector<float>& g, State<T, S, P>* at) {
  std::vector<float> p = Widened(at->p), m = Widened(at->m), v = Widened(at->v);
  for (size_t i = 0; i < kRanges.size(); ++i) {
    const int64_t begin = kRanges[i].begin;
    CpuUpdate<T>(OfSegment(params, i), kRanges[i].end - begin, p.data() + begin, m.data() + begin,
                 v.data() + begin, g.data() + begin, at->copy.data() + begin);
  }
  for (size_t i = 0; i < kRanges.size(); ++i) {
    Rounded(p, kMaster, i, &at->p);
    Rounded(m, 0, i, &at->m);
    if (std::is_same_v<Params, AdamWParams>) Rounded(v, 1, i, &at->v);
  }
}

template <typename Rule, typename Params, typename T, typename S, typename P>
void UpdateOnHost(const Params& params, const std::vector<float>& gradient, bool skip,
                  State<T, S, P>* at) {
  std::vector<SegmentFactors> segments;
  for (size_t i = 0; i < kRanges.size(); ++i) {
    segments.push_back(SegmentFactorsOf(OfSegment(params, i)));
    segments[i].element_offset = kFirstElement[i] - kRanges[i].begin;
    segments[i].round_master = PhiloxKey(kSeed, StreamOf(kMaster, i));
    segments[i].round_states[0] = PhiloxKey(kSeed, StreamOf(0, i));
    segments[i].round_states[1] = PhiloxKey(kSeed, StreamOf(1, i));
  }
  StepFactors step_factors = StepFactorsOf(params);
  step_factors.step = kStep;
  HostArray<FlatChunk> chunks(MakeChunks(kRanges));
  HostArray<SegmentFactors> factors(segments);
  HostArray<StepFactors> step(std::vector<StepFactors>{step_factors});
  HostArray<UpdateControl> control(
      std::vector<UpdateControl>{{params.gradient_scale, skip ? 1u : 0u}});
  HostArray<P> p(at->p);
  HostArray<float> g(gradient);
  HostArray<S> m(at->m), v(at->v);
  HostArray<T> copy(at->copy);
  RunKernel(FlatUpdateKernel<Rule, T, S, P>{{chunks.data(),
                                             chunks.size(),
                                             factors.data(),
                                             step.data(),
                                             control.data(),
                                             p.data(),
                                             {m.data(), v.data()},
                                             g.data(),
                                             copy.data()}});
  at->p = p.values();
  at->m = m.values();
  at->v = v.values();
  at->copy = copy.values();
}

template <typename T, typename S, typename P>
void ExpectSame(const State<T, S, P>& a, const State<T, S, P>& b) {
  EXPECT_TRUE(SameBits(a.p, b.p));
  EXPECT_TRUE(SameBits(a.m, b.m));
  EXPECT_TRUE(SameBits(a.v, b.v));
  EXPECT_TRUE(SameBits(a.copy, b.copy));
}

template <typename Rule, typename T, typename S, typename P, typename Params>
void TestRuleWith(Params params) {
  params.gradient_scale = 0.37f;
  std::vector<float> g = RandomVector<float>(kElements, 4);
  g[100] = g[4512] = 0;
  State<T, S, P> want, got;
  UpdateOnHost<Rule>(params, g, /*skip=*/true, &got);
  ExpectSame(got, State<T, S, P>());
  UpdateOnCpu(params, g, &want);
  UpdateOnHost<Rule>(params, g, /*skip=*/false, &got);
  ExpectSame(got, want);
}

template <typename Rule, typename T, typename Params>
void TestRule(const Params& params) {
  TestRuleWith<Rule, T, float, float>(params);
  TestRuleWith<Rule, T, bf16, float>(params);
  TestRuleWith<Rule, T, float, bf16>(params);
  TestRuleWith<Rule, T, bf16, bf16>(params);
}

template <typename T>
class FlatUpdates : public testing::Test {
 protected:
  void SetUp() override {
    if (!CpuFuses()) GTEST_SKIP() << "the CPU's kernels round between product and sum here";
  }
};
using Types = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(FlatUpdates, Types);

TYPED_TEST(FlatUpdates, AdamWIsTheCpus) {
  TestRule<AdamWRule, TypeParam>(AdamWParams{.beta2 = 0.95f, .step = 9});
}
TYPED_TEST(FlatUpdates, SgdIsTheCpus) { TestRule<SgdRule, TypeParam>(SgdParams{}); }
TYPED_TEST(FlatUpdates, LionIsTheCpus) { TestRule<LionRule, TypeParam>(LionParams{}); }

}  // namespace
}  // namespace milepost::kernels::cuda
