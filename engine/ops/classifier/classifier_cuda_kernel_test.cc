#include "engine/ops/classifier/classifier_cuda_kernel-inl.h"

#include "engine/ops/classifier/classifier_cpu_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/kernels/cuda/testing/run_kernel.h"
#include "engine/ops/classifier/label_smoothing_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

constexpr auto kRunClassifier = [](const auto& kernel) { return RunAnywhere(kernel, 4); };

// 7 rows, of which the third has no target.
template <typename T>
void TestGradient(int64_t vocabulary, float smoothing, bool padded = false) {
  SCOPED_TRACE(testing::Message() << vocabulary << " smoothing " << smoothing << padded);
  constexpr int64_t kRows = 7;
  constexpr float kScale = 0.125f;
  auto logits = RandomVector<T>(kRows * vocabulary, 1, 3);
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < kRows; ++row) {
    targets.push_back(row == 2 ? -1 : static_cast<int32_t>(row * 17 % vocabulary));
  }
  targets[6] = static_cast<int32_t>(vocabulary - 1);
  logits[vocabulary + targets[1]] = FromFloat<T>(30.0f);  // nearly certain
  LossSum loss;
  std::vector<T> want = logits;
  AlignedBuffer cpu_workspace(kernels::ClassifierWorkspaceBytes(kRows));
  loss.loss = SmoothingLoss(logits.data(), targets.data(), kRows, vocabulary, smoothing);
  ClassifierForwardBackward(want.data(), targets.data(), kRows, vocabulary, kScale,
                            cpu_workspace.data(), &loss);
  SmoothGradient(want.data(), targets.data(), kRows, vocabulary, smoothing, kScale);
  // Rows that lie apart: what is between them stays as it was.
  const int64_t stride = padded ? (vocabulary + 7) / 8 * 8 + 8 : vocabulary;
  std::vector<T> spread(kRows * stride, FromFloat<T>(7.0f)), spread_want = spread;
  for (int64_t i = 0; i < kRows * vocabulary; ++i) {
    const int64_t at = i / vocabulary * stride + i % vocabulary;
    spread[at] = logits[i];
    spread_want[at] = want[i];
  }
  HostArray<T> x(spread);
  HostArray<int32_t> t(targets);
  HostArray<float> scale(std::vector<float>{kScale});
  HostArray<double> sums(std::vector<double>{1, 2, 3});
  HostArray<RowLoss> losses(kRows);
  const ClassifierArgs<T> args = {
      x.data(),           t.data(),     kRows,       vocabulary,
      smoothing,          scale.data(), sums.data(), /*accumulate=*/true,
      padded ? stride : 0};
  const absl::Status ran = RunClassifier<true>(args, losses.data(), kRunClassifier);
  ASSERT_TRUE(ran.ok()) << ran;
  ExpectNear(x.values(), spread_want, sizeof(T) == 4 ? 1e-5 : kTolerance<T>,
             sizeof(T) == 4 ? 1e-8 : 1e-4, "gradient");
  EXPECT_NEAR(sums.values()[0], 1 + loss.loss, 2e-6 * std::abs(loss.loss) + 2e-6);
  EXPECT_EQ(sums.values()[1], 2 + static_cast<double>(loss.targets));
  EXPECT_EQ(sums.values()[2], 3);
}

template <typename T>
class ClassifierKernels : public testing::Test {};
using Types = testing::Types<float, bf16, f16>;
TYPED_TEST_SUITE(ClassifierKernels, Types);

TYPED_TEST(ClassifierKernels, GradientIsTheCpus) {
  for (const int64_t vocabulary : {2, 10, 257, 1000, 4099}) {
    TestGradient<TypeParam>(vocabulary, 0);
    TestGradient<TypeParam>(vocabulary, 0, /*padded=*/true);
  }
  TestGradient<TypeParam>(257, 0.1f);
}

TYPED_TEST(ClassifierKernels, LossAloneCountsWhatIsRight) {
  using T = TypeParam;
  constexpr int64_t kRows = 40, kVocabulary = 13;
  auto logits = RandomVector<T>(kRows * kVocabulary, 2);
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < kRows; ++row) {
    targets.push_back(row % 9 == 8 ? -1 : static_cast<int32_t>(row % kVocabulary));
    T* x = logits.data() + row * kVocabulary;
    if (row % 3 == 0 && targets[row] >= 0) x[targets[row]] = FromFloat<T>(9);
    if (row % 6 == 0) x[4] = FromFloat<T>(9);  // as large: right only where it comes behind
  }
  LossSum want;
  AlignedBuffer cpu_workspace(kernels::ClassifierWorkspaceBytes(kRows));
  ClassifierForward(logits.data(), targets.data(), kRows, kVocabulary, cpu_workspace.data(), &want);
  ASSERT_GT(want.correct, 5);
  HostArray<T> x(logits);
  HostArray<int32_t> t(targets);
  HostArray<double> sums(3);
  HostArray<RowLoss> losses(kRows);
  const ClassifierArgs<T> args = {x.data(), t.data(), kRows, kVocabulary, 0, nullptr, sums.data()};
  const absl::Status ran = RunClassifier<false>(args, losses.data(), kRunClassifier);
  ASSERT_TRUE(ran.ok()) << ran;
  EXPECT_TRUE(SameBits(x.values(), logits));
  EXPECT_NEAR(sums.values()[0], want.loss, 1e-5 * want.loss);
  EXPECT_EQ(sums.values()[1], static_cast<double>(want.targets));
  EXPECT_EQ(sums.values()[2], static_cast<double>(want.correct));
}

