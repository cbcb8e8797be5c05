// The agent's parts, each by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "common/exit_codes.h"
#include "common/steady_time.h"
#include "worker/agent/cores.h"
#include "worker/agent/exit_class.h"
#include "worker/agent/identity.h"
#include "worker/agent/log_lines.h"
#include "worker/agent/outbox.h"

namespace milepost::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Split(const std::vector<std::string>& pieces) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto emit = [&](std::string line) { lines.push_back(std::move(line)); };
  for (const std::string& piece : pieces) splitter.Add(piece, emit);
  splitter.Finish(emit);
  return lines;
}

TEST(LineSplitterTest, CutsAtNewlinesWhereverThePiecesEnd) {
  EXPECT_THAT(Split({"a\nb", "c\r\n", "\n", "rest"}), ElementsAre("a", "bc", "", "rest"));
  EXPECT_THAT(Split({}), ElementsAre());
}

TEST(LineSplitterTest, OfAProgressBarTheLastStateIsTheLine) {
  EXPECT_THAT(Split({"\rsteps:  0%", "\rsteps: 50%", "\r", "steps: 100%\nnext\r\n", "\r", "end\r"}),
              ElementsAre("steps: 100%", "next", "end"));
  EXPECT_THAT(Split({"kept\r", "\r\n", "bar", "\r", "   ", "\r", "text\n"}),
              ElementsAre("kept", "text"));
  const std::string bar = "\r" + std::string(100, '#');
  std::string bars;
  for (size_t i = 0; i < kMaxLineBytes / 50; ++i) bars += bar;
  EXPECT_THAT(Split({bars, "\n"}), ElementsAre(std::string(100, '#'))) << "nothing is cut";
}

TEST(LineSplitterTest, BoundsLines) {
  const auto lines = Split({std::string(kMaxLineBytes - 6, 'x') + "\n",
                            std::string(kMaxLineBytes, 'y'), std::string(100, 'y') + "\nnext\n"});
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0], std::string(kMaxLineBytes - 6, 'x'));
  EXPECT_EQ(lines[1], std::string(kMaxLineBytes - 6, 'y') + " [cut]");
  EXPECT_EQ(lines[2], "next");
}

