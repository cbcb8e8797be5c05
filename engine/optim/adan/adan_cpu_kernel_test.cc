#include "engine/optim/adan/adan_cpu_kernel.h"

#include <cmath>
#include <fstream>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "nlohmann/json.hpp"

namespace milepost::kernels {
namespace {

class AdanKernel : public OnEveryTarget {};
MP_ON_EVERY_TARGET(AdanKernel);

struct AdanState {
  explicit AdanState(int64_t count) : m(count), v(count), n(count), g(count) {}
  AdanStates Places() { return {m.data(), v.data(), n.data(), g.data()}; }
  std::vector<float> m, v, n, g;
};

// The definition in fp64, several steps in a row.
template <typename T>
void CheckAdan(int64_t count, float decay) {
  SCOPED_TRACE(testing::Message() << count << " bytes " << sizeof(T));
  AdanParams params{.learning_rate = 1e-2f, .weight_decay = decay, .gradient_scale = 0.5f};
  auto p = RandomVector<float>(count, 1);
  AdanState state(count);
  std::vector<T> copy(count);
  auto want = ToDouble(p);
  std::vector<double> m(count), v(count), n(count), before(count);
  const double beta1 = params.beta1, beta2 = params.beta2, beta3 = params.beta3;
  for (int64_t step = 1; step <= 4; ++step) {
    const auto g = RandomVector<float>(count, static_cast<uint32_t>(10 + step));
    params.step = step;
    Adan(params, count, p.data(), state.Places(), g.data(), copy.data());
    for (int64_t i = 0; i < count; ++i) {
      const double x = 0.5 * g[i];
      const double change = step == 1 ? 0 : x - before[i];
      m[i] = beta1 * m[i] + (1 - beta1) * x;
      v[i] = beta2 * v[i] + (1 - beta2) * change;
      n[i] = beta3 * n[i] + (1 - beta3) * std::pow(x + beta2 * change, 2);
      const double eta =
          params.learning_rate / (std::sqrt(n[i] / (1 - std::pow(beta3, step))) + params.epsilon);
      want[i] -=
          eta * (m[i] / (1 - std::pow(beta1, step)) + beta2 * v[i] / (1 - std::pow(beta2, step)));
      want[i] /= 1 + double{params.learning_rate} * decay;
      before[i] = x;
    }
  }
  ExpectClose(p, want, 4e-6, "p");
  ExpectClose(state.m, m, 4e-6, "m");
  ExpectClose(state.v, v, 4e-6, "v");
  ExpectClose(state.n, n, 4e-6, "n");
  ExpectClose(state.g, before, 4e-6, "g");
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(ToFloat(copy[i]), ToFloat(FromFloat<T>(p[i])));
}

TEST_P(AdanKernel, MatchesDefinition) {
  for (int64_t count : {1, 3, 17, 127, 33000}) {
    CheckAdan<float>(count, 0.0f);
    CheckAdan<bf16>(count, 0.1f);
    CheckAdan<f16>(count, 0.1f);
  }
}

// make_adan_golden.py
TEST(AdanGolden, TheUpdateIsTorchs) {
  std::ifstream file("engine/optim/adan/adan_golden.json");
  ASSERT_TRUE(file.good());
  const auto golden = nlohmann::json::parse(file);
  const auto floats = [](const std::vector<double>& values) {
    return std::vector<float>(values.begin(), values.end());
  };
  AdanParams params{.learning_rate = golden["lr"],
                    .beta1 = golden["beta1"],
                    .beta2 = golden["beta2"],
                    .beta3 = golden["beta3"],
                    .epsilon = golden["epsilon"],
                    .weight_decay = golden["decay"]};
  std::vector<float> p = floats(golden["p"]);
  const auto count = static_cast<int64_t>(p.size());
  AdanState state(count);
  for (const auto& step : golden["steps"]) {
    const std::vector<float> g = floats(step["g"]);
    Adan<float>(params, count, p.data(), state.Places(), g.data(), nullptr);
    ExpectClose(p, step["p"].get<std::vector<double>>(), 4e-6, "p");
    ++params.step;
  }
  ExpectClose(state.m, golden["states"]["m"].get<std::vector<double>>(), 4e-6, "m");
  ExpectClose(state.v, golden["states"]["v"].get<std::vector<double>>(), 4e-6, "v");
  ExpectClose(state.n, golden["states"]["n"].get<std::vector<double>>(), 4e-6, "n");
  ExpectClose(state.g, golden["states"]["g"].get<std::vector<double>>(), 0, "g");
}

}  // namespace
}  // namespace milepost::kernels
