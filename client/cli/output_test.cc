// What reaches a terminal.
#include "client/cli/output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "milepost/v1/job.pb.h"

namespace milepost::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What `write` puts on the terminal that `number` is for as long.
std::string OnTerminal(int number, const std::function<void()>& write) {
  const UniqueFd terminal(posix_openpt(O_RDWR | O_NOCTTY));
  EXPECT_TRUE(terminal.ok() && grantpt(terminal.get()) == 0 && unlockpt(terminal.get()) == 0);
  const UniqueFd end(open(ptsname(terminal.get()), O_RDWR | O_NOCTTY));
  const UniqueFd before(dup(number));
  EXPECT_TRUE(end.ok() && before.ok());
  fflush(nullptr);
  dup2(end.get(), number);
  write();
  fflush(nullptr);
  dup2(before.get(), number);
  std::string text(4096, '\0');
  const ssize_t got = read(terminal.get(), text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  return text;
}

TEST(OutputTest, AJobsRanksTellOfThemselves) {
  v1::Job job;
  for (int rank = 0; rank < 2; ++rank) {
    v1::RankPlacement* placement = job.add_placements();
    placement->set_rank(rank);
    placement->set_worker("workers/a");
    placement->set_slot(3 + rank);
  }
  v1::RankStats* stats = job.add_rank_stats();  // rank 0 has told nothing yet
  stats->set_rank(1);
  stats->set_planned_bytes(3 << 20);
  stats->set_allocated_bytes(2 << 20);
  std::string text = RenderJob(job, OutputFormat::kTable, absl::UnixEpoch());
  EXPECT_THAT(text, HasSubstr("Rank 0:       workers/a slot 3\n"));
  EXPECT_THAT(text,
              HasSubstr("Rank 1:       workers/a slot 4: 3.0 MiB planned, 2.0 MiB allocated\n"));
  stats->set_peak_resident_bytes(5 << 20);
  stats->set_own_seconds(0.0123);
  text = RenderJob(job, OutputFormat::kTable, absl::UnixEpoch());
  EXPECT_THAT(text,
              HasSubstr("2.0 MiB allocated, 5.0 MiB resident; 12.3 ms of each step are its own\n"));
}

TEST(OutputTest, NoControlCharacterOfOthersReachesATerminal) {
  const std::string evil =
      "a\x1b[2J\x1b]0;title\x07\xc2\x9b"
      "b\tc\nd";
  for (const int number : {STDOUT_FILENO, STDERR_FILENO}) {
    const std::string shown = OnTerminal(number, [&] {
      if (number == STDOUT_FILENO) return Print(evil);
      Note(evil);
      Hint(evil);
      Fail(absl::InternalError(evil));
    });
    EXPECT_THAT(shown, HasSubstr("a?[2J?]0;title??b"));
    EXPECT_THAT(shown, HasSubstr("c\r\nd"));
    for (const char* control : {"\x1b", "\x07", "\xc2\x9b"}) {
      EXPECT_THAT(shown, Not(HasSubstr(control)));
    }
  }
}

TEST(OutputTest, OurOwnLinesAreErased) {
  EXPECT_THAT(OnTerminal(STDOUT_FILENO,
                         [] {
                           EraseLines(3);
                           Print("x\n");
                         }),
              HasSubstr("\x1b[3A\r\x1b[Jx"));
}

// Every command's text: there is no other way out.
TEST(OutputTest, NothingIsWrittenPastIt) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("client/cli")) {
    const std::string name = entry.path().filename();
    if (entry.path().extension() != ".cc" || name == "output.cc") continue;
    if (name.find("_test.cc") != std::string::npos) continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    for (const char* other : {"std::cout", "std::cerr", " printf(", "fprintf(", "puts(", "fwrite(",
                              "write(STDOUT_FILENO", "write(STDERR_FILENO"}) {
      EXPECT_THAT(text.str(), Not(HasSubstr(other))) << name;
    }
    ++files;
  }
  EXPECT_GT(files, 20);
}

}  // namespace
}  // namespace milepost::client
