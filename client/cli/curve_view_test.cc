#include "client/cli/curve_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/format.h"
#include "client/cli/output.h"

namespace milepost::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

v1::Curve MakeCurve(const std::string& name, const std::vector<std::pair<int64_t, float>>& points) {
  v1::Curve curve;
  curve.set_name(name);
  for (const auto& [step, value] : points) {
    curve.add_steps(step);
    curve.add_means(value);
    curve.add_mins(value);
    curve.add_maxs(value);
    curve.add_seconds(0);
  }
  return curve;
}

v1::JobCurves SomeCurves() {
  v1::JobCurves curves;
  *curves.add_curves() = MakeCurve("train_loss", {{10, 9.5F}, {20, 4.25F}, {30, 3.0F}});
  *curves.add_curves() = MakeCurve("validation_loss", {{15, 5.5F}});
  *curves.add_curves() = MakeCurve("lr", {{10, 1e-4F}, {20, 3e-4F}, {30, 2e-4F}});
  *curves.add_curves() = MakeCurve("mfu", {{10, 0.5F}, {30, 0.25F}});
  return curves;
}

std::vector<std::string> LinesOf(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

TEST(CurveViewTest, ATableHasARowForEachPoint) {
  EXPECT_EQ(CurveTable(SomeCurves()),
            "STEP  TRAIN_LOSS  VALIDATION_LOSS  LR        MFU\n"
            "10    9.5000      -                1.00e-04  50.0%\n"
            "20    4.2500      5.5000           3.00e-04  -\n"
            "30    3.0000      -                2.00e-04  25.0%\n");
  EXPECT_EQ(CurveTable(v1::JobCurves()), "STEP\n");
}

TEST(CurveViewTest, WhatIsNotFiniteIsToldInTheTable) {
  v1::JobCurves curves;
  v1::Curve* loss = curves.add_curves();
  *loss = MakeCurve("train_loss", {{1, 2.0F}, {2, 3.0F}, {3, NAN}});
  for (const int64_t count : {0, 5, 7}) loss->add_not_finite(count);
  EXPECT_EQ(CurveTable(curves),
            "STEP  TRAIN_LOSS\n"
            "1     2.0000\n"
            "2     3.0000 (5 NaN)\n"
            "3     NaN\n");
}

TEST(CurveViewTest, ValuesHaveTheFormThatTheirKindWants) {
  EXPECT_EQ(CurveValueText("train_loss/lm", 2.31399), "2.3140");
  EXPECT_EQ(CurveValueText("train_loss", 3e17), "3.00e+17");
  EXPECT_EQ(CurveValueText("lr", 3e-4), "3.00e-04");
  EXPECT_EQ(CurveValueText("tokens_per_second", 31'234), "31.2k");
  EXPECT_EQ(CurveValueText("loss_scale", 65'536), "65.5k");
  EXPECT_EQ(CurveValueText("validation_accuracy/lm", 0.345), "34.5%");
  EXPECT_EQ(CurveValueText("step_seconds", 0.12345), "0.1235");
  EXPECT_EQ(CurveValueText("grad_norm", INFINITY), "NaN");
}

TEST(CurveViewTest, CurvesAreChosenByName) {
  const v1::JobCurves curves = SomeCurves();
  const auto chosen = Chosen(curves, "jobs/7", {"mfu", "train_loss"});
  ASSERT_TRUE(chosen.ok());
  ASSERT_THAT(chosen->curves(), SizeIs(2));
  EXPECT_EQ(chosen->curves(0).name(), "mfu");
  const absl::Status unknown = Chosen(curves, "jobs/7", {"train_los"}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(unknown.message()),
      AllOf(HasSubstr("jobs/7 has no curve 'train_los', but train_loss, "),
            HasSubstr("did you mean 'train_loss'?"), HasSubstr("validation_loss, lr, mfu")));
  EXPECT_THAT(std::string(Chosen({}, "jobs/7", {"lr"}).status().message()),
              HasSubstr("reported nothing yet"));
  const v1::JobCurves foremost = Foremost(curves);
  ASSERT_THAT(foremost.curves(), SizeIs(3));
  EXPECT_EQ(foremost.curves(2).name(), "lr");
}

TEST(CurveViewTest, APlotInAsciiGoesFromCornerToCorner) {
  const std::string plot =
      CurvePlot("train_loss", {{"jobs/7", MakeCurve("train_loss", {{0, 4}, {90, 1}})}},
                {.columns = 40, .rows = 4, .unicode = false});
  EXPECT_EQ(plot,
            "train_loss\n"
            "  4.0000 |*****\n"
            "         |     **********\n"
            "  2.0000 |               **********\n"
            "  1.0000 |                         *****\n"
            "          step 0                      90\n");
}

TEST(CurveViewTest, APlotInDotsHasTheSameAxes) {
  const std::string plot =
      CurvePlot("train_loss", {{"jobs/7", MakeCurve("train_loss", {{0, 4}, {90, 1}})}},
                {.columns = 40, .rows = 4, .unicode = true});
  const std::vector<std::string> lines = LinesOf(plot);
  ASSERT_THAT(lines, SizeIs(6));
  EXPECT_THAT(lines[1], StartsWith("  4.0000 \u2502\u2809\u2812\u2812\u2824\u2824\u28c0\u28c0"));
  EXPECT_THAT(lines[4], HasSubstr("\u28c0"));
  for (const std::string& line : lines) EXPECT_LE(ColumnsOf(line), 40u) << line;
}

TEST(CurveViewTest, ASpikeShowsThoughTheMeanHidesIt) {
  v1::Curve curve = MakeCurve("grad_norm", {{1, 1}, {2, 1}, {3, 1}});
  curve.set_maxs(1, 100);
  const std::vector<std::string> lines = LinesOf(
      CurvePlot("grad_norm", {{"jobs/7", curve}}, {.columns = 50, .rows = 8, .unicode = false}));
  EXPECT_THAT(lines[1], StartsWith("     100 |"));
  for (int row = 1; row <= 8; ++row) EXPECT_THAT(lines[row], HasSubstr("*")) << row;
}

TEST(CurveViewTest, ASteepLineHasNoGaps) {
  const PlotSize size = {.columns = 40, .rows = 8, .unicode = false};
  for (const auto& points :
       {std::vector<std::pair<int64_t, float>>{{0, 1}, {10, 1}, {11, 9}, {29, 9}},
        std::vector<std::pair<int64_t, float>>{{0, 9}, {1000, 1}, {1001, 9}}}) {
    const std::vector<std::string> lines =
        LinesOf(CurvePlot("grad_norm", {{"jobs/7", MakeCurve("grad_norm", points)}}, size));
    for (size_t row = 1; row <= 8; ++row) {
      EXPECT_THAT(lines[row].substr(12), HasSubstr("*")) << lines[row];
    }
  }
}

TEST(CurveViewTest, SeveralJobsHaveLettersAndALegend) {
  const std::vector<PlottedCurve> curves = {
      {"jobs/7", MakeCurve("train_loss", {{1, 4}, {100, 2}})},
      {"jobs/8", MakeCurve("train_loss", {{1, 4}, {50, 3}, {60, NAN}})}};
  v1::Curve bad = curves[1].curve;
  for (const int64_t count : {0, 0, 12}) bad.add_not_finite(count);
  const std::string plot = CurvePlot("train_loss", {curves[0], {"jobs/8", bad}}, {});
  EXPECT_THAT(plot, AllOf(HasSubstr("aaa"), HasSubstr("bbb"), HasSubstr("\na  jobs/7\n"),
                          HasSubstr("\nb  jobs/8: 12 reports are NaN or infinite, after step 50 up "
                                    "to step 60\n")));
  EXPECT_THAT(plot, Not(HasSubstr("\u2502"))) << "letters need no dots";
}

TEST(CurveViewTest, WhatCannotBeDrawnIsNot) {
  EXPECT_EQ(CurvePlot("lr", {{"jobs/7", MakeCurve("lr", {})}}, {}), "lr\n");
  v1::Curve bad = MakeCurve("train_loss", {{5, NAN}});
  bad.set_unit("nats");
  bad.add_not_finite(1);
  EXPECT_EQ(CurvePlot("train_loss", {{"jobs/7", bad}}, {}),
            "train_loss, nats\n"
            "jobs/7: 1 report is NaN or infinite, after step 0 up to step 5\n");
  // A single point, and a flat curve.
  for (const auto& points : {std::vector<std::pair<int64_t, float>>{{5, 1}},
                             std::vector<std::pair<int64_t, float>>{{5, 1}, {6, 1}}}) {
    EXPECT_THAT(CurvePlot("lr", {{"jobs/7", MakeCurve("lr", points)}},
                          {.columns = 1, .rows = 1, .unicode = false}),
                HasSubstr("*"));
  }
}

TEST(CurveViewTest, AsJsonNumbersAreShortAndNaNIsNull) {
  v1::JobCurves curves;
  *curves.add_curves() = MakeCurve("lr", {{5, 1e-3F}, {6, NAN}});
  const std::string json = RenderMessage(curves, OutputFormat::kJson);
  EXPECT_THAT(json, AllOf(HasSubstr(" 0.001,"), HasSubstr(" null\n"), Not(HasSubstr("0.00100"))));
}

TEST(CurveViewTest, TheLocaleSaysWhatATerminalShows) {
  EXPECT_TRUE(ShowsUnicode("", "", "en_US.UTF-8"));
  EXPECT_TRUE(ShowsUnicode("", "de_DE.utf8", "C"));
  EXPECT_TRUE(ShowsUnicode("C.UTF-8", "", ""));
  EXPECT_FALSE(ShowsUnicode("C", "en_US.UTF-8", "en_US.UTF-8"));
  EXPECT_FALSE(ShowsUnicode("", "", ""));
}

}  // namespace
}  // namespace milepost::client