// Two ranks' columns, of which the second has padding: as the CPU's.
template <typename T>
void TestParts(int64_t vocabulary, bool numbered) {
  SCOPED_TRACE(testing::Message() << vocabulary << (numbered ? " numbered" : ""));
  constexpr int64_t kRows = 9, kRanks = 2;
  constexpr float kScale = 0.25f;
  const int64_t each = (vocabulary + 1) / 2 + 5, stride = (each + 7) / 8 * 8;
  std::vector<int32_t> targets, numbers;
  for (int64_t row = 0; row < kRows; ++row) {
    targets.push_back(row == 2 ? -1 : static_cast<int32_t>(row * 17 % vocabulary));
    numbers.push_back(static_cast<int32_t>((row * 4 + 3) % kRows));
  }
  targets[6] = static_cast<int32_t>(vocabulary - 1);
  std::vector<std::vector<T>> logits;
  std::vector<LogitsPart> want(kRanks * kRows);
  HostArray<int32_t> t(targets), n(numbers);
  HostArray<LogitsPart> parts(kRanks * kRows);
  LogitsColumns columns[kRanks];
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    logits.push_back(RandomVector<T>(kRows * stride, 3 + rank, 3));
    if (targets[6] / each == rank) {
      logits[rank][6 * stride + targets[6] % each] = FromFloat<T>(40.0f);  // right
    }
    columns[rank] = {rank * each, each, std::clamp<int64_t>(vocabulary - rank * each, 0, each),
                     stride};
    ClassifierParts(logits[rank].data(),
                    kernels::LogitsRows{targets.data(), kRows, numbered ? numbers.data() : nullptr},
                    columns[rank], &want[rank * kRows]);
    HostArray<T> x(logits[rank]);
    const LogitsRows rows = {t.data(), kRows, numbered ? n.data() : nullptr};
    const absl::Status ran =
        RunParts(x.data(), rows, columns[rank], parts.data() + rank * kRows, kRunClassifier);
    ASSERT_TRUE(ran.ok()) << ran;
  }
  const std::vector<LogitsPart> got = parts.values();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].max, want[i].max) << i;
    EXPECT_NEAR(got[i].sum, want[i].sum, 1e-5 * want[i].sum) << i;
    EXPECT_EQ(got[i].target, want[i].target) << i;
    EXPECT_EQ(got[i].first, want[i].first) << i;
  }
  if (numbered) {  // the losses' rows are not
    std::vector<int32_t> all(kRows);
    for (int64_t row = 0; row < kRows; ++row) all[numbers[row]] = targets[row];
    targets = all;
  }
  LossSum loss;
  ClassifierPartsLoss(targets.data(), {want.data(), kRanks, kRows, each}, true, &loss);
  EXPECT_GE(loss.correct, 1);
  const GatheredParts gathered = {parts.data(), kRanks, kRows, each};
  HostArray<int32_t> of_all(targets);
  HostArray<double> sums(std::vector<double>{1, 2, 3});
  RunKernel(PartsLossKernel{of_all.data(), gathered, true, /*accumulate=*/true, sums.data()});
  EXPECT_NEAR(sums.values()[0], 1 + loss.loss, 1e-5 * loss.loss);
  EXPECT_EQ(sums.values()[1], 2 + static_cast<double>(loss.targets));
  EXPECT_EQ(sums.values()[2], 3 + static_cast<double>(loss.correct));
  HostArray<float> scale(std::vector<float>{kScale});
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    std::vector<T> expected = logits[rank];
    const std::vector<int32_t> own = t.values();
    ClassifierPartsGradient<T>(
        expected.data(),
        kernels::LogitsRows{own.data(), kRows, numbered ? numbers.data() : nullptr}, columns[rank],
        {want.data(), kRanks, kRows, each}, kScale, expected.data());
    HostArray<T> x(logits[rank]), gradient(logits[rank]);
    const LogitsRows rows = {t.data(), kRows, numbered ? n.data() : nullptr};
    for (HostArray<T>* to : {&gradient, &x}) {  // apart, then in place
      RunKernel(PartsGradientKernel<T>{x.data(), rows, columns[rank], gathered, scale.data(),
                                       to->data()});
      ExpectNear(to->values(), expected, sizeof(T) == 4 ? 2e-5 : kTolerance<T>,
                 sizeof(T) == 4 ? 1e-7 : 1e-4, "gradient");
    }
  }
}

TYPED_TEST(ClassifierKernels, PartsAreTheCpus) {
  for (const int64_t vocabulary : {3, 10, 257, 9001}) {
    TestParts<TypeParam>(vocabulary, false);
    TestParts<TypeParam>(vocabulary, true);
  }
}

// -inf is a probability of 0; what else is not finite makes the loss a NaN.
TEST(OddLogits, WhatIsNotFinite) {
  for (const float odd : {-INFINITY, INFINITY, NAN}) {
    std::vector<float> logits(300, -INFINITY);
    logits[5] = 1;
    logits[7] = logits[8] = odd;
    HostArray<float> x(logits);
    HostArray<int32_t> t(std::vector<int32_t>{5});
    HostArray<double> sums(3);
    HostArray<RowLoss> losses(1);
    const ClassifierArgs<float> args = {x.data(), t.data(), 1, 300, 0, nullptr, sums.data()};
    ASSERT_TRUE(RunClassifier<false>(args, losses.data(), kRunClassifier).ok());
    if (odd < 0) {
      EXPECT_EQ(sums.values()[0], 0);
    } else {
      EXPECT_FALSE(std::isfinite(sums.values()[0])) << odd;
    }
  }
}

}  // namespace
}  // namespace milepost::kernels::cuda
