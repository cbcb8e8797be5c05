#include "common/line_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>

namespace milepost {
namespace {

struct PipeEnds {
  PipeEnds() {
    int both[2];
    EXPECT_EQ(pipe2(both, O_CLOEXEC), 0);
    out = UniqueFd(both[0]);
    in = UniqueFd(both[1]);
  }
  UniqueFd out;
  UniqueFd in;
};

TEST(LinePipe, LinesComeOneByOne) {
  PipeEnds ends;
  LineReader reader(std::move(ends.out), 1 << 20);
  EXPECT_FALSE(reader.Ready());
  ASSERT_EQ(WriteLine(ends.in.get(), "one"), absl::OkStatus());
  ASSERT_EQ(WriteLine(ends.in.get(), ""), absl::OkStatus());
  EXPECT_TRUE(reader.Ready());
  EXPECT_EQ(*reader.Next(), "one");
  EXPECT_TRUE(reader.Ready());
  EXPECT_EQ(*reader.Next(), "");
  EXPECT_FALSE(reader.Ready());
  // Longer than what a pipe holds, so that both sides wait for each other.
  const std::string large(1 << 18, 'x');
  std::thread writes([&] {
    EXPECT_EQ(WriteLine(ends.in.get(), large), absl::OkStatus());
    ends.in = UniqueFd();
  });
  EXPECT_EQ(*reader.Next(), large);
  writes.join();
  EXPECT_TRUE(reader.Ready());
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kOutOfRange);
}

// A process that left the pipe to another one.
TEST(LinePipe, EndsWithTheOtherProcess) {
  PipeEnds ends;
  PipeEnds process;
  LineReader reader(std::move(ends.out), 10, process.out.get());
  ASSERT_EQ(WriteLine(ends.in.get(), "last"), absl::OkStatus());
  ASSERT_EQ(write(process.in.get(), "x", 1), 1);
  EXPECT_EQ(*reader.Next(), "last");
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kOutOfRange);
}

TEST(LinePipe, LongLinesAndClosedEndsAreErrors) {
  signal(SIGPIPE, SIG_IGN);
  PipeEnds ends;
  LineReader reader(std::move(ends.out), 10);
  ASSERT_EQ(WriteLine(ends.in.get(), std::string(100, 'x')), absl::OkStatus());
  EXPECT_EQ(*reader.Next(), std::string(100, 'x'));  // whole lines that came are read
  ASSERT_EQ(write(ends.in.get(), "01234567890", 11), 11);
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kResourceExhausted);
  PipeEnds closed;
  closed.out = UniqueFd();
  EXPECT_EQ(WriteLine(closed.in.get(), "x").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace milepost
