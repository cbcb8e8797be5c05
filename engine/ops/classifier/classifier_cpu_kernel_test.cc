#include "engine/ops/classifier/classifier_cpu_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/kernels/cpu/testing.h"

namespace milepost::kernels {
namespace {

class Classifier : public OnEveryTarget {};
MP_ON_EVERY_TARGET(Classifier);

double Loss(const std::vector<double>& logits, const std::vector<int32_t>& targets) {
  const size_t vocabulary = logits.size() / targets.size();
  double loss = 0;
  for (size_t row = 0; row < targets.size(); ++row) {
    if (targets[row] < 0) continue;
    const double* p = &logits[row * vocabulary];
    double sum = 0;
    for (size_t i = 0; i < vocabulary; ++i) sum += std::exp(p[i] - p[targets[row]]);
    loss += std::log(sum);
  }
  return loss;
}

int64_t Correct(const std::vector<double>& logits, const std::vector<int32_t>& targets) {
  const auto vocabulary = static_cast<int64_t>(logits.size() / targets.size());
  int64_t correct = 0;
  for (size_t row = 0; row < targets.size(); ++row) {
    const auto begin = logits.begin() + static_cast<int64_t>(row) * vocabulary;
    correct += std::max_element(begin, begin + vocabulary) - begin == targets[row] ? 1 : 0;
  }
  return correct;
}

template <typename T>
void CheckLossAndGradient(int64_t rows, int64_t vocabulary) {
  SCOPED_TRACE(testing::Message() << rows << "x" << vocabulary << " bytes " << sizeof(T));
  constexpr float kScale = 0.125f;
  const auto logits = RandomVector<T>(rows * vocabulary, 1, 3.0f);
  std::vector<int32_t> targets(rows);
  int64_t valid = 0;
  for (int64_t row = 0; row < rows; ++row) {
    targets[row] = row % 5 == 4 ? -1 : static_cast<int32_t>(row * 7 % vocabulary);
    valid += targets[row] >= 0;
  }
  const double want = Loss(ToDouble(logits), targets);

  AlignedBuffer workspace(ClassifierWorkspaceBytes(rows));
  LossSum only{.loss = 10.0, .targets = 1}, both;
  ClassifierForward(logits.data(), targets.data(), rows, vocabulary, workspace.data(), &only);
  auto gradient = logits;
  ClassifierForwardBackward(gradient.data(), targets.data(), rows, vocabulary, kScale,
                            workspace.data(), &both);
  EXPECT_NEAR(both.loss, want, 1e-6 * want + 1e-6);
  EXPECT_DOUBLE_EQ(only.loss, 10.0 + both.loss);
  EXPECT_EQ(both.targets, valid);
  EXPECT_EQ(only.targets, 1 + valid);
  EXPECT_EQ(both.correct, 0);
  EXPECT_EQ(only.correct, Correct(ToDouble(logits), targets));
  if (vocabulary == 1) return;  // the gradient is zero
  const auto loss = [&](const auto& x) { return kScale * Loss(x, targets); };
  ExpectGradient(gradient, ToDouble(logits), loss, kTolerance<T>, "logits");
  for (int64_t i = 0; i < rows * vocabulary; ++i) {
    if (targets[i / vocabulary] >= 0) continue;
    ASSERT_EQ(ToFloat(gradient[i]), 0.0f);
  }
}

TEST_P(Classifier, MatchesDefinition) {
  for (int64_t rows : {1, 3, 17}) {
    for (int64_t vocabulary : {1, 7, 127, 256, 1003}) {
      CheckLossAndGradient<float>(rows, vocabulary);
      CheckLossAndGradient<bf16>(rows, vocabulary);
      CheckLossAndGradient<f16>(rows, vocabulary);
    }
  }
}

TEST_P(Classifier, TheFirstOfEqualLogitsIsTheAnswer) {
  const std::vector<float> logits = {1, 5, 5, 5, 1, 5, 2, 2, 2};
  const std::vector<int32_t> targets = {1, 2, 0};
  AlignedBuffer workspace(ClassifierWorkspaceBytes(3));
  LossSum sum;
  ClassifierForward(logits.data(), targets.data(), 3, 3, workspace.data(), &sum);
  EXPECT_EQ(sum.correct, 2);
}

TEST_P(Classifier, LargeLogitsStayFinite) {
  std::vector<float> logits = {3e38f, -3e38f, 1000.0f};
  const int32_t target = 0;
  AlignedBuffer workspace(ClassifierWorkspaceBytes(1));
  LossSum sum;
  ClassifierForwardBackward(logits.data(), &target, 1, 3, 1.0f, workspace.data(), &sum);
  EXPECT_EQ(sum.loss, 0.0);
  for (float value : logits) EXPECT_EQ(value, 0.0f);
}

TEST_P(Classifier, NonFiniteLogitsShow) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (int64_t where : {0, 40, 98}) {
      auto logits = RandomVector<float>(99, 2);
      logits[where] = bad;
      const int32_t target = 5;
      AlignedBuffer workspace(ClassifierWorkspaceBytes(1));
      LossSum sum;
      ClassifierForwardBackward(logits.data(), &target, 1, 99, 1.0f, workspace.data(), &sum);
      EXPECT_FALSE(std::isfinite(sum.loss)) << bad << " at " << where;
      EXPECT_TRUE(std::isnan(logits[where]));
    }
  }
}

TEST_P(Classifier, SameBitsOnAnyThreadCount) {
  constexpr int64_t kRows = 57, kVocabulary = 500;
  std::vector<int32_t> targets(kRows, 3);
  std::vector<std::vector<float>> gradients;
  std::vector<double> losses;
  for (int threads : {1, 2, 3}) {
    const ThreadCount scope(threads);
    gradients.push_back(RandomVector<float>(kRows * kVocabulary, 3));
    AlignedBuffer workspace(ClassifierWorkspaceBytes(kRows));
    LossSum sum;
    ClassifierForwardBackward(gradients.back().data(), targets.data(), kRows, kVocabulary, 0.5f,
                              workspace.data(), &sum);
    losses.push_back(sum.loss);
  }
  for (int i : {1, 2}) {
    EXPECT_EQ(losses[i], losses[0]);
    EXPECT_TRUE(SameBits(gradients[i], gradients[0]));
  }
}

}  // namespace
}  // namespace milepost::kernels
