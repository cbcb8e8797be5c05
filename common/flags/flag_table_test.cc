#include "common/flags/flag_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/exit_codes.h"
#include "common/flags/number_range.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Values {
  std::string data_dir;
  std::string level = "info";
  double seconds = 5;
  int count = 3;
  size_t bytes = 64;
  bool loud = false, anew = false;
  std::vector<std::string> labels;
};

class Table : public FlagTable {
 public:
  explicit Table(Values* values) : FlagTable("A daemon.", "thing") {
    Required(app().add_option("--data-dir", values->data_dir, "where things are"));
    Live(app()
             .add_option("--log-level", values->level, "how much it says")
             ->check(CLI::IsMember({"info", "debug"}))
             ->capture_default_str());
    app()
        .add_option("--lease-seconds", values->seconds, "how long")
        ->check(NumberRange(0.2, 3600.0))
        ->capture_default_str();
    Live(app().add_option("--exclude-after", values->count, "how many")->capture_default_str());
    app().add_option("--log-bytes", values->bytes, "how much")->transform(CLI::AsSizeValue(false));
    app().add_flag("--loud", values->loud, "says it aloud");
    Once(app().add_flag("--anew", values->anew, "forgets"));
    app().add_option("--label", values->labels, "K=V")->delimiter(',');
  }
};

// The message; "OK" when there is none.
std::string Failure(absl::string_view yaml, const std::vector<std::string>& args = {}) {
  Values values;
  Table table(&values);
  const absl::Status status = table.ReadWith(args, yaml, "f.yaml");
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status));
  return status.ok() ? "OK" : std::string(status.message());
}

TEST(FlagTableTest, ReadsEveryKindOfFlag) {
  Values values;
  Table table(&values);
  const absl::Status status = table.ReadWith({}, R"(
# a comment
data-dir: /var/lib/thing
log-level: debug
lease-seconds: 2.5
exclude-after: 0
log-bytes: 2KiB
loud: true
label: [rack=r12, "zone=b"]
)",
                                             "f.yaml");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(values.data_dir, "/var/lib/thing");
  EXPECT_EQ(values.level, "debug");
  EXPECT_EQ(values.seconds, 2.5);
  EXPECT_EQ(values.count, 0);
  EXPECT_EQ(values.bytes, 2048u);
  EXPECT_TRUE(values.loud);
  EXPECT_THAT(values.labels, ElementsAre("rack=r12", "zone=b"));
}

TEST(FlagTableTest, CommandLineWinsAsAWhole) {
  Values values;
  Table table(&values);
  const absl::Status status = table.ReadWith(
      {"--lease-seconds", "7", "--label", "a=1", "--log-bytes=1KiB"},
      "data-dir: /d\nlease-seconds: 9\nlabel: [b=2, c=3]\nlog-bytes: 5KiB\n", "f.yaml");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(values.data_dir, "/d");
  EXPECT_EQ(values.seconds, 7);
  EXPECT_EQ(values.bytes, 1024u);
  EXPECT_THAT(values.labels, ElementsAre("a=1"));
}

TEST(FlagTableTest, NamesPlaceFieldAndRemedy) {
  const std::string base = "data-dir: /d\n";
  EXPECT_EQ(Failure(base + "lease-second: 3\n"),
            "f.yaml:2: lease-second: unknown field; did you mean 'lease-seconds'?");
  EXPECT_THAT(Failure(base + "log_level: debug\n"), HasSubstr("did you mean 'log-level'?"));
  EXPECT_THAT(Failure(base + "zzzzzzzz: 1\n"),
              HasSubstr("unknown field; expected one of data-dir"));
  EXPECT_EQ(Failure(base + "exclude-after: 1\nexclude-after: 2\n"),
            "f.yaml:3: exclude-after: given twice: keep one");
  EXPECT_EQ(Failure(base + "anew: true\n"),
            "f.yaml:2: anew: is true of one start alone: give it as --anew on the command line");
  EXPECT_EQ(Failure(base, {"--anew"}), "OK");
  EXPECT_EQ(Failure(base + "exclude-after: many\n"),
            "f.yaml:2: exclude-after: expected a whole number, got 'many'");
  EXPECT_EQ(Failure(base + "lease-seconds: x\n").substr(0, 25), "f.yaml:2: lease-seconds: ");
  EXPECT_EQ(Failure(base + "lease-seconds: 9999\n"),
            "f.yaml:2: lease-seconds: expected a number in [0.2 - 3600], got '9999'");
  EXPECT_THAT(Failure(base + "lease-seconds: .nan\n"), HasSubstr("expected a number"));
  EXPECT_THAT(Failure(base, {"--lease-seconds", "nan"}), HasSubstr("expected a number in [0.2"));
  EXPECT_THAT(Failure(base + "log-level: loud\n"), HasSubstr("f.yaml:2: log-level: loud not in"));
  EXPECT_EQ(Failure(base + "lease-seconds:\n"),
            "f.yaml:2: lease-seconds: expected a value, got nothing");
  EXPECT_EQ(Failure(base + "lease-seconds: [1, 2]\n"),
            "f.yaml:2: lease-seconds: expected a value, got a list");
  EXPECT_EQ(Failure(base + "loud: 3\n"), "f.yaml:2: loud: expected true or false, got '3'");
  EXPECT_EQ(Failure(base + "label: {a: b}\n"), "f.yaml:2: label: expected a list, got a mapping");
  EXPECT_EQ(Failure(base + "label: [[a]]\n"), "f.yaml:2: label: expected texts, got a list");
  EXPECT_EQ(Failure(base + "label: []\n"), "f.yaml:2: label: an empty list: leave the field out");
  EXPECT_EQ(Failure("- a\n"), "f.yaml:1: the file: expected fields, got a list");
  EXPECT_THAT(Failure(base + "config: other.yaml\n"), HasSubstr("config: unknown field"));
  EXPECT_THAT(Failure(base + "a: &x 1\n"), HasSubstr("f.yaml:2: anchors"));
}

