#include "engine/ops/experts/experts_cuda_kernel-inl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/experts/experts_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
class ExpertKernels : public testing::Test {};
using ExpertKernelTypes = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(ExpertKernels, ExpertKernelTypes);

struct OnCpu {
  explicit OnCpu(const ExpertRouting& r)
      : weights(r.rows * r.per_token, 0),
        chosen(r.rows * r.per_token, 0),
        slots(r.rows * r.per_token),
        offsets(r.experts + 1),
        counts(r.experts + 1) {}
  std::vector<float> weights;
  std::vector<int32_t> chosen, slots, offsets;
  std::vector<float> counts;
};

template <typename T>
OnCpu RoutesOnCpu(const ExpertRouting& r, int64_t counted, const std::vector<T>& logits) {
  OnCpu cpu(r);
  kernels::RouteExperts(r, counted, logits.data(), cpu.weights.data(), cpu.chosen.data(),
                        cpu.slots.data(), cpu.offsets.data());
  kernels::CountRows(r, cpu.offsets.data(), nullptr, cpu.counts.data());
  return cpu;
}

// Of the first `counted` rows alone, where there is a last one.
template <typename T>
void ExpectRoutes(const ExpertRouting& r, const std::vector<T>& values, int64_t counted) {
  SCOPED_TRACE(testing::Message() << counted << " of " << r.rows << " rows, " << r.per_token
                                  << " of " << r.experts << " experts");
  const int64_t picks = r.rows * r.per_token;
  const OnCpu cpu = RoutesOnCpu(r, counted, values);
  HostArray<T> logits(values);
  HostArray<float> weights(picks), counts(r.experts + 1);
  HostArray<int32_t> chosen(picks), slots(picks), offsets(r.experts + 1);
  HostArray<float> before(std::vector<float>(r.experts + 1, 3));
  HostArray<int64_t> last(std::vector<int64_t>{counted - 1});
  const RoutedTo to = {weights.data(), chosen.data(), slots.data(),
                       offsets.data(), before.data(), counts.data()};
  HostArray<int32_t> order(picks);
  HostArray<RowKey> keys(RowOrderScratchBytes(picks) / static_cast<int64_t>(sizeof(RowKey)) + 2);
  const int64_t* rows = counted < r.rows ? last.data() : nullptr;
  const absl::Status ran =
      RunRouteExperts(r, rows, logits.data(), to, RoutingScratch{order.data(), keys.data()},
                      [](const auto& kernel) { return RunAnywhere(kernel); });
  ASSERT_TRUE(ran.ok()) << ran;
  const auto of_counted = [&](auto values) {
    values.resize(counted * r.per_token);
    return values;
  };
  EXPECT_EQ(of_counted(chosen.values()), of_counted(cpu.chosen));
  EXPECT_EQ(slots.values(), cpu.slots);
  EXPECT_EQ(offsets.values(), cpu.offsets);
  ExpectNear(of_counted(weights.values()), of_counted(cpu.weights), 4e-6, 0, "weights");
  for (int64_t e = 0; e <= r.experts; ++e) EXPECT_EQ(counts.values()[e], cpu.counts[e] + 3) << e;
}

TYPED_TEST(ExpertKernels, RouteAsOnTheCpu) {
  for (const bool normalize : {true, false}) {
    for (const ExpertRouting& r : {ExpertRouting{21, 8, 2, normalize},
                                   {5, 40, 8, normalize},
                                   {70, 3, 1, normalize},
                                   {9, 4, 4, normalize}}) {
      const auto logits = RandomVector<TypeParam>(r.rows * r.experts, 5, 2);
      ExpectRoutes(r, logits, r.rows);
      ExpectRoutes(r, logits, r.rows / 2);
    }
  }
}

// More picks than are sorted at once, and many equal logits.
TEST(ExpertKernelRoutes, ManyRowsAndEqualLogits) {
  const ExpertRouting r = {.rows = 800, .experts = 5, .per_token = 3};
  std::vector<float> logits(r.rows * r.experts);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * i % 3);
  ExpectRoutes(r, logits, r.rows);
}

TEST(ExpertKernelRoutes, WhatIsNoNumberShowsInTheWeights) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const ExpertRouting r = {.rows = 4, .experts = 3, .per_token = 2};
  const std::vector<float> logits = {nan, nan, nan, 0, nan, 1, 0, -inf, 1, inf, 0, inf};
  HostArray<float> given(logits), weights(8);
  HostArray<int32_t> chosen(8);
  RunKernel(PickExpertsKernel<float>{r, nullptr, given.data(), weights.data(), chosen.data()});
  EXPECT_THAT(chosen.values(), testing::ElementsAre(0, 1, 2, 0, 2, 0, 0, 2));
  for (const size_t i : {0, 1, 2, 3, 6, 7}) EXPECT_TRUE(std::isnan(weights.values()[i])) << i;
  EXPECT_NEAR(weights.values()[4] + weights.values()[5], 1, 1e-6);
}

