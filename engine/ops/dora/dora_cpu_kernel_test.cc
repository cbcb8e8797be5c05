#include "engine/ops/dora/dora_cpu_kernel.h"

#include <array>
#include <cmath>
#include <vector>

#include "engine/kernels/cpu/testing.h"
#include "engine/ops/dora/dora_fixture.h"

namespace milepost::kernels {
namespace {

class Dora : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Dora);

template <typename T>
void CheckDoraNorms(int64_t out, int64_t in, int64_t rank, bool transposed) {
  SCOPED_TRACE(testing::Message() << out << "x" << in << " rank " << rank << " bytes " << sizeof(T)
                                  << " transposed " << transposed);
  const DoraWeights<T> weights(out, in, rank, transposed);
  std::vector<float> norms(static_cast<size_t>(2 * out));
  DoraNorms(weights.Args(norms.data()));
  ExpectClose(norms, weights.Norms(), 1e-6, "norms");
}

TEST_P(Dora, NormsAreThoseOfTheWholeWeight) {
  for (const bool transposed : {false, true}) {
    for (const auto& [out, in, rank] :
         {std::array<int64_t, 3>{1, 1, 1}, {37, 130, 3}, {64, 64, 16}, {200, 33, 40}}) {
      CheckDoraNorms<float>(out, in, rank, transposed);
      CheckDoraNorms<bf16>(out, in, rank, transposed);
      CheckDoraNorms<f16>(out, in, rank, transposed);
    }
  }
}

// At the beginning B is 0: a layer is what it was.
TEST_P(Dora, WithoutAChangeBothNormsAreOne) {
  for (const bool transposed : {false, true}) {
    DoraWeights<bf16> weights(40, 70, 5, transposed);
    weights.SetUp(std::vector<bf16>(40 * 5));
    std::vector<float> norms(80);
    DoraNorms(weights.Args(norms.data()));
    EXPECT_TRUE(SameBits(std::vector<float>(norms.begin(), norms.begin() + 40),
                         std::vector<float>(norms.begin() + 40, norms.end())));
  }
}

// The change takes away nearly all that is there: the error is small beside that, and what is below
// 0 by rounding is 0.
TEST_P(Dora, WhatNearlyCancelsIsNoNaN) {
  constexpr int64_t kOut = 50, kIn = 90, kRank = 4;
  for (const double left : {0.0, 1e-4, 1e-2}) {
    DoraWeights<float> weights(kOut, kIn, kRank, /*transposed=*/true);
    weights.SetWeight(left);
    std::vector<float> norms(static_cast<size_t>(2 * kOut));
    DoraNorms(weights.Args(norms.data()));
    const std::vector<double> want = weights.Norms();
    for (int64_t o = 0; o < kOut; ++o) {
      ASSERT_TRUE(std::isfinite(norms[kOut + o]));
      EXPECT_NEAR(norms[kOut + o], want[kOut + o], 1e-3 * want[o]) << left;
    }
  }
}

// v times (norm + change) / norm, and the bias; in fp64.
template <typename T>
std::vector<double> Magnified(const DoraLayer<T>& layer, const std::vector<double>& v,
                              const std::vector<double>& change, const std::vector<double>& bias) {
  std::vector<double> y(v.size());
  const auto width = static_cast<size_t>(layer.width);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t c = i % width;
    y[i] = v[i] * layer.Factor(c, change[c]) + (layer.HasBias(c) ? bias[c] : 0);
  }
  return y;
}

