#include "worker/trainer/scalar_log.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

class ScalarLogTest : public ::testing::Test {
 protected:
  ScalarLogTest() {
    std::string name = (fs::temp_directory_path() / "milepost_scalars_XXXXXX").string();
    base_ = mkdtemp(name.data());
  }
  ~ScalarLogTest() override { fs::remove_all(base_); }

  // Files of events in `folder`.
  static int EventFiles(const std::string& folder) {
    int files = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      files += entry.path().filename().string().find("tfevents") != std::string::npos;
    }
    return files;
  }

  std::string base_;
};

TEST_F(ScalarLogTest, JobsOfOneSpecHaveFoldersOfTheirOwn) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  const std::string seven = ScalarFolder(base_, "jobs/7", "1a2b3c4d5e6f");
  const std::string eight = ScalarFolder(base_, "jobs/8", "2b2b3c4d5e6f");
  EXPECT_EQ(seven, base_ + "/jobs-7");
  EXPECT_EQ(eight, base_ + "/jobs-8");
  ScalarLog first(seven, 0, now);
  ScalarLog second(eight, 0, now);
  EXPECT_EQ(EventFiles(seven), 1);
  EXPECT_EQ(EventFiles(eight), 1);
}

TEST_F(ScalarLogTest, AResumedJobGoesOnInItsOwnAndAnotherOfItsNameDoesNot) {
  const std::string first = ScalarFolder(base_, "jobs/7", "1a2b3c4d5e6f");
  EXPECT_EQ(ScalarFolder(base_, "jobs/7", "1a2b3c4d5e6f"), first);
  // The same number in another data directory.
  const std::string other = ScalarFolder(base_, "jobs/7", "99887766554433");
  EXPECT_EQ(other, base_ + "/jobs-7-99887766");
  EXPECT_EQ(ScalarFolder(base_, "jobs/7", "99887766554433"), other);
}

TEST_F(ScalarLogTest, FurtherValidationSetsHaveGroupsOfTheirOwn) {
  const std::string folder = ScalarFolder(base_, "jobs/7", "1a2b3c4d5e6f");
  v1::Progress progress;
  progress.set_validation_step(3);
  v1::ValidationSetReport& set = *progress.add_validation_sets();
  set.set_name("code");
  set.add_heads()->set_name("lm");
  ScalarLog(folder, 0, absl::FromUnixSeconds(1000))
      .Validation(progress, absl::FromUnixSeconds(1001));
  std::string events;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    events.append(std::istreambuf_iterator<char>(file), {});
  }
  for (const char* tag : {"validation/loss", "validation@code/loss", "validation@code/lm/loss",
                          "validation@code/lm/accuracy"}) {
    EXPECT_NE(events.find(tag), std::string::npos) << tag;
  }
}

TEST(ScalarLogRemedy, IsOfWhatMayNotBeWrittenAlone) {
  const auto of = [](int error) {
    return std::string(WithRemedy(absl::ErrnoToStatus(error, "cannot write /a")).message());
  };
  for (const int error : {EACCES, EPERM, EROFS}) {
    EXPECT_NE(of(error).find("cannot write /a: "), std::string::npos);
    EXPECT_NE(of(error).find("ReadWritePaths="), std::string::npos) << error;
  }
  EXPECT_EQ(of(ENOSPC).find("ReadWritePaths="), std::string::npos);
  EXPECT_TRUE(WithRemedy(absl::OkStatus()).ok());
}

TEST_F(ScalarLogTest, AFolderThatCannotBeMadeStopsNobody) {
  ScalarLog log(ScalarFolder("/proc/none", "jobs/7", "1a"), 0, absl::FromUnixSeconds(1000));
  EXPECT_FALSE(log.status().ok());
  log.Step(v1::Progress(), absl::FromUnixSeconds(1001));
}

}  // namespace
}  // namespace milepost::worker
