#include "coordinator/core/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace milepost::coordinator {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

CurveReport At(int64_t step, double value) {
  return {.step = step, .value = value, .seconds = static_cast<uint32_t>(1000 + step)};
}

// What the points of a curve have to be, in doubles, of all reports that still count.
void ExpectSame(const std::vector<CurvePoint>& points, const std::vector<CurveReport>& reports) {
  size_t next = 0;
  for (const CurvePoint& point : points) {
    double sum = 0, min = INFINITY, max = -INFINITY;
    uint32_t finite = 0, others = 0;
    for (; next < reports.size() && reports[next].step <= point.step; ++next) {
      const double value = reports[next].value;
      if (!std::isfinite(value)) {
        ++others;
        continue;
      }
      ++finite;
      sum += value;
      min = std::min(min, value);
      max = std::max(max, value);
    }
    ASSERT_GT(next, 0u);
    EXPECT_EQ(reports[next - 1].step, point.step);
    EXPECT_EQ(reports[next - 1].seconds, point.seconds);
    EXPECT_EQ(finite, point.reports);
    EXPECT_EQ(others, point.not_finite);
    if (finite == 0) {
      EXPECT_TRUE(std::isnan(point.mean) && std::isnan(point.min) && std::isnan(point.max));
      continue;
    }
    EXPECT_NEAR(sum / finite, point.mean, 2e-6 * std::max(std::abs(min), std::abs(max)));
    EXPECT_EQ(static_cast<float>(min), point.min);
    EXPECT_EQ(static_cast<float>(max), point.max);
  }
  EXPECT_EQ(next, reports.size());
}

TEST(CurveTest, EachReportIsAPointAsLongAsThereIsRoom) {
  Curve curve(8);
  for (int step = 10; step <= 80; step += 10) curve.Add(At(step, 1.0 / step));
  ASSERT_EQ(curve.points().size(), 8u);
  EXPECT_EQ(curve.points()[2].step, 30);
  EXPECT_EQ(curve.points()[2].mean, 1.0F / 30);
  curve.Add(At(90, 1));
  ASSERT_EQ(curve.points().size(), 5u);
  EXPECT_EQ(curve.points()[0].step, 20);
  EXPECT_EQ(curve.points()[4].step, 90);
}

TEST(CurveTest, IsTheSameAsAllReportsWhateverComes) {
  std::mt19937 random(7);
  for (const size_t capacity : {4, 5, 8, 100}) {
    for (int round = 0; round < 20; ++round) {
      Curve curve(capacity);
      std::vector<CurveReport> reports;
      int64_t step = 0;
      for (int i = 0; i < 3000; ++i) {
        step += 1 + static_cast<int64_t>(random() % 3);
        const double value = std::exp(static_cast<double>(random() % 1000) / 100 - 5);
        reports.push_back(At(step, random() % 50 == 0 ? kNan : value));
        curve.Add(reports.back());
        ASSERT_LE(curve.points().size(), capacity);
        if (random() % 1000 != 0) continue;
        step = static_cast<int64_t>(random() % static_cast<uint64_t>(step));
        curve.CutAfter(step);
        // Some of what was before may have gone with what was after.
        const int64_t last = curve.points().empty() ? 0 : curve.points().back().step;
        ASSERT_LE(last, step);
        std::erase_if(reports, [&](const CurveReport& report) { return report.step > last; });
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSame(curve.points(), reports));
    }
  }
}

