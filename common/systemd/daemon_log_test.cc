#include "common/systemd/daemon_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "common/unique_fd.h"

namespace milepost {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DaemonLogTest, FieldsNameJobAndWorker) {
  EXPECT_THAT(JournalFields("jobs/7 is RUNNING, generation 3", ""),
              ElementsAre("MILEPOST_JOB=jobs/7"));
  EXPECT_THAT(JournalFields("workers/gpu-01: lost jobs/12 and jobs/7", ""),
              ElementsAre("MILEPOST_JOB=jobs/12", "MILEPOST_WORKER=workers/gpu-01"));
  EXPECT_THAT(JournalFields("it waits for workers/b.example.com.", ""),
              ElementsAre("MILEPOST_WORKER=workers/b.example.com"));
  EXPECT_THAT(JournalFields("registered", "workers/a"), ElementsAre("MILEPOST_WORKER=workers/a"));
  EXPECT_THAT(JournalFields("/srv/jobs/7 and myjobs/8, jobs/ and workers/..", ""), IsEmpty());
  EXPECT_THAT(JournalFields("", ""), IsEmpty());
}

TEST(DaemonLogTest, KnowsTheJournalsStream) {
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  struct stat found {};
  ASSERT_EQ(fstat(file.get(), &found), 0);
  const std::string right = absl::StrCat(found.st_dev, ":", found.st_ino);
  EXPECT_TRUE(IsJournal(right.c_str(), file.get()));
  EXPECT_FALSE(IsJournal((right + "1").c_str(), file.get()));
  EXPECT_FALSE(IsJournal(nullptr, file.get()));
  EXPECT_FALSE(IsJournal(right.c_str(), -1));
}

}  // namespace
}  // namespace milepost
