#include "engine/optim/adamw_8bit/adamw_8bit_cpu_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

struct State {
  explicit State(int64_t n) : m(n), v(n), m_scale((n + 255) / 256), v_scale((n + 255) / 256) {}
  QuantizedMoments At(int64_t element) {
    const int64_t block = element / kQuantizedBlock;
    return {m.data() + element, m_scale.data() + block, v.data() + element, v_scale.data() + block};
  }
  bool operator==(const State&) const = default;

  std::vector<uint8_t> m, v;
  std::vector<float> m_scale, v_scale;
};

// The nearest code by looking at all of them.
uint8_t Nearest(const std::array<float, 256>& codes, double x) {
  size_t best = 0;
  for (size_t i = 1; i < codes.size(); ++i) {
    if (std::abs(codes[i] - x) < std::abs(codes[best] - x)) best = i;
  }
  return static_cast<uint8_t>(best);
}

class AdamW8BitTest : public OnEveryTarget {};
MP_ON_EVERY_TARGET(AdamW8BitTest);

TEST_P(AdamW8BitTest, TheCodesAreThoseOfTheDynamicDataType) {
  const auto& with_sign = SignedCodes();
  const auto& without = UnsignedCodes();
  EXPECT_TRUE(std::is_sorted(with_sign.begin(), with_sign.end()));
  EXPECT_TRUE(std::is_sorted(without.begin(), without.end()));
  EXPECT_EQ(with_sign.back(), 1);
  EXPECT_EQ(without.front(), 0);
  EXPECT_EQ(with_sign[127], 0);
  EXPECT_FLOAT_EQ(with_sign[0], -(1 - 0.45F / 64));
  EXPECT_FLOAT_EQ(with_sign[128], 0.55e-6F);
  EXPECT_FLOAT_EQ(without[1], 0.325e-6F);
  EXPECT_FLOAT_EQ(without[254], 1 - 0.45F / 128);
}

// Each step from the state as the kernel left it: in fp64, then to the nearest code.
TEST_P(AdamW8BitTest, MatchesDefinition) {
  for (int64_t n : {1, 100, 256, 257, 33000}) {
    AdamWParams params{.learning_rate = 1e-2f, .weight_decay = 0.1f, .gradient_scale = 0.5f};
    auto p = RandomVector<float>(n, 1);
    std::vector<bf16> copy(n);
    State state(n);
    for (int64_t step = 1; step <= 3; ++step) {
      auto g = RandomVector<float>(n, static_cast<uint32_t>(10 + step));
      if (n > 300) std::fill(g.begin(), g.begin() + 256, 0.0F);  // a block of nothing
      params.step = step;
      const State before = state;
      auto want_p = ToDouble(p);
      std::vector<double> m(n), v(n);
      for (int64_t i = 0; i < n; ++i) {
        const double grad = 0.5 * g[i];
        m[i] = double{params.beta1} * SignedCodes()[before.m[i]] * before.m_scale[i / 256] +
               (1 - double{params.beta1}) * grad;
        v[i] = double{params.beta2} * UnsignedCodes()[before.v[i]] * before.v_scale[i / 256] +
               (1 - double{params.beta2}) * grad * grad;
        const double m_hat = m[i] / (1 - std::pow(double{params.beta1}, step));
        const double v_hat = v[i] / (1 - std::pow(double{params.beta2}, step));
        want_p[i] -= 1e-2 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * want_p[i]);
      }
      AdamW8Bit(params, n, p.data(), state.At(0), g.data(), copy.data());
      ExpectClose(p, want_p, 2e-5, "p");
      int64_t other_codes = 0;
      for (int64_t i = 0; i < n; ++i) {
        const auto block = static_cast<size_t>(i / 256);
        const auto end = std::min<int64_t>(n, static_cast<int64_t>(block + 1) * 256);
        if (i % 256 == 0) {
          double m_most = 0, v_most = 0;
          for (int64_t k = i; k < end; ++k) {
            m_most = std::max(m_most, std::abs(m[k]));
            v_most = std::max(v_most, v[k]);
          }
          EXPECT_NEAR(state.m_scale[block], m_most, 1e-5 * m_most);
          EXPECT_NEAR(state.v_scale[block], v_most, 1e-5 * v_most);
        }
        const double m_ratio = m[i] == 0 ? 0 : m[i] / state.m_scale[block];
        const double v_ratio = v[i] == 0 ? 0 : v[i] / state.v_scale[block];
        const uint8_t v_code = Nearest(UnsignedCodes(), v_ratio);
        other_codes += state.m[i] != Nearest(SignedCodes(), m_ratio);
        other_codes += state.v[i] != (v[i] > 0 ? std::max<uint8_t>(v_code, 1) : v_code);
        ASSERT_EQ(copy[i].bits, ToBf16(p[i]).bits);
      }
      EXPECT_LE(other_codes, n / 1000);  // within rounding of a middle
    }
  }
}

TEST_P(AdamW8BitTest, AVAboveZeroIsNeverLost) {
  std::vector<float> p(256), g(256, 1e-6F);
  g[7] = 1;
  State state(256);
  AdamW8Bit<float>({.learning_rate = 1e-3f}, 256, p.data(), state.At(0), g.data(), nullptr);
  for (uint8_t code : state.v) EXPECT_GE(code, 1);
  EXPECT_EQ(state.v[7], 255);
}

TEST_P(AdamW8BitTest, CutsAtBlocksAndThreadsDoNotMatter) {
  constexpr int64_t kN = 256 * 70 + 33;
  const auto g = RandomVector<float>(kN, 2);
  auto whole_p = RandomVector<float>(kN, 1);
  State whole(kN);
  auto cut_p = whole_p;
  State cut(kN);
  const AdamWParams params{.learning_rate = 1e-3f};
  {
    const ThreadCount scope(3);
    AdamW8Bit<float>(params, kN, whole_p.data(), whole.At(0), g.data(), nullptr);
  }
  const ThreadCount scope(1);
  for (int64_t at : {int64_t{0}, int64_t{256 * 3}, int64_t{256 * 64}}) {
    const int64_t end = at == 0 ? 256 * 3 : at == 256 * 3 ? 256 * 64 : kN;
    AdamW8Bit<float>(params, end - at, cut_p.data() + at, cut.At(at), g.data() + at, nullptr);
  }
  EXPECT_TRUE(SameBits(whole_p, cut_p));
  EXPECT_TRUE(whole == cut);
}

}  // namespace
}  // namespace milepost::kernels