TEST(FlagTableTest, SaysEveryProblemUpToTen) {
  std::string yaml = "data-dir: /d\n";
  for (int i = 0; i < 13; ++i) absl::StrAppend(&yaml, "qqqqqqqqqq", i, ": 1\n");
  const std::string failure = Failure(yaml);
  EXPECT_EQ(std::count(failure.begin(), failure.end(), '\n'), 10);
  EXPECT_THAT(failure, HasSubstr("f.yaml: and 3 more"));
}

// Whoever takes the flag away later should not find a file that never worked.
TEST(FlagTableTest, ChecksWhatTheCommandLineWinsOver) {
  EXPECT_THAT(Failure("data-dir: /d\nexclude-after: many\n", {"--exclude-after", "1"}),
              HasSubstr("f.yaml:2: exclude-after: expected a whole number"));
}

TEST(FlagTableTest, RequiredByOneOfBoth) {
  EXPECT_THAT(Failure("log-level: debug\n"), HasSubstr("--data-dir is required"));
  EXPECT_EQ(Failure("log-level: debug\n", {"--data-dir", "/d"}), "OK");
  EXPECT_EQ(Failure("data-dir: /d\n"), "OK");
  EXPECT_THAT(Failure("data-dir: /d\n", {"--log-level", "loud"}), HasSubstr("--log-level"));
  EXPECT_THAT(Failure(""), HasSubstr("--data-dir is required"));
}

TEST(FlagTableTest, ReadsTheFileThatTheCommandLineNames) {
  std::string folder = (std::filesystem::temp_directory_path() / "milepost_flags_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/thing.yaml";
  std::ofstream(path) << "data-dir: /from/file\n";
  Values values;
  Table table(&values);
  const char* argv[] = {"thing", "--config", path.c_str()};
  EXPECT_EQ(table.Parse(3, argv), std::nullopt);
  EXPECT_EQ(values.data_dir, "/from/file");
  std::ofstream(path) << "data-dirs: 1\n";
  EXPECT_EQ(table.Parse(3, argv), kExitUsage);
  std::filesystem::remove_all(folder);
  const absl::Status gone = table.Read({"--config", path});
  EXPECT_THAT(std::string(gone.message()), HasSubstr("--config: " + path));
  EXPECT_TRUE(absl::IsInvalidArgument(gone));
}

TEST(FlagTableTest, TellsWhatHasChanged) {
  Values values, later;
  Table table(&values), again(&later);
  ASSERT_TRUE(table.ReadWith({"--label", "a=1"}, "data-dir: /d\nlog-bytes: 2KiB\n", "f").ok());
  ASSERT_TRUE(again
                  .ReadWith({"--label", "a=1"},
                            "data-dir: /e\nlog-level: debug\nlog-bytes: 2048\nlabel: q", "f")
                  .ok());
  const FlagTable::Changes changes = again.ChangesSince(table);
  EXPECT_THAT(changes.live, ElementsAre("log-level"));
  EXPECT_THAT(changes.fixed, ElementsAre("data-dir"));
  const FlagTable::Changes back = table.ChangesSince(again);
  EXPECT_THAT(back.live, ElementsAre("log-level"));
  const FlagTable::Changes none = table.ChangesSince(table);
  EXPECT_THAT(none.live, IsEmpty());
  EXPECT_THAT(none.fixed, IsEmpty());
}

// A default that is written out changes nothing.
TEST(FlagTableTest, ADefaultIsNoChange) {
  Values values, later;
  Table table(&values), again(&later);
  ASSERT_TRUE(table.ReadWith({}, "data-dir: /d\n", "f").ok());
  ASSERT_TRUE(again.ReadWith({}, "data-dir: /d\nlog-level: info\nexclude-after: 3\n", "f").ok());
  EXPECT_THAT(again.ChangesSince(table).live, IsEmpty());
}

TEST(FlagTableTest, HelpSaysWhatSighupChanges) {
  Values values;
  Table table(&values);
  ASSERT_TRUE(table.ReadWith({}, "data-dir: /d\n", "f").ok());
  const std::string help = table.app().help();
  EXPECT_THAT(help, HasSubstr("--config TEXT"));
  EXPECT_THAT(help, HasSubstr("--data-dir TEXT REQUIRED"));
  EXPECT_THAT(help, HasSubstr("Flags that SIGHUP changes too, from --config:\n  --log-level"));
}

}  // namespace
}  // namespace milepost
