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
class PartsTest {
 public:
  PartsTest(int64_t vocabulary, bool numbered)
      : each_((vocabulary + 1) / 2 + 5),
        stride_((each_ + 7) / 8 * 8),
        targets_(Targets(vocabulary)),
        numbers_(numbered ? Numbers() : std::vector<int32_t>{}),
        device_targets_(targets_),
        device_numbers_(Numbers()) {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      logits_.push_back(RandomVector<T>(kRows * stride_, 3 + rank, 3));
      if (targets_[6] / each_ == rank) {
        logits_[rank][6 * stride_ + targets_[6] % each_] = FromFloat<T>(40.0f);  // right
      }
      const int64_t real = std::clamp<int64_t>(vocabulary - rank * each_, 0, each_);
      columns_[rank] = {rank * each_, each_, real, stride_};
    }
  }

  void MakeParts() {
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      ClassifierParts(logits_[rank].data(), CpuRows(), columns_[rank], &want_[rank * kRows]);
      HostArray<T> x(logits_[rank]);
      const absl::Status ran =
          RunParts(x.data(), Rows(), columns_[rank], parts_.data() + rank * kRows, kRunClassifier);
      ASSERT_TRUE(ran.ok()) << ran;
    }
    const std::vector<LogitsPart> got = parts_.values();
    for (size_t i = 0; i < want_.size(); ++i) {
      EXPECT_EQ(got[i].max, want_[i].max) << i;
      EXPECT_NEAR(got[i].sum, want_[i].sum, 1e-5 * want_[i].sum) << i;
      EXPECT_EQ(got[i].target, want_[i].target) << i;
      EXPECT_EQ(got[i].first, want_[i].first) << i;
    }
  }

  // The losses' rows are all, in order.
  void TestLoss() {
    std::vector<int32_t> all = targets_;
    for (size_t row = 0; row < numbers_.size(); ++row) all[numbers_[row]] = targets_[row];
    LossSum loss;
    ClassifierPartsLoss(all.data(), {want_.data(), kRanks, kRows, each_}, true, &loss);
    EXPECT_GE(loss.correct, 1);
    HostArray<int32_t> of_all(all);
    HostArray<double> sums(std::vector<double>{1, 2, 3});
    RunKernel(PartsLossKernel{of_all.data(), Gathered(), true, /*accumulate=*/true, sums.data()});
    EXPECT_NEAR(sums.values()[0], 1 + loss.loss, 1e-5 * loss.loss);
    EXPECT_EQ(sums.values()[1], 2 + static_cast<double>(loss.targets));
    EXPECT_EQ(sums.values()[2], 3 + static_cast<double>(loss.correct));
  }

  void TestGradient() {
    HostArray<float> scale(std::vector<float>{kScale});
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      std::vector<T> expected = logits_[rank];
      ClassifierPartsGradient<T>(expected.data(), CpuRows(), columns_[rank],
                                 {want_.data(), kRanks, kRows, each_}, kScale, expected.data());
      HostArray<T> x(logits_[rank]), gradient(logits_[rank]);
      for (HostArray<T>* to : {&gradient, &x}) {  // apart, then in place
        RunKernel(PartsGradientKernel<T>{x.data(), Rows(), columns_[rank], Gathered(), scale.data(),
                                         to->data()});
        ExpectNear(to->values(), expected, sizeof(T) == 4 ? 2e-5 : kTolerance<T>,
                   sizeof(T) == 4 ? 1e-7 : 1e-4, "gradient");
      }
    }
  }

 private:
  static constexpr int64_t kRows = 9, kRanks = 2;
  static constexpr float kScale = 0.25f;

  static std::vector<int32_t> Targets(int64_t vocabulary) {
    std::vector<int32_t> targets;
    for (int64_t row = 0; row < kRows; ++row) {
      targets.push_back(row == 2 ? -1 : static_cast<int32_t>(row * 17 % vocabulary));
    }
    targets[6] = static_cast<int32_t>(vocabulary - 1);
    return targets;
  }
  static std::vector<int32_t> Numbers() {
    std::vector<int32_t> numbers;
    for (int64_t row = 0; row < kRows; ++row) {
      numbers.push_back(static_cast<int32_t>((row * 4 + 3) % kRows));
    }
    return numbers;
  }
  kernels::LogitsRows CpuRows() const {
    return {targets_.data(), kRows, numbers_.empty() ? nullptr : numbers_.data()};
  }
  LogitsRows Rows() {
    return {device_targets_.data(), kRows, numbers_.empty() ? nullptr : device_numbers_.data()};
  }
  GatheredParts Gathered() { return {parts_.data(), kRanks, kRows, each_}; }

  const int64_t each_, stride_;  // columns of a rank, and how far apart its rows lie
  const std::vector<int32_t> targets_, numbers_;
  HostArray<int32_t> device_targets_, device_numbers_;
  std::vector<std::vector<T>> logits_;  // of each rank
  LogitsColumns columns_[kRanks];
  std::vector<LogitsPart> want_ = std::vector<LogitsPart>(kRanks * kRows);
  HostArray<LogitsPart> parts_{kRanks * kRows};
};

template <typename T>
void TestParts(int64_t vocabulary, bool numbered) {
  SCOPED_TRACE(testing::Message() << vocabulary << (numbered ? " numbered" : ""));
  PartsTest<T> test(vocabulary, numbered);
  test.MakeParts();
  if (testing::Test::HasFatalFailure()) return;
  test.TestLoss();
  test.TestGradient();
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
