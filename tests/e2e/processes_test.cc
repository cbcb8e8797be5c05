#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

class ProcessesTest : public testing::Test {
 protected:
  ~ProcessesTest() override { std::filesystem::remove_all(folder_); }
  const std::string folder_ = MakeFolder("milepost_e2e");
};

TEST_F(ProcessesTest, TrainsToTheEnd) {
  Cluster cluster(folder_, {});
  cluster.Start();
  const v1::Job end = cluster.Await(cluster.Submit(SmallJob(folder_, 25)), IsTerminal);
  EXPECT_EQ(end.state(), v1::JOB_STATE_SUCCEEDED) << end.DebugString();
  EXPECT_EQ(end.progress().step(), 25);
  EXPECT_EQ(end.progress().validation_step(), 25);
  EXPECT_EQ(end.progress().planned_bytes(), end.progress().allocated_bytes());
  EXPECT_EQ(end.attempts(), 1);
  std::vector<int64_t> steps;
  for (const v1::Checkpoint& checkpoint : cluster.Checkpoints(end.name())) {
    steps.push_back(checkpoint.step());
    EXPECT_TRUE(cluster.DamagedChunks(checkpoint.name()).empty());
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{25, 20, 10}));
  EXPECT_EQ(cluster.StopWorker(0), 0);
  EXPECT_EQ(cluster.StopCoordinator(), 0);
}

}  // namespace
}  // namespace milepost::e2e