TEST(LineSplitterTest, MakesValidUtf8) {
  EXPECT_EQ(ReplaceInvalidUtf8("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(ReplaceInvalidUtf8("\xf0\x9f\x98\x80!"), "\xf0\x9f\x98\x80!");
  EXPECT_EQ(ReplaceInvalidUtf8("a\xff\xc3"), "a??");          // not UTF-8, cut short
  EXPECT_EQ(ReplaceInvalidUtf8("\xc0\xaf"), "??");            // overlong
  EXPECT_EQ(ReplaceInvalidUtf8("\xed\xa0\x80"), "???");       // surrogate
  EXPECT_EQ(ReplaceInvalidUtf8("\xf4\x90\x80\x80"), "????");  // beyond U+10FFFF
}

v1::LogLine Line(const std::string& text) {
  v1::LogLine line;
  line.set_text(text);
  return line;
}

TEST(LogQueueTest, CountsWhatItDrops) {
  LogQueue queue(4, 1 << 20);
  for (int i = 0; i < 10; ++i) queue.Push(Line(std::to_string(i)));
  const v1::LogBatch batch = queue.Pop();
  ASSERT_EQ(batch.lines_size(), 4);
  EXPECT_EQ(batch.lines(2).text(), "2");
  EXPECT_EQ(batch.lines(3).text(), "[7 lines dropped: the log queue was full]");
  EXPECT_TRUE(queue.empty());
  queue.Push(Line("after"));
  EXPECT_EQ(queue.Pop().lines(0).text(), "after");
}

TEST(LogQueueTest, BoundsBytesAndBatches) {
  LogQueue queue(1000, 10000);
  for (int i = 0; i < 10; ++i) queue.Push(Line(std::string(2000, 'x')));
  EXPECT_EQ(queue.Pop().lines_size(), 5);  // four and the marker
  LogQueue large(100000, 1 << 30);
  for (int i = 0; i < 1000; ++i) large.Push(Line("x"));
  EXPECT_EQ(large.Pop().lines_size(), 256);
}

TEST(CoresTest, ParsesLists) {
  EXPECT_THAT(*ParseCoreList("0-3,8,2"), ElementsAre(0, 1, 2, 3, 8));
  for (const char* bad : {"", "x", "3-1", "-1", "1,", "0-99999", "1-2-3"}) {
    EXPECT_THAT(ParseCoreList(bad).status().message(), HasSubstr("core list")) << bad;
  }
}

TEST(CoresTest, DividesEvenly) {
  EXPECT_THAT(DivideCores({0, 1, 2, 3}, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THAT(DivideCores({4, 5, 6}, 2), ElementsAre(ElementsAre(4), ElementsAre(5, 6)));
  EXPECT_THAT(DivideCores({7}, 2), ElementsAre(ElementsAre(7), ElementsAre(7)));
  EXPECT_EQ(RankThreads(0, 4), 4);
  EXPECT_EQ(RankThreads(2, 4), 2);
  EXPECT_EQ(RankThreads(8, 4), 4);
}

v1::RankReport Describe(const TrainerEnd& end) {
  v1::RankReport report;
  DescribeEnd(end, report);
  return report;
}

TEST(ExitClassTest, TellsHowRanksEnd) {
  EXPECT_EQ(Describe({}).state(), v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(Describe({.exit = {.exit_code = kExitStopped}}).state(), v1::RANK_STATE_STOPPED);
  EXPECT_EQ(Describe({.exit = {.signal = SIGTERM}, .asked_to_stop = true}).state(),
            v1::RANK_STATE_STOPPED);
  EXPECT_EQ(Describe({.exit = {.signal = SIGTERM}}).state(), v1::RANK_STATE_FAILED);
}

TEST(ExitClassTest, ClassifiesExitCodes) {
  const std::pair<int, v1::FailureClass> kCases[] = {
      {kExitError, v1::FAILURE_CLASS_INTERNAL},
      {kExitUsage, v1::FAILURE_CLASS_USER},
      {kExitData, v1::FAILURE_CLASS_DATA},
      {kExitOutOfMemory, v1::FAILURE_CLASS_OUT_OF_MEMORY},
      {kExitNetwork, v1::FAILURE_CLASS_NETWORK},
      {77, v1::FAILURE_CLASS_INTERNAL},
  };
  for (const auto& [code, expected] : kCases) {
    const v1::RankReport report =
        Describe({.exit = {.exit_code = code}, .last_lines = {"one", "two"}});
    EXPECT_EQ(report.failure_class(), expected) << code;
    EXPECT_FALSE(report.peer_lost()) << code;
    EXPECT_THAT(report.message(), HasSubstr("two"));
    EXPECT_THAT(report.last_lines(), ElementsAre("one", "two"));
  }
  EXPECT_TRUE(Describe({.exit = {.exit_code = kExitPeerLost}}).peer_lost());
  EXPECT_TRUE(Describe({.exit = {.exit_code = kExitFenced}}).peer_lost());
}

TEST(DescribeEndTest, AScriptsCauseIsWhatItSaidLastNotItsTrainersLog) {
  v1::TrainerFailure failure;
  failure.set_class_(v1::FAILURE_CLASS_SCRIPT);
  failure.set_message("the script ended: exit code 3");
  failure.set_with_last_line(true);
  const auto message = [&](std::vector<std::string> lines) {
    return Describe({.exit = {.exit_code = 1}, .failure = failure, .last_lines = std::move(lines)})
        .message();
  };
  EXPECT_EQ(message({"ValueError: bad", "07:52:09.482 I step 30: checkpoint committed"}),
            "the script ended: exit code 3: ValueError: bad");
  EXPECT_EQ(message({"12:00:00 now", "07:52:09.482 I only Milepost's"}),
            "the script ended: exit code 3: 12:00:00 now");
  EXPECT_EQ(message({"07:52:09.482 I only Milepost's"}), "the script ended: exit code 3");
}

TEST(ExitClassTest, ClassifiesSignals) {
  EXPECT_EQ(Describe({.exit = {.signal = SIGBUS}}).failure_class(), v1::FAILURE_CLASS_INTERNAL);
  EXPECT_EQ(Describe({.exit = {.signal = SIGKILL}}).failure_class(), v1::FAILURE_CLASS_HOST);
  EXPECT_EQ(Describe({.exit = {.signal = SIGKILL}, .oom_kill_seen = true}).failure_class(),
            v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_TRUE(Describe({.exit = {.signal = SIGKILL}, .killed_by_us = true}).peer_lost());
}

v1::RankReport Report(int rank, v1::RankState state) {
  v1::RankReport report;
  report.set_job("jobs/1");
  report.set_generation(1);
  report.set_rank(rank);
  report.set_state(state);
  return report;
}

TEST(OutboxTest, SendsTheNewestOfEachRankOnce) {
  Outbox outbox{v1::Hello()};
  outbox.StartStream();
  outbox.SetReport(Report(0, v1::RANK_STATE_STARTING));
  outbox.SetReport(Report(0, v1::RANK_STATE_RUNNING));
  for (int step = 1; step <= 5; ++step) {
    v1::Progress progress;
    progress.set_step(step);
    outbox.SetProgress({"jobs/1", 1, 0}, progress);
  }
  EXPECT_EQ(outbox.Next(absl::InfinitePast())->rank_report().progress().step(), 5);
  EXPECT_FALSE(outbox.Next(absl::InfinitePast()).has_value());
  outbox.SetProgress({"jobs/1", 1, 0}, v1::Progress());
  EXPECT_TRUE(outbox.Next(absl::InfinitePast())->has_progress());
  // Of a rank that is not known.
  outbox.SetProgress({"jobs/2", 1, 0}, v1::Progress());
  EXPECT_FALSE(outbox.Next(absl::InfinitePast()).has_value());
}

// The coordinator says how often it wants to hear: of rank 0 ten times as often as of others.
TEST(OutboxTest, ProgressFollowsTheHeartbeat) {
  Outbox outbox{v1::Hello()};
  for (const int rank : {0, 1}) outbox.SetReport(Report(rank, v1::RANK_STATE_RUNNING));
  outbox.StartStream();
  const auto step = [&](int64_t number) {
    v1::Progress progress;
    progress.set_step(number);
    for (const int rank : {0, 1}) outbox.SetProgress({"jobs/1", 1, rank}, progress);
  };
  outbox.SetHeartbeat(absl::Hours(1));
  step(1);
  EXPECT_FALSE(outbox.Next(absl::InfinitePast()).has_value()) << "the Hello has just said it";
  // What is no progress is never held up, and says the newest with it.
  outbox.SetReport(Report(1, v1::RANK_STATE_SUCCEEDED));
  const absl::Time begin = SteadyNow();
  EXPECT_EQ(outbox.Next(absl::InfinitePast())->rank_report().progress().step(), 1);
  EXPECT_FALSE(outbox.Next(absl::InfinitePast()).has_value());

  constexpr absl::Duration kHeartbeat = absl::Milliseconds(200);
  step(2);
  outbox.SetHeartbeat(kHeartbeat);
  const auto first = outbox.Next(absl::InfiniteFuture());
  step(3);
  EXPECT_EQ(first->progress().rank(), 0);
  EXPECT_GE(first->progress().progress().step(), 2);
  bool other = false;
  int of_first = 0;
  for (int i = 0; i < 100 && !other; ++i) {
    const auto message = outbox.Next(absl::InfiniteFuture());
    other = message->progress().rank() == 1;
    if (!other) ++of_first;
    step(4 + i);
  }
  EXPECT_TRUE(other);
  EXPECT_GE(SteadyNow() - begin, kHeartbeat - absl::Milliseconds(1));
  EXPECT_LE(of_first, 12);
}

TEST(OutboxTest, ANewStreamSaysEverything) {
  v1::Hello hello;
  hello.set_worker_id("w");
  Outbox outbox{hello};
  outbox.SetReport(Report(0, v1::RANK_STATE_SUCCEEDED));
  outbox.SetReport(Report(1, v1::RANK_STATE_RUNNING));
  outbox.SetLeaving("told to");
  for (int i = 0; i < 2; ++i) {
    const v1::WorkerMessage message = outbox.StartStream();
    EXPECT_EQ(message.hello().worker_id(), "w");
    EXPECT_EQ(message.hello().ranks_size(), 2);
    EXPECT_TRUE(outbox.Next(absl::InfinitePast())->has_leaving());
    EXPECT_FALSE(outbox.Next(absl::InfinitePast()).has_value());
  }
  EXPECT_FALSE(outbox.AwaitAllForgotten(absl::InfinitePast()));
  outbox.Forget({"jobs/1", 1, 0});
  outbox.Forget({"jobs/1", 1, 1});
  EXPECT_TRUE(outbox.AwaitAllForgotten(absl::InfinitePast()));
  EXPECT_EQ(outbox.StartStream().hello().ranks_size(), 0);
}

// Who follows a job's log is told that there are no more lines once the ranks have ended.
TEST(OutboxTest, ARanksLinesGoBeforeItsEnd) {
  Outbox outbox{v1::Hello()};
  outbox.StartStream();
  v1::LogLine line;
  line.set_text(std::string(1000, 'x'));
  for (int i = 0; i < 100; ++i) outbox.AddLog(line);
  outbox.SetReport(Report(0, v1::RANK_STATE_FAILED));
  outbox.SetReport(Report(1, v1::RANK_STATE_RUNNING));
  outbox.AddLog(line);  // of another rank
  EXPECT_EQ(outbox.Next(absl::InfinitePast())->rank_report().rank(), 1) << "others need not wait";
  int lines = 0;
  std::optional<v1::WorkerMessage> message;
  while ((message = outbox.Next(absl::InfinitePast()))->has_logs()) {
    lines += message->logs().lines_size();
  }
  EXPECT_GE(lines, 100);
  ASSERT_TRUE(message->has_rank_report());
  EXPECT_EQ(message->rank_report().rank(), 0);
}

// The coordinator takes 16 MiB.
TEST(OutboxTest, AHelloFitsIntoOneMessage) {
  Outbox outbox{v1::Hello()};
  for (int rank = 0; rank < 1024; ++rank) {
    v1::RankReport report = Report(rank, v1::RANK_STATE_FAILED);
    for (int i = 0; i < 100; ++i) report.add_last_lines(std::string(1024, 'x'));
    outbox.SetReport(std::move(report));
  }
  const v1::WorkerMessage hello = outbox.StartStream();
  EXPECT_LT(hello.ByteSizeLong(), size_t{10} << 20);
  EXPECT_EQ(hello.hello().ranks_size(), 1024);
  EXPECT_EQ(hello.hello().ranks(0).last_lines_size(), 100);
  EXPECT_EQ(outbox.Find({"jobs/1", 1, 1023})->last_lines_size(), 100) << "what is kept is whole";
}

class IdentityTest : public testing::Test {
 protected:
  IdentityTest() {
    folder_ = testing::TempDir() + "identity_XXXXXX";
    if (mkdtemp(folder_.data()) == nullptr) abort();
  }
  ~IdentityTest() override { std::filesystem::remove_all(folder_); }
  absl::StatusOr<Identity> Load(const std::string& id = "") {
    return Identity::Load(folder_ + "/a/b", id, absl::FromUnixSeconds(1000));
  }
  std::string folder_;
};

TEST_F(IdentityTest, KeepsTheIdAndCountsStarts) {
  std::string id;
  for (int64_t incarnation = 1000; incarnation < 1003; ++incarnation) {
    auto identity = Load();
    ASSERT_TRUE(identity.ok()) << identity.status();
    EXPECT_EQ(identity->incarnation(), incarnation);
    if (id.empty()) id = identity->id();
    EXPECT_EQ(identity->id(), id);
  }
  const absl::Status other = Load("other").status();
  EXPECT_TRUE(absl::IsInvalidArgument(other)) << "a service does not start with it again and again";
  EXPECT_THAT(std::string(other.message()), HasSubstr("belongs to worker"));
  EXPECT_THAT(std::string(other.message()), HasSubstr("/worker-id"));
}

// Of a host that was installed anew, with its old certificate.
TEST_F(IdentityTest, InANewFolderItIsNewerThanInTheLostOne) {
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(Load("w1").ok());
  const int64_t last = Load("w1")->incarnation();
  std::filesystem::remove_all(folder_ + "/a");
  const auto again = Identity::Load(folder_ + "/a/b", "w1", absl::FromUnixSeconds(2000));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_GT(again->incarnation(), last);
}

// Another process had its id for a while, from a folder of its own, and is gone: without this the
// first would be refused for ever, as older than that one.
TEST_F(IdentityTest, StartedAgainItIsNewerThanWhoeverStartedInBetween) {
  ASSERT_TRUE(Load("w1").ok());
  const auto other = Identity::Load(folder_ + "/other", "w1", absl::FromUnixSeconds(1500));
  ASSERT_TRUE(other.ok()) << other.status();
  const auto again = Identity::Load(folder_ + "/a/b", "w1", absl::FromUnixSeconds(1600));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_GT(again->incarnation(), other->incarnation());
}

TEST_F(IdentityTest, ExceedsANumberThatIsKnownElsewhere) {
  auto identity = Load("w1");
  ASSERT_TRUE(identity.ok()) << identity.status();
  ASSERT_TRUE(identity->Exceed(5000).ok());
  EXPECT_EQ(identity->incarnation(), 5001);
  EXPECT_EQ(identity->Exceed(INT64_MAX).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(identity->incarnation(), 5001);
  ASSERT_TRUE((identity = absl::UnknownError("gone"), Load("w1").ok()));
  EXPECT_EQ(Load("w1")->incarnation(), 5003);
  std::ofstream(folder_ + "/a/b/incarnation") << INT64_MAX;
  EXPECT_EQ(Load("w1")->incarnation(), 1000) << "the coordinator's answer leads on from here";
}

TEST_F(IdentityTest, TellsWhatIsWrong) {
  EXPECT_EQ(Load("no spaces").status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(Load("w1").ok());
  std::ofstream(folder_ + "/a/b/incarnation") << "many";
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_THAT(Identity::Load(folder_ + "/file/data", "", absl::UnixEpoch()).status().message(),
              HasSubstr(folder_ + "/file/data"));
}

}  // namespace
}  // namespace milepost::worker
