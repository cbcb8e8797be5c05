#include "client/cli/format.h"

#include <gmock/gmock.h>
#include <google/protobuf/timestamp.pb.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/progress_view.h"
#include "client/cli/table.h"
#include "client/cli/utf8.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FormatTest, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(HumanBytes(64277709), "61.3 MiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "8192.0 PiB");
}

TEST(FormatTest, Counts) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(999.7), "1.0k");
  EXPECT_EQ(HumanCount(31234), "31.2k");
  EXPECT_EQ(HumanCount(99960), "100k");
  EXPECT_EQ(HumanCount(124e6), "124M");
  EXPECT_EQ(HumanCount(std::nan("")), "-");
}

TEST(FormatTest, Durations) {
  EXPECT_EQ(HumanDuration(absl::Seconds(-5)), "0s");
  EXPECT_EQ(HumanDuration(absl::Milliseconds(59'900)), "59s");
  EXPECT_EQ(HumanDuration(absl::Seconds(185)), "3m05s");
  EXPECT_EQ(HumanDuration(absl::Minutes(130)), "2h10m");
  EXPECT_EQ(HumanDuration(absl::Hours(123)), "5d3h");
  EXPECT_EQ(HumanDuration(absl::InfiniteDuration()), "-");
}

TEST(FormatTest, AbsentTimesAreADash) {
  google::protobuf::Timestamp time;
  EXPECT_EQ(AgeText(time, absl::Now()), "-");
  EXPECT_EQ(TimeText(time), "-");
  time.set_seconds(1'700'000'000);
  EXPECT_EQ(TimeText(time), "2023-11-14T22:13:20Z");
  EXPECT_EQ(AgeText(time, absl::FromUnixSeconds(1'700'000'042)), "42s");
}

TEST(PrintableTest, NothingDrivesTheTerminal) {
  EXPECT_EQ(Printable("a\x1b[2Jb\x7f\n"), "a?[2Jb??");
  EXPECT_EQ(Printable("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            "?2J");
  EXPECT_EQ(Printable("\xff"
                      "a\xc3"),
            "\xef\xbf\xbd"
            "a\xef\xbf\xbd");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(ShellWordTest, IsOneWord) {
  EXPECT_EQ(ShellWord("runs/a-1.yaml"), "runs/a-1.yaml");
  EXPECT_EQ(ShellWord("train.optimizer.lr=1e-4"), "train.optimizer.lr=1e-4");
  EXPECT_EQ(ShellWord("my run$1.yaml"), "'my run$1.yaml'");
  EXPECT_EQ(ShellWord("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellWord(""), "''");
}

TEST(PrintableTest, FitsByColumns) {
  EXPECT_EQ(FitTo("abcdef", 6), "abcdef");
  EXPECT_EQ(FitTo("abcdef", 4), "abc…");
  EXPECT_EQ(FitTo("ééééé", 3), "éé…");
  EXPECT_EQ(FitTo("abc", 0), "");
  EXPECT_EQ(ColumnsOf("é€"), 2u);
}

TEST(Utf8Test, FindsTheFirstBadCharacter) {
  const auto bad = [](absl::string_view text) {
    Utf8Checker checker;
    const bool good = checker.Feed(text) && checker.Finish();
    return good ? -1 : checker.bad_offset();
  };
  EXPECT_EQ(bad("plain\n\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), -1);
  EXPECT_EQ(bad("ab\xff"), 2);
  EXPECT_EQ(bad("ab\xc3"), 2);
  EXPECT_EQ(bad("\xc0\x80"), 0);          // overlong
  EXPECT_EQ(bad("\xe0\x9f\xbf"), 0);      // overlong
  EXPECT_EQ(bad("\xf0\x8f\xbf\xbf"), 0);  // overlong
  EXPECT_EQ(bad("a\xed\xa0\x80"), 1);     // surrogate
  EXPECT_EQ(bad("\xf4\x90\x80\x80"), 0);  // above U+10FFFF
  EXPECT_EQ(bad("\xf4\x8f\xbf\xbf"), -1);
  EXPECT_EQ(bad("x\xe2\x82z"), 1);
}

TEST(Utf8Test, CharactersMayCrossChunks) {
  Utf8Checker checker;
  EXPECT_TRUE(checker.Feed("a\n\xe2"));
  EXPECT_TRUE(checker.Feed("\x82"));
  EXPECT_FALSE(checker.Finish());
  EXPECT_TRUE(checker.Feed("\xac\nb"));
  EXPECT_TRUE(checker.Finish());
  EXPECT_FALSE(checker.Feed("\x80"));
  EXPECT_EQ(checker.bad_offset(), 7);
  EXPECT_EQ(checker.bad_line(), 3);
}

TEST(TableTest, AlignsByColumnsNotBytes) {
  Table table({"NAME", "X"});
  table.Add({"é", "1"});
  table.Add({"long name", "2\n"});
  EXPECT_EQ(table.ToString(), "NAME       X\né          1\nlong name  2?\n");
}

v1::Job RunningJob() {
  v1::Job job;
  job.set_name("jobs/7");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.mutable_spec()->mutable_train()->set_steps(1000);
  job.mutable_spec()->mutable_train()->mutable_batch()->set_global(16);
  job.mutable_spec()->mutable_data()->set_sequence_length(100);
  job.mutable_progress()->set_step(101);
  job.mutable_progress()->set_train_loss(2.31404);
  job.mutable_progress()->set_validation_loss(std::nan(""));
  job.mutable_progress()->set_tokens_per_second(16000);
  return job;
}

TEST(TimeLeftTest, GoesByThePaceSoFarAndBeforeThatByThroughput) {
  v1::Job job = RunningJob();
  const absl::Time now = absl::FromUnixSeconds(2000);
  EXPECT_EQ(TimeLeft(job, now), absl::Seconds(89.9));  // 899 steps of 1600 tokens at 16000/s
  job.mutable_progress()->mutable_first_step_time()->set_seconds(1999);
  EXPECT_EQ(TimeLeft(job, now), absl::Seconds(89.9));  // too early to tell
  job.mutable_progress()->mutable_first_step_time()->set_seconds(1950);
  EXPECT_EQ(TimeLeft(job, now), absl::Seconds(449.5));  // 100 steps in 50 s
  job.mutable_progress()->set_start_step(51);           // resumed: 49 steps in 50 s
  EXPECT_NEAR(absl::ToDoubleSeconds(TimeLeft(job, now)), 899 * 50 / 49.0, 1e-6);
  job.mutable_progress()->set_step(1000);
  EXPECT_EQ(TimeLeft(job, now), absl::ZeroDuration());
  EXPECT_EQ(TimeLeft(v1::Job(), now), absl::ZeroDuration());
  job = RunningJob();
  job.mutable_progress()->set_tokens_per_second(0);
  EXPECT_EQ(TimeLeft(job, now), absl::InfiniteDuration());
}

TEST(ProgressViewTest, ShowsEachOfSeveralHeads) {
  v1::Job job = RunningJob();
  EXPECT_EQ(HeadsText(job.progress().train_heads()), "");
  for (const char* name : {"lm", "tag"}) {
    v1::LossReport* head = job.mutable_progress()->add_train_heads();
    head->set_name(name);
    head->set_loss(name[0] == 'l' ? 2.25 : 0.5);
  }
  const std::string expected = absl::StrCat(" (lm ", LossText(2.25), ", tag ", LossText(0.5), ")");
  EXPECT_EQ(HeadsText(job.progress().train_heads()), expected);
  const absl::Time now = absl::FromUnixSeconds(2000);
  EXPECT_THAT(PlainProgressLine(job, now), testing::HasSubstr(LossText(2.31404) + expected));
  EXPECT_THAT(LiveProgressLines(job, now, 200)[1], testing::HasSubstr(expected));
}

TEST(ProgressViewTest, PlainLine) {
  v1::Job job = RunningJob();
  const absl::Time now = absl::FromUnixSeconds(2000);
  EXPECT_EQ(PlainProgressLine(job, now), "step 101/1000  loss 2.3140  16.0k tokens/s  ETA 1m29s");
  job.mutable_progress()->set_validation_step(100);
  job.mutable_progress()->set_validation_loss(2.5);
  job.mutable_progress()->set_skipped_steps(3);
  job.set_attempts(2);
  EXPECT_EQ(
      PlainProgressLine(job, now),
      "step 101/1000  loss 2.3140  validation 2.5000 @100  16.0k tokens/s  ETA 1m29s  skipped "
      "3  attempt 2");
}

TEST(FormatTest, TextOfSeveralLinesIsMadeSafeForATerminal) {
  EXPECT_EQ(ForTerminal("a\tb\nc\x1b]0;evil\x07"
                        "d\r\n"),
            "a\tb\nc?]0;evil?d?\n");
  EXPECT_EQ(ForTerminal("\xc2\x9b"
                        "2J \xff \xc3\xa9\n\n"),
            "?2J \xef\xbf\xbd \xc3\xa9\n\n");
  EXPECT_EQ(ForTerminal(""), "");
}

TEST(ProgressViewTest, MemoryOnceKnown) {
  v1::Progress progress;
  EXPECT_EQ(MemoryText(progress), "");
  progress.set_planned_bytes(3 << 20);
  progress.set_allocated_bytes(3 << 20);
  EXPECT_EQ(MemoryText(progress), "  memory 3.0 MiB planned, 3.0 MiB used per rank");
}

TEST(ProgressViewTest, LiveLinesFitTheTerminal) {
  v1::Job job = RunningJob();
  job.mutable_progress()->set_planned_bytes(64277709);
  job.mutable_progress()->set_allocated_bytes(64277709);
  job.set_latest_checkpoint("checkpoints/3");
  job.set_reason_detail("evil \x1b[2J text");
  for (const size_t columns : {20, 40, 80, 200}) {
    const auto lines = LiveProgressLines(job, absl::FromUnixSeconds(2000), columns);
    ASSERT_EQ(lines.size(), 4u);
    for (const std::string& line : lines) {
      EXPECT_LE(ColumnsOf(line), columns);
      EXPECT_THAT(line, ::testing::Not(HasSubstr("\x1b")));
    }
  }
  const auto lines = LiveProgressLines(job, absl::FromUnixSeconds(2000), 200);
  EXPECT_THAT(lines[3],
              HasSubstr("61.3 MiB planned, 61.3 MiB used per rank  checkpoint checkpoints/3"));
  EXPECT_THAT(lines[2], ::testing::Not(HasSubstr("loss scale")));
  job.mutable_progress()->set_loss_scale(32768);
  EXPECT_THAT(LiveProgressLines(job, absl::FromUnixSeconds(2000), 200)[2],
              HasSubstr("  loss scale 32768  "));
  job.mutable_progress()->set_loss_scale_at_floor(true);
  EXPECT_THAT(LiveProgressLines(job, absl::FromUnixSeconds(2000), 200)[2],
              HasSubstr("  loss scale 32768 (its floor)  "));
}

TEST(ProgressViewTest, Bar) {
  EXPECT_EQ(ProgressBar(0, 8), "[>     ]");
  EXPECT_EQ(ProgressBar(0.5, 8), "[===>  ]");
  EXPECT_EQ(ProgressBar(1, 8), "[======]");
  EXPECT_EQ(ProgressBar(7, 8), "[======]");
  EXPECT_EQ(ProgressBar(std::nan(""), 8), "[>     ]");
  EXPECT_EQ(ProgressBar(0, 0), "[>]");
}

}  // namespace
}  // namespace milepost::client
