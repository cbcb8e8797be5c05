#include <gtest/gtest.h>

#include <array>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/flat_kernels.h"
#include "engine/kernels/cuda/flat_update_kernels.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/optim/adan/adan_cpu_kernel.h"
#include "engine/optim/adan/adan_cuda_kernel-inl.h"
#include "engine/optim/adan/adan_cuda_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr int64_t kAdanElements = 5003;
constexpr uint64_t kAdanSeed = 5;
constexpr uint64_t kAdanStep = 77;

uint64_t AdanStream(int state) { return uint64_t(4 + state) << 32; }

std::vector<float> InFloats(const std::vector<float>& x) { return x; }
std::vector<float> InFloats(const std::vector<bf16>& x) {
  std::vector<float> out(x.size());
  kernels::CastToFloat(x.data(), static_cast<int64_t>(x.size()), out.data());
  return out;
}
void Stored(const std::vector<float>& x, int, std::vector<float>* out) { *out = x; }
void Stored(const std::vector<float>& x, int state, std::vector<bf16>* out) {
  kernels::RoundToBf16AtRandom(x.data(), kAdanElements,
                               {kAdanSeed, AdanStream(state), kAdanStep, 0}, out->data());
}

constexpr int kAdanMaster = -1;  // of its roundings; those of states have their numbers

template <typename T, typename S, typename P>
struct AdanAt {
  std::vector<P> p = RandomVector<P>(kAdanElements, 1);
  std::array<std::vector<S>, 4> states;
  std::vector<T> copy = std::vector<T>(kAdanElements, FromFloat<T>(-7.0f));

  AdanAt() {
    for (uint32_t i = 0; i < 4; ++i) states[i] = RandomVector<S>(kAdanElements, 2 + i, 0.1f);
    for (S& value : states[2]) value = FromFloat<S>(std::abs(ToFloat(value)));  // squares
  }

  void UpdateOnCpu(const AdanParams& params, const std::vector<float>& g) {
    std::array<std::vector<float>, 4> own;
    for (int i = 0; i < 4; ++i) own[i] = InFloats(states[i]);
    std::vector<float> own_p = InFloats(p);
    kernels::Adan<T>(params, kAdanElements, own_p.data(),
                     {own[0].data(), own[1].data(), own[2].data(), own[3].data()}, g.data(),
                     copy.data());
    for (int i = 0; i < 4; ++i) Stored(own[i], i, &states[i]);
    Stored(own_p, kAdanMaster, &p);
  }

  void UpdateByKernel(const AdanParams& params, const std::vector<float>& gradient) {
    SegmentFactors segment = SegmentFactorsOf(params);
    segment.round_master = PhiloxKey(kAdanSeed, AdanStream(kAdanMaster));
    for (int i = 0; i < 4; ++i) segment.round_states[i] = PhiloxKey(kAdanSeed, AdanStream(i));
    StepFactors step_factors = StepFactorsOf(params);
    step_factors.step = kAdanStep;
    HostArray<FlatChunk> chunks(MakeChunks({{0, kAdanElements}}));
    HostArray<SegmentFactors> factors(std::vector<SegmentFactors>{segment});
    HostArray<StepFactors> step(std::vector<StepFactors>{step_factors});
    HostArray<UpdateControl> control(std::vector<UpdateControl>{{params.gradient_scale, 0}});
    HostArray<P> own_p(p);
    HostArray<float> g(gradient);
    HostArray<S> m(states[0]), v(states[1]), n(states[2]), before(states[3]);
    HostArray<T> own_copy(copy);
    RunKernel(FlatUpdateKernel<AdanRule, T, S, P>{{chunks.data(),
                                                   chunks.size(),
                                                   factors.data(),
                                                   step.data(),
                                                   control.data(),
                                                   own_p.data(),
                                                   {m.data(), v.data(), n.data(), before.data()},
                                                   g.data(),
                                                   own_copy.data()}});
    p = own_p.values();
    states = {m.values(), v.values(), n.values(), before.values()};
    copy = own_copy.values();
  }
};

template <typename T, typename S, typename P>
void ExpectAdanIsTheCpus(int64_t step) {
  SCOPED_TRACE(step);
  const AdanParams params = {
      .learning_rate = 3e-3f, .weight_decay = 0.1f, .gradient_scale = 0.37f, .step = step};
  const std::vector<float> g = RandomVector<float>(kAdanElements, 9);
  AdanAt<T, S, P> want, got;
  want.UpdateOnCpu(params, g);
  got.UpdateByKernel(params, g);
  EXPECT_TRUE(SameBits(got.p, want.p));
  EXPECT_TRUE(SameBits(got.copy, want.copy));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(SameBits(got.states[i], want.states[i])) << i;
}

template <typename T>
class AdanUpdates : public testing::Test {};
using AdanTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(AdanUpdates, AdanTypes);

TYPED_TEST(AdanUpdates, AreTheCpus) {
  if ((hwy::SupportedTargets() & HWY_AVX2) == 0) {
    GTEST_SKIP() << "the CPU's kernels round between product and sum here";
  }
  for (const int64_t step : {1, 9}) {
    ExpectAdanIsTheCpus<TypeParam, float, float>(step);
    ExpectAdanIsTheCpus<TypeParam, bf16, float>(step);
    ExpectAdanIsTheCpus<TypeParam, bf16, bf16>(step);
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
