#include "client/cli/trainer_binary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "client/cli/commands.h"
#include "client/cli/generate.h"

namespace milepost::client {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(TrainerBinaryTest, TextIsWrittenByTheDevicesTrainer) {
  GenerateOptions options;
  EXPECT_THAT(GenerateSpawn("host:1", "checkpoints/2", options).argv[0],
              EndsWith("/milepost-trainer"));
  options.device = "cuda";
  EXPECT_THAT(GenerateSpawn("host:1", "checkpoints/2", options).argv[0],
              EndsWith("/milepost-trainer-cuda"));
}

// Tests lie beside no trainer.
TEST(TrainerBinaryTest, OneThatIsMissingIsSaid) {
  EXPECT_THAT(std::string(CheckTrainerBinary(true).message()),
              testing::AllOf(HasSubstr("milepost-trainer-cuda"), HasSubstr("--cuda")));
  EXPECT_EQ(CheckTrainerBinary(false).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace milepost::client
