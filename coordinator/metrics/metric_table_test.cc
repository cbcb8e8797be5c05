#include "coordinator/metrics/metric_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace milepost::coordinator {
namespace {

// https://prometheus.io/docs/practices/naming
TEST(MetricTableTest, NamesFollowTheRules) {
  const std::regex good("milepost(_[a-z0-9]+)+");
  std::set<std::string> names;
  for (const MetricInfo& info : AllMetrics()) {
    const std::string name(info.name);
    EXPECT_TRUE(std::regex_match(name, good)) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(absl::EndsWith(name, "_total"), info.kind == MetricKind::kCounter) << name;
    if (info.kind == MetricKind::kHistogram) {
      EXPECT_TRUE(absl::EndsWith(name, "_seconds")) << name;
    }
    EXPECT_TRUE(absl::EndsWith(info.help, ".")) << name;
    EXPECT_EQ(&InfoOf(info.metric), &info);
  }
}

// Tests run in the source folder.
std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(MetricTableTest, TheDocsHaveThisTable) {
  EXPECT_TRUE(absl::StrContains(ReadText("docs/operate/metrics.md"), MetricsAsMarkdown()))
      << "docs/operate/metrics.md must have this table:\n"
      << MetricsAsMarkdown();
}

std::set<std::string> MatchesOf(const std::string& pattern, const std::string& text) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

TEST(MonitoringTest, RulesAskForMetricsThatThereAre) {
  std::set<std::string> known;
  for (const MetricInfo& info : AllMetrics()) {
    known.insert(std::string(info.name));
    if (info.kind == MetricKind::kHistogram) known.insert(absl::StrCat(info.name, "_bucket"));
  }
  const std::string rules =
      ReadText("deploy/monitoring/alerts.yaml") + ReadText("deploy/monitoring/recording.yaml");
  const std::set<std::string> asked = MatchesOf("(milepost_[a-z0-9_]+)", rules);
  ASSERT_GT(asked.size(), 20u);
  for (const std::string& name : asked) EXPECT_TRUE(known.contains(name)) << name;
}

TEST(MonitoringTest, EachAlertIsTestedAndHasARunbook) {
  const std::string alerts = ReadText("deploy/monitoring/alerts.yaml");
  const std::string tests = ReadText("deploy/monitoring/alerts_test.yaml");
  const std::string docs = ReadText("docs/operate/metrics.md");
  const std::set<std::string> names = MatchesOf("alert: ([A-Za-z]+)", alerts);
  ASSERT_GT(names.size(), 10u);
  for (const std::string& name : names) {
    const std::string anchor = absl::AsciiStrToLower(name);
    EXPECT_TRUE(absl::StrContains(alerts, "docs/operate/metrics.md#" + anchor + "\n")) << name;
    EXPECT_TRUE(absl::StrContains(docs, "<a id=\"" + anchor + "\"></a>`" + name)) << name;
    EXPECT_TRUE(absl::StrContains(tests, "alertname: " + name + "\n        exp_alerts")) << name;
  }
}

TEST(MonitoringTest, RulesHoldForPromtool) {
  if (std::system("promtool --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no promtool (scripts/bootstrap --monitoring)";
  }
  EXPECT_EQ(std::system("promtool test rules deploy/monitoring/alerts_test.yaml"), 0);
  EXPECT_EQ(std::system("promtool check config deploy/monitoring/prometheus.yaml"), 0);
}

}  // namespace
}  // namespace milepost::coordinator
