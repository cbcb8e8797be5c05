#include "engine/ops/experts/experts_cpu_kernel.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "gmock/gmock.h"

namespace milepost::kernels {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

class Experts : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Experts);

struct Routes {
  explicit Routes(const ExpertRouting& r)
      : weights(r.rows * r.per_token),
        chosen(r.rows * r.per_token),
        slots(r.rows * r.per_token),
        offsets(r.experts + 1) {}
  std::vector<float> weights;
  std::vector<int32_t> chosen, slots, offsets;
};

template <typename T>
Routes RoutesOf(const ExpertRouting& routing, const std::vector<T>& logits) {
  Routes routes(routing);
  RouteExperts(routing, routing.rows, logits.data(), routes.weights.data(), routes.chosen.data(),
               routes.slots.data(), routes.offsets.data());
  return routes;
}

TEST(ExpertRoutes, LieByExpertInTheOrderOfRows) {
  const Routes routes = RoutesOf<float>(
      {.rows = 3, .experts = 4, .per_token = 2, .normalize = false}, {0, 3, 1, 2,  //
                                                                      5, 0, 0, 4,  //
                                                                      0, 9, 0, 8});
  EXPECT_THAT(routes.chosen, ElementsAre(1, 3, 0, 3, 1, 3));
  EXPECT_THAT(routes.offsets, ElementsAre(0, 1, 3, 3, 6));
  EXPECT_THAT(routes.slots, ElementsAre(1, 3, 0, 4, 2, 5));
  const double sum = 1 + std::exp(3) + std::exp(1) + std::exp(2);
  EXPECT_NEAR(routes.weights[0], std::exp(3) / sum, 1e-6);
  EXPECT_NEAR(routes.weights[1], std::exp(2) / sum, 1e-6);
}

TEST(ExpertRoutes, RowsThatDoNotCountLieBehindTheOthers) {
  const ExpertRouting routing = {.rows = 3, .experts = 2, .per_token = 2};
  Routes routes(routing);
  const std::vector<float> logits = {0, 1, 1, 0, 7, 8};
  RouteExperts(routing, 2, logits.data(), routes.weights.data(), routes.chosen.data(),
               routes.slots.data(), routes.offsets.data());
  EXPECT_THAT(routes.offsets, ElementsAre(0, 2, 4));
  EXPECT_THAT(routes.slots, ElementsAre(2, 0, 1, 3, 4, 5));
}

TEST(ExpertRoutes, OfEqualLogitsTheFirstIsChosen) {
  const Routes routes =
      RoutesOf<float>({.rows = 2, .experts = 5, .per_token = 3}, {1, 2, 2, 1, 2, 7, 7, 7, 7, 7});
  EXPECT_THAT(routes.chosen, ElementsAre(1, 2, 4, 0, 1, 2));
  EXPECT_THAT(routes.weights, testing::Each(testing::FloatEq(1.0F / 3)));
}

// A step with such numbers updates nothing, but must not leave its memory.
TEST(ExpertRoutes, WhatIsNoNumberShowsInTheWeights) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const Routes routes = RoutesOf<float>({.rows = 4, .experts = 3, .per_token = 2},
                                        {nan, nan, nan, 0, nan, 1, 0, -inf, 1, inf, 0, inf});
  EXPECT_THAT(routes.chosen, ElementsAre(0, 1, 2, 0, 2, 0, 0, 2));
  for (const size_t i : {0, 1, 2, 3, 6, 7}) EXPECT_TRUE(std::isnan(routes.weights[i])) << i;
  EXPECT_NEAR(routes.weights[4] + routes.weights[5], 1, 1e-6);
}

// The weights' own loss, and the slopes', of `logits` with what was chosen kept.
double RoutedLoss(const ExpertRouting& r, const std::vector<double>& logits,
                  const std::vector<int32_t>& chosen, const std::vector<double>& dweights,
                  const std::vector<double>& slopes) {
  double loss = 0;
  for (int64_t n = 0; n < r.rows; ++n) {
    double all = 0, picked = 0;
    const double* row = logits.data() + n * r.experts;
    for (int64_t e = 0; e < r.experts; ++e) all += std::exp(row[e]);
    for (int64_t k = 0; k < r.per_token; ++k) picked += std::exp(row[chosen[n * r.per_token + k]]);
    for (int64_t k = n * r.per_token; k < (n + 1) * r.per_token; ++k) {
      loss += dweights[k] * std::exp(row[chosen[k]]) / (r.normalize ? picked : all);
    }
    for (int64_t e = 0; e < r.experts; ++e) loss += slopes[e] * std::exp(row[e]) / all;
    loss += slopes[r.experts] * std::log(all) * std::log(all);
  }
  return loss;
}

template <typename T>
void CheckRouting(const ExpertRouting& r) {
  SCOPED_TRACE(testing::Message() << r.per_token << " of " << r.experts << ", normalize "
                                  << r.normalize << ", bytes " << sizeof(T));
  const auto logits = RandomVector<T>(r.rows * r.experts, 1, 2.0F);
  const auto dweights = RandomVector<float>(r.rows * r.per_token, 2);
  const Routes routes = RoutesOf(r, logits);
  for (const bool with_slopes : {true, false}) {
    auto slopes = RandomVector<float>(r.experts + 1, 3);
    std::vector<T> dlogits(logits.size());
    RouteExpertsBackward(r, logits.data(), routes.weights.data(), routes.chosen.data(),
                         dweights.data(), with_slopes ? slopes.data() : nullptr, dlogits.data());
    if (!with_slopes) slopes.assign(slopes.size(), 0);
    // The weights of a row that has one expert alone are 1, whatever the logits.
    if (!with_slopes && r.normalize && r.per_token == 1) continue;
    ExpectGradient(
        dlogits, ToDouble(logits),
        [&](const auto& v) {
          return RoutedLoss(r, v, routes.chosen, ToDouble(dweights), ToDouble(slopes));
        },
        kTolerance<T>, "dlogits");
  }
}