template <typename T>
void CheckDora(int64_t rows) {
  SCOPED_TRACE(testing::Message() << rows << " rows, bytes " << sizeof(T));
  DoraLayer<T> layer(rows);
  std::vector<T> y(layer.v.size());
  AlignedBuffer space(DoraForwardWorkspaceBytes(layer.width));
  DoraForward(layer.Forward(layer.v.data(), y.data()), space.data());
  const auto v64 = ToDouble(layer.v), change64 = ToDouble(layer.change);
  const auto bias64 = ToDouble(layer.bias), dy64 = ToDouble(layer.dy);
  ExpectClose(y, Magnified(layer, v64, change64, bias64), kTolerance<T>, "y");
  std::vector<T> in_place = layer.v;
  DoraForward(layer.Forward(in_place.data(), in_place.data()), space.data());
  EXPECT_TRUE(SameBits(in_place, y));

  std::vector<T> dv(layer.v.size());
  std::vector<float> dchange(layer.change.size()), dbias(layer.bias.size());
  AlignedBuffer workspace(DoraBackwardWorkspaceBytes(rows, layer.width));
  DoraBackward(layer.Backward(layer.dy.data(), dv.data(), dchange.data(), dbias.data(), false),
               workspace.data());
  ExpectGradient(
      dv, v64, [&](const auto& v) { return Dot(Magnified(layer, v, change64, bias64), dy64); },
      kTolerance<T>, "dv");
  ExpectGradient(
      dchange, change64, [&](const auto& d) { return Dot(Magnified(layer, v64, d, bias64), dy64); },
      1e-4, "d change");
  ExpectGradient(
      dbias, bias64, [&](const auto& b) { return Dot(Magnified(layer, v64, change64, b), dy64); },
      1e-4, "d bias");

  // Again, in place and added to.
  const std::vector<float> once = dchange, once_bias = dbias;
  std::vector<T> gradient = layer.dy;
  DoraBackward(layer.Backward(gradient.data(), gradient.data(), dchange.data(), dbias.data(), true),
               workspace.data());
  EXPECT_TRUE(SameBits(gradient, dv));
  for (size_t i = 0; i < once.size(); ++i) {
    ASSERT_FLOAT_EQ(dchange[i], 2 * once[i]);
    ASSERT_FLOAT_EQ(dbias[i], 2 * once_bias[i]);
  }
}

TEST_P(Dora, MatchesTheFormula) {
  for (const int64_t rows : {1, 5, 70}) {
    CheckDora<float>(rows);
    CheckDora<bf16>(rows);
    CheckDora<f16>(rows);
  }
}

TEST_P(Dora, WeightsThatAreAllZeroAreNoNaN) {
  DoraLayer<float> layer(3);
  layer.norms[0][2] = layer.norms[0][DoraLayer<float>::kFirst + 2] = 0;
  std::vector<float> y(layer.v.size()), dv(layer.v.size());
  std::vector<float> dchange(layer.change.size()), dbias(layer.bias.size());
  AlignedBuffer space(DoraForwardWorkspaceBytes(layer.width));
  DoraForward(layer.Forward(layer.v.data(), y.data()), space.data());
  AlignedBuffer workspace(DoraBackwardWorkspaceBytes(3, layer.width));
  DoraBackward(layer.Backward(layer.dy.data(), dv.data(), dchange.data(), dbias.data(), false),
               workspace.data());
  EXPECT_EQ(y[2], layer.v[2]);
  EXPECT_EQ(dv[2], layer.dy[2]);
  EXPECT_EQ(dchange[2], 0);
}

TEST_P(Dora, SameBitsOnAnyThreadCount) {
  constexpr int64_t kRows = 300;
  DoraLayer<float> layer(kRows);
  const DoraWeights<float> weights(300, 90, 6, /*transposed=*/true);
  const DoraWeights<float> turned(300, 90, 6, /*transposed=*/false);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    std::vector<float> y(layer.v.size()), dv(layer.v.size()), norms(600), turned_norms(600);
    std::vector<float> all(layer.change.size()), dbias(layer.bias.size());
    AlignedBuffer space(DoraForwardWorkspaceBytes(layer.width));
    DoraForward(layer.Forward(layer.v.data(), y.data()), space.data());
    AlignedBuffer workspace(DoraBackwardWorkspaceBytes(kRows, layer.width));
    DoraBackward(layer.Backward(layer.dy.data(), dv.data(), all.data(), dbias.data(), false),
                 workspace.data());
    DoraNorms(weights.Args(norms.data()));
    DoraNorms(turned.Args(turned_norms.data()));
    for (const auto* part : {&y, &dv, &norms, &turned_norms, &dbias}) {
      all.insert(all.end(), part->begin(), part->end());
    }
    results.push_back(all);
  }
  EXPECT_TRUE(SameBits(results[0], results[1]));
  EXPECT_TRUE(SameBits(results[0], results[2]));
}

}  // namespace
}  // namespace milepost::kernels