TYPED_TEST(ExpertKernels, RouteBackwardAsOnTheCpu) {
  for (const bool with_slopes : {true, false}) {
    for (const ExpertRouting& r :
         {ExpertRouting{21, 8, 2, true}, {5, 40, 8, true}, {9, 4, 1, false}}) {
      const auto values = RandomVector<TypeParam>(r.rows * r.experts, 5, 2);
      const auto gradients = RandomVector<float>(r.rows * r.per_token, 6);
      const auto slope_values = RandomVector<float>(r.experts + 1, 7);
      const OnCpu cpu = RoutesOnCpu(r, r.rows, values);
      std::vector<TypeParam> want(values.size());
      kernels::RouteExpertsBackward(r, values.data(), cpu.weights.data(), cpu.chosen.data(),
                                    gradients.data(), with_slopes ? slope_values.data() : nullptr,
                                    want.data());
      HostArray<TypeParam> logits(values), dlogits(r.rows * r.experts);
      HostArray<float> weights(cpu.weights), dweights(gradients), slopes(slope_values);
      HostArray<int32_t> chosen(cpu.chosen);
      RunKernel(RouteBackwardKernel<TypeParam>{
          r, logits.data(), weights.data(), chosen.data(), dweights.data(),
          with_slopes ? slopes.data() : nullptr, dlogits.data()});
      const double rounding = sizeof(TypeParam) == 4 ? 4e-6 : kTolerance<TypeParam> / 2;
      ExpectNear(dlogits.values(), want, rounding, 2e-6, "dlogits");
    }
  }
}

template <typename T, int kN>
void CheckRows(int64_t width) {
  const RoutedRows s = {.rows = 6, .per_token = 3, .width = width};
  const int64_t picks = s.rows * s.per_token;
  std::vector<int32_t> places(picks);
  for (int64_t i = 0; i < picks; ++i) places[i] = static_cast<int32_t>(i * 5 % picks);
  const auto x_values = RandomVector<T>(s.rows * width, 1);
  const auto y_values = RandomVector<T>(picks * width, 2);
  const auto weight_values = RandomVector<float>(picks, 3);
  HostArray<int32_t> slots(places);
  HostArray<T> x(x_values), y(y_values), rows(picks * width), out(s.rows * width);
  HostArray<float> weights(weight_values), dweights(picks);
  std::vector<T> want(picks * width), want_out(s.rows * width);
  std::vector<float> want_dweights(picks);

  RunKernel(DispatchRowsKernel<T, kN>{s, x.data(), slots.data(), rows.data()});
  kernels::DispatchRows(s, x_values.data(), places.data(), want.data());
  ExpectNear(rows.values(), want, 0, 0, "dispatched");

  const double rounding = sizeof(T) == 4 ? 1e-6 : kTolerance<T> / 2;
  for (const bool weighted : {true, false}) {
    RunKernel(CombineRowsKernel<T, kN>{s, y.data(), weighted ? weights.data() : nullptr,
                                       slots.data(), out.data()});
    kernels::CombineRows(s, y_values.data(), weighted ? weight_values.data() : nullptr,
                         places.data(), want_out.data());
    ExpectNear(out.values(), want_out, rounding, 1e-6, "combined");
  }

  // Where what it reads lies.
  RunKernel(CombineBackwardKernel<T, kN>{s, y.data(), weights.data(), slots.data(), x.data(),
                                         y.data(), dweights.data()});
  kernels::CombineRowsBackward(s, y_values.data(), weight_values.data(), places.data(),
                               x_values.data(), want.data(), want_dweights.data());
  ExpectNear(y.values(), want, rounding, 1e-7, "dy");
  ExpectNear(dweights.values(), want_dweights, 1e-5, 1e-5, "dweights");
}

TYPED_TEST(ExpertKernels, RowsGoThereAndBackAsOnTheCpu) {
  CheckRows<TypeParam, kPack<TypeParam>>(16);
  CheckRows<TypeParam, kPack<TypeParam>>(520);
  CheckRows<TypeParam, 1>(37);
}

// experts.h says what the slopes are.
TEST(ExpertKernelRoutes, SlopesOfTheBalance) {
  std::vector<int32_t> given(600, 4);
  for (size_t i = 0; i < given.size(); i += 3) given[i] = -1;  // 400 have a target
  HostArray<int32_t> targets(given);
  HostArray<float> counts(std::vector<float>{300, 600, 300, 1200}), slopes(4);
  HostArray<float> factor(std::vector<float>{0.5F});
  RunKernel(ExpertBalanceKernel{{.targets = targets.data(),
                                 .rows = 600,
                                 .counts = counts.data(),
                                 .experts = 3,
                                 .balance_loss = 0.25,
                                 .z_loss = 0.125,
                                 .factor = factor.data()},
                                slopes.data()});
  const double each = 0.5 * 400 / 1200;
  EXPECT_NEAR(slopes.values()[0], each * 0.25 * 3 * 0.25, 1e-7);
  EXPECT_NEAR(slopes.values()[1], each * 0.25 * 3 * 0.5, 1e-7);
  EXPECT_NEAR(slopes.values()[2], each * 0.25 * 3 * 0.25, 1e-7);
  EXPECT_NEAR(slopes.values()[3], each * 0.125, 1e-7);
}

}  // namespace
}  // namespace milepost::kernels::cuda