TEST(ExpertRoutes, GradientsAreThoseOfTheDefinition) {
  for (const bool normalize : {true, false}) {
    for (const int64_t per_token : {1, 3, 8}) {
      const ExpertRouting routing = {21, 8, per_token, normalize};
      CheckRouting<float>(routing);
      CheckRouting<bf16>(routing);
      CheckRouting<f16>(routing);
    }
  }
}

// Rows that were dispatched and combined, in fp64.
std::vector<double> Combined(const RoutedRows& s, const std::vector<double>& y,
                             const std::vector<double>& weights,
                             const std::vector<int32_t>& slots) {
  std::vector<double> out(s.rows * s.width);
  for (int64_t i = 0; i < s.rows * s.per_token; ++i) {
    for (int64_t c = 0; c < s.width; ++c) {
      out[i / s.per_token * s.width + c] += weights[i] * y[slots[i] * s.width + c];
    }
  }
  return out;
}

template <typename T>
void CheckRows(const RoutedRows& s) {
  SCOPED_TRACE(testing::Message() << s.rows << "x" << s.per_token << " rows of " << s.width
                                  << ", bytes " << sizeof(T));
  const int64_t picks = s.rows * s.per_token;
  std::vector<int32_t> slots(picks);
  for (int64_t i = 0; i < picks; ++i) slots[i] = static_cast<int32_t>((i * 7 + 3) % picks);
  const auto x = RandomVector<T>(s.rows * s.width, 1);
  std::vector<T> y(picks * s.width);
  DispatchRows(s, x.data(), slots.data(), y.data());
  for (int64_t i = 0; i < picks * s.width; ++i) {
    const int64_t pick = i / s.width;
    ASSERT_EQ(ToFloat(y[slots[pick] * s.width + i % s.width]),
              ToFloat(x[pick / s.per_token * s.width + i % s.width]));
  }

  y = RandomVector<T>(picks * s.width, 2);
  const auto weights = RandomVector<float>(picks, 3);
  const auto dout = RandomVector<T>(s.rows * s.width, 4);
  std::vector<T> out(s.rows * s.width);
  CombineRows(s, y.data(), weights.data(), slots.data(), out.data());
  const auto y64 = ToDouble(y), w64 = ToDouble(weights), dout64 = ToDouble(dout);
  ExpectClose(out, Combined(s, y64, w64, slots), kTolerance<T>, "out");
  CombineRows<T>(s, y.data(), nullptr, slots.data(), out.data());
  ExpectClose(out, Combined(s, y64, std::vector<double>(picks, 1), slots), kTolerance<T>, "sum");

  std::vector<float> dweights(picks);
  CombineRowsBackward(s, y.data(), weights.data(), slots.data(), dout.data(), y.data(),
                      dweights.data());  // in place
  ExpectGradient(
      y, y64, [&](const auto& v) { return Dot(Combined(s, v, w64, slots), dout64); }, kTolerance<T>,
      "dy");
  ExpectGradient(
      dweights, w64, [&](const auto& v) { return Dot(Combined(s, y64, v, slots), dout64); }, 1e-5,
      "dweights");
}

TEST_P(Experts, RowsGoOutAndComeBack) {
  for (const int64_t per_token : {1, 2, 8}) {
    for (const int64_t width : {1, 13, 64, 200}) {
      for (const int64_t rows : {3, 5, 45}) {
        const RoutedRows shape = {rows, per_token, width};
        CheckRows<float>(shape);
        CheckRows<bf16>(shape);
        CheckRows<f16>(shape);
      }
    }
  }
}

TEST_P(Experts, SameBitsOnAnyThreadCount) {
  const ExpertRouting routing = {3000, 16, 4, true};
  const RoutedRows shape = {3000, 4, 40};
  const auto logits = RandomVector<float>(3000 * 16, 1);
  const auto y = RandomVector<float>(3000 * 4 * 40, 2), dout = RandomVector<float>(3000 * 40, 3);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    Routes routes = RoutesOf(routing, logits);
    std::vector<float> all = routes.weights, out(dout.size()), dy(y.size()), dw(routes.weights);
    CombineRows(shape, y.data(), routes.weights.data(), routes.slots.data(), out.data());
    CombineRowsBackward(shape, y.data(), routes.weights.data(), routes.slots.data(), dout.data(),
                        dy.data(), dw.data());
    all.insert(all.end(), routes.slots.begin(), routes.slots.end());
    for (const auto* more : {&out, &dy, &dw}) all.insert(all.end(), more->begin(), more->end());
    results.push_back(all);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

TEST(ExpertPieces, AreOfFewSizesAndMakeUpAllRows) {
  EXPECT_THAT(ExpertPieceSizes(5), ElementsAre(1, 2, 4));
  EXPECT_THAT(ExpertPieceSizes(1 << 20), ElementsAre(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024));
  for (const int64_t rows : {1, 2, 3, 1000, 1023, 5000}) {
    const std::vector<int64_t> sizes = ExpertPieceSizes(rows);
    for (int64_t left = rows; left > 0; left -= ExpertPieceRows(left)) {
      EXPECT_THAT(sizes, testing::Contains(ExpertPieceRows(left)));
      EXPECT_LE(ExpertPieceRows(left), left);
    }
  }
}

}  // namespace
}  // namespace milepost::kernels
