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

// The columns of `ranks`, with rows of `stride` elements in place.
struct DividedColumns {
  int64_t each;
  std::vector<LogitsColumns> of;

  DividedColumns(int64_t vocabulary, int64_t ranks) : each((vocabulary + ranks - 1) / ranks + 3) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t first = rank * each;
      of.push_back({first, each, std::clamp<int64_t>(vocabulary - first, 0, each), each + 2});
    }
  }
  // A rank's columns; what lies between and behind them is no logit.
  template <typename T>
  std::vector<T> Cut(const std::vector<T>& logits, int64_t vocabulary, size_t rank) const {
    const LogitsColumns& c = of[rank];
    const int64_t rows = static_cast<int64_t>(logits.size()) / vocabulary;
    std::vector<T> own(rows * c.stride, FromFloat<T>(1000.0f));
    for (int64_t i = 0; i < rows * c.count; ++i) {
      own[i / c.count * c.stride + i % c.count] =
          logits[i / c.count * vocabulary + c.first + i % c.count];
    }
    return own;
  }
};

template <typename T>
void CheckDivided(int64_t rows, int64_t vocabulary, int64_t ranks) {
  SCOPED_TRACE(testing::Message() << rows << "x" << vocabulary << " on " << ranks);
  constexpr float kScale = 0.125f;
  const auto logits = RandomVector<T>(rows * vocabulary, 1, 3.0f);
  std::vector<int32_t> targets(rows);
  for (int64_t row = 0; row < rows; ++row) {
    targets[row] = row % 5 == 4 ? -1 : static_cast<int32_t>(row * 7 % vocabulary);
  }
  const DividedColumns columns(vocabulary, ranks);
  std::vector<LogitsPart> parts(ranks * rows, {7, 7, 7, 7});
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const auto own = columns.Cut(logits, vocabulary, rank);
    ClassifierParts(own.data(), {targets.data(), rows}, columns.of[rank], &parts[rank * rows]);
  }
  const GatheredParts gathered = {parts.data(), ranks, rows, columns.each};
  LossSum sum{.loss = 10}, without;
  ClassifierPartsLoss(targets.data(), gathered, true, &sum);
  ClassifierPartsLoss(targets.data(), gathered, false, &without);
  const double want = Loss(ToDouble(logits), targets);
  EXPECT_NEAR(sum.loss, 10 + want, 1e-6 * want + 1e-6);
  EXPECT_EQ(sum.targets, rows - rows / 5);
  EXPECT_EQ(sum.correct, Correct(ToDouble(logits), targets));
  EXPECT_EQ(without.correct, 0);
  // Of whole rows the gradients have been checked.
  auto whole = logits;
  AlignedBuffer workspace(ClassifierWorkspaceBytes(rows));
  ClassifierForwardBackward(whole.data(), targets.data(), rows, vocabulary, kScale,
                            workspace.data(), &without);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const LogitsColumns& c = columns.of[rank];
    const auto expected = columns.Cut(whole, vocabulary, rank);
    const auto own = columns.Cut(logits, vocabulary, rank);
    auto apart = own, in_place = own;
    const LogitsRows all = {targets.data(), rows};
    ClassifierPartsGradient(own.data(), all, c, gathered, kScale, apart.data());
    ClassifierPartsGradient<T>(in_place.data(), all, c, gathered, kScale, in_place.data());
    EXPECT_TRUE(SameBits(apart, in_place));
    for (int64_t i = 0; i < rows * c.each; ++i) {
      const int64_t at = i / c.each * c.stride + i % c.each;
      const double value = i % c.each < c.count ? ToFloat(expected[at]) : 0.0;
      ASSERT_NEAR(ToFloat(apart[at]), value, kTolerance<T> * std::abs(value) + 1e-8) << i;
    }
    for (int64_t row = 0; row < rows; ++row) {  // behind the rank's columns: as it was
      ASSERT_EQ(ToFloat(apart[row * c.stride + c.each]), 1000.0f);
    }
  }
}

TEST_P(Classifier, RanksThatDivideTheColumnsFindTheSame) {
  for (const int64_t ranks : {1, 2, 3, 8}) {
    for (const int64_t vocabulary : {2, 7, 127, 1003}) {
      CheckDivided<float>(17, vocabulary, ranks);
      CheckDivided<bf16>(17, vocabulary, ranks);
      CheckDivided<f16>(17, vocabulary, ranks);
    }
  }
}

// Equal logits of several ranks: the first of them is the answer, whoever has it.
TEST_P(Classifier, TheFirstOfEqualLogitsOfAllRanksIsTheAnswer) {
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {{1, 5, 5, 5, 1, 5}, {5, 1, 1, 1, 5, 1},
                                                {2, 2, 2, 2, 2, 2}, {1, 1, 1, 9, 9, 9},
                                                {0, 3, 0, 4, 0, 0}, {kNan, 1, 9, 1, 1, 1}};
  const DividedColumns columns(6, 3);
  for (const std::vector<float>& row : rows) {
    for (int32_t target = 0; target < 6; ++target) {
      std::vector<LogitsPart> parts(3);
      for (int64_t rank = 0; rank < 3; ++rank) {
        const auto own = columns.Cut(row, 6, rank);
        ClassifierParts(own.data(), {&target, 1}, columns.of[rank], &parts[rank]);
      }
      LossSum divided, whole;
      ClassifierPartsLoss(&target, {parts.data(), 3, 1, columns.each}, true, &divided);
      AlignedBuffer workspace(ClassifierWorkspaceBytes(1));
      ClassifierForward(row.data(), &target, 1, 6, workspace.data(), &whole);
      EXPECT_EQ(divided.correct, whole.correct) << testing::PrintToString(row) << " at " << target;
      EXPECT_EQ(std::isfinite(divided.loss), std::isfinite(whole.loss));
    }
  }
}

// Rows that are gathered from among all: parts go to and come from their places.
TEST_P(Classifier, RowsOfPartsMayBeNumbered) {
  constexpr int64_t kAll = 9, kCount = 4, kVocabulary = 31;
  const auto logits = RandomVector<float>(kCount * kVocabulary, 5);
  const std::vector<int32_t> targets = {3, 30, 7, -1}, numbers = {1, 4, 8, 8};
  const LogitsColumns columns = {0, kVocabulary, kVocabulary, kVocabulary};
  std::vector<LogitsPart> placed(kAll), dense(kCount);
  const LogitsRows rows = {targets.data(), kCount, numbers.data()};
  ClassifierParts(logits.data(), rows, columns, placed.data());
  ClassifierParts(logits.data(), {targets.data(), kCount}, columns, dense.data());
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(placed[numbers[i]].sum, dense[i].sum);
  for (const int64_t other : {0, 2, 3, 5, 6, 7}) EXPECT_EQ(placed[other].sum, 0);
  std::vector<float> from_placed(logits.size()), from_dense(logits.size());
  ClassifierPartsGradient(logits.data(), rows, columns, {placed.data(), 1, kAll, kVocabulary}, 1.0f,
                          from_placed.data());
  ClassifierPartsGradient(logits.data(), {targets.data(), kCount}, columns,
                          {dense.data(), 1, kCount, kVocabulary}, 1.0f, from_dense.data());
  EXPECT_TRUE(SameBits(from_placed, from_dense));
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
