#include "common/open_metrics.h"

#include <gtest/gtest.h>

namespace milepost {
namespace {

TEST(OpenMetricsTest, IsWhatPrometheusAsksFor) {
  EXPECT_TRUE(WantsOpenMetrics(
      "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
      "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"));
  EXPECT_TRUE(WantsOpenMetrics(
      "application/openmetrics-text; version=1.0.0; charset=utf-8; q=0.5, text/plain;q=0.4"));
  EXPECT_TRUE(WantsOpenMetrics("Application/OpenMetrics-Text"));
}

TEST(OpenMetricsTest, IsNotForWhoAsksForTextOrForAnything) {
  EXPECT_FALSE(WantsOpenMetrics(""));
  EXPECT_FALSE(WantsOpenMetrics("*/*"));
  EXPECT_FALSE(WantsOpenMetrics("text/plain"));
  EXPECT_FALSE(WantsOpenMetrics("application/openmetrics-text;version=2.0.0"));
  EXPECT_FALSE(WantsOpenMetrics("application/openmetrics-text;q=0"));
  EXPECT_FALSE(WantsOpenMetrics("application/openmetrics-text;q=x"));
  EXPECT_FALSE(WantsOpenMetrics("text/plain, application/openmetrics-text;q=0.9"));
}

TEST(OpenMetricsTest, NamesCountersFamiliesAndEnds) {
  EXPECT_EQ(ToOpenMetrics("# HELP a_total Some \"a\" that\\nwere.\n# TYPE a_total counter\n"
                          "a_total{of=\"# x\"} 3\n\n"
                          "# HELP b_seconds How long.\n# TYPE b_seconds histogram\n"
                          "b_seconds_bucket{le=\"+Inf\"} 1\nb_seconds_sum 0.5\nb_seconds_count 1\n"
                          "# a comment\n"),
            "# HELP a Some \\\"a\\\" that\\nwere.\n# TYPE a counter\n"
            "a_total{of=\"# x\"} 3\n"
            "# HELP b_seconds How long.\n# TYPE b_seconds histogram\n"
            "b_seconds_bucket{le=\"+Inf\"} 1\nb_seconds_sum 0.5\nb_seconds_count 1\n"
            "# EOF\n");
  EXPECT_EQ(ToOpenMetrics(""), "# EOF\n");
}

}  // namespace
}  // namespace milepost