TEST(CurveTest, IsFineAllAlongHoweverLongItGets) {
  constexpr size_t kCapacity = 100;
  Curve curve(kCapacity);
  for (int64_t step = 1; step <= 1'000'000; ++step) {
    curve.Add(At(step, step == 123'456 ? 1000 : 1));
    ASSERT_GE(curve.points().size(), std::min<size_t>(static_cast<size_t>(step), kCapacity / 2));
  }
  EXPECT_EQ(curve.points().back().step, 1'000'000);
  int64_t before = 0, widest = 0;
  float highest = 0;
  for (const CurvePoint& point : curve.points()) {
    widest = std::max(widest, point.step - before);
    before = point.step;
    highest = std::max(highest, point.max);
  }
  EXPECT_LE(widest, 2 * 1'000'000 / static_cast<int64_t>(kCapacity));
  EXPECT_EQ(highest, 1000) << "a spike stays";
}

// After a job of a million steps went back to its beginning.
TEST(CurveTest, IsAsFineAfterACutAsIfNothingHadBeen) {
  Curve curve(100);
  for (int64_t step = 1; step <= 1'000'000; ++step) curve.Add(At(step, 1));
  curve.CutAfter(0);
  EXPECT_TRUE(curve.points().empty());
  for (int64_t step = 1; step <= 100; ++step) curve.Add(At(step, 1));
  EXPECT_EQ(curve.points().size(), 100u);
}

// A mean in floats would stay where it was after the first half.
TEST(CurveTest, TheMeanOfManyReportsIsExact) {
  Curve curve(4);
  constexpr int64_t kStride = 4096;
  for (int64_t i = 0; i < 4 * kStride; ++i) {
    curve.Add(At(i + 1, i % kStride < kStride / 2 ? 1 : 1.00002));
  }
  ASSERT_EQ(curve.points().size(), 4u);
  for (const CurvePoint& point : curve.points()) EXPECT_NEAR(point.mean, 1.00001, 1.5e-7);
}

TEST(CurveTest, WhatWasReportedBeforeChangesNothing) {
  Curve curve(10);
  curve.Add(At(1, 1));
  curve.Add(At(5, 5));
  curve.MarkStored();
  curve.Add(At(5, 50));
  curve.Add(At(3, 30));
  EXPECT_FALSE(curve.changed());
  ASSERT_EQ(curve.points().size(), 2u);
  EXPECT_EQ(curve.points()[1].max, 5);
}

TEST(CurveTest, ValuesThatAreNoNumbersAreCountedApart) {
  Curve curve(4);
  const double values[] = {1, kNan, 3, INFINITY, -INFINITY, 1e300, kNan, kNan};
  for (int i = 0; i < 8; ++i) curve.Add(At(i + 1, values[i]));
  ASSERT_EQ(curve.points().size(), 4u);
  const std::vector<CurvePoint>& points = curve.points();
  EXPECT_EQ(points[0].mean, 1);
  EXPECT_EQ(points[0].not_finite, 1u);
  EXPECT_EQ(points[1].mean, 3);
  EXPECT_EQ(points[1].not_finite, 1u);
  EXPECT_EQ(points[2].reports, 0u);
  EXPECT_EQ(points[2].not_finite, 2u) << "too large for a point";
  EXPECT_TRUE(std::isnan(points[3].mean));
}

TEST(CurveTest, TellsWhatIsNotStoredYet) {
  Curve curve(10);
  for (int step = 1; step <= 6; ++step) curve.Add(At(step, 1));
  EXPECT_EQ(curve.changed_from(), 0u);
  curve.MarkStored();
  EXPECT_FALSE(curve.changed());
  curve.Add(At(7, 1));
  EXPECT_EQ(curve.changed_from(), 6u);
  curve.CutAfter(3);
  EXPECT_EQ(curve.changed_from(), 3u);
  curve.MarkStored();
  for (int step = 4; step <= 11; ++step) curve.Add(At(step, 1));
  EXPECT_EQ(curve.changed_from(), 0u) << "merged";
}

TEST(CurveTest, GoesOnFromWhatWasStored) {
  Curve curve(20), again(20);
  for (int step = 1; step <= 333; ++step) curve.Add(At(step, step));
  for (const CurvePoint& point : curve.points()) EXPECT_TRUE(again.Restore(point));
  EXPECT_FALSE(again.Restore(curve.points().back()));
  EXPECT_FALSE(again.Restore({.step = 1000})) << "of no report";
  EXPECT_FALSE(again.Restore({.step = 1000, .reports = 1, .mean = NAN}));
  for (int step = 334; step <= 700; ++step) {
    curve.Add(At(step, step));
    again.Add(At(step, step));
  }
  ASSERT_EQ(curve.points().size(), again.points().size());
  for (size_t i = 0; i < curve.points().size(); ++i) {
    EXPECT_EQ(curve.points()[i].step, again.points()[i].step);
    EXPECT_FLOAT_EQ(curve.points()[i].mean, again.points()[i].mean);
  }
}

TEST(CurveTest, ThinnedItHasAtMostSoManyPointsOfTheSameReports) {
  Curve curve(100);
  std::vector<CurveReport> reports;
  for (int step = 1; step <= 77; ++step) {
    reports.push_back(At(step, step % 10 == 0 ? kNan : step));
    curve.Add(reports.back());
  }
  for (size_t most = 1; most <= 100; ++most) {
    const std::vector<CurvePoint> thin = Thinned(curve.points(), most);
    EXPECT_LE(thin.size(), most);
    ASSERT_NO_FATAL_FAILURE(ExpectSame(thin, reports));
  }
}

}  // namespace
}  // namespace milepost::coordinator
