// `milepost doctor`, with a library that stands for NVIDIA's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/exit_codes.h"
#include "tests/e2e/cluster.h"

#ifndef MILEPOST_FAKE_NVML_FOLDER
#define MILEPOST_FAKE_NVML_FOLDER ""  // the build says where it is
#endif

namespace milepost::e2e {
namespace {

using testing::HasSubstr;

class DoctorTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(getenv("MILEPOST_BIN_DIR"), nullptr); }
  ~DoctorTest() override { std::filesystem::remove_all(folder_); }

  // Its exit code; what it printed is in out_. `gpus`: how the library does; null: without it.
  int Doctor(const char* gpus, std::vector<std::string> arguments) {
    SpawnOptions options;
    options.argv = {std::string(getenv("MILEPOST_BIN_DIR")) + "/milepost", "doctor", "--data-dir",
                    folder_};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    options.env = {{"NCCL_SOCKET_IFNAME", ""}, {"MILEPOST_COORDINATOR", ""}};
    if (gpus != nullptr) {
      options.env.emplace_back("LD_LIBRARY_PATH", MILEPOST_FAKE_NVML_FOLDER);
      options.env.emplace_back("MILEPOST_FAKE_NVML", gpus);
    }
    options.out = Redirect::Pipe();
    auto doctor = Subprocess::Spawn(std::move(options));
    EXPECT_TRUE(doctor.ok()) << doctor.status();
    const UniqueFd out = doctor->TakeOut();
    char buffer[4096];
    out_.clear();
    for (ssize_t got; (got = read(out.get(), buffer, sizeof buffer)) > 0;) out_.append(buffer, got);
    return doctor->Wait()->exit_code;
  }

  const std::string folder_ = MakeFolder("milepost_doctor");
  std::string out_;
};

TEST_F(DoctorTest, DescribesTheHostsGpus) {
  EXPECT_EQ(Doctor("well", {}), kExitOk) << out_;
  EXPECT_THAT(out_, HasSubstr("driver 580.65.06"));
  EXPECT_THAT(out_, HasSubstr("NVIDIA H200, 141.0 GiB, capability 9.0, GPU-fake-1"));
  EXPECT_THAT(out_, HasSubstr("written and synced at"));
}

TEST_F(DoctorTest, FailsForALostGpuAndSaysSoInJson) {
  EXPECT_EQ(Doctor("lost", {"-o", "json"}), kExitError);
  const auto json = nlohmann::json::parse(out_);
  EXPECT_EQ(json["worst"], "fail");
  std::string failed;
  for (const auto& finding : json["findings"]) {
    if (finding["level"] == "fail") failed += finding["text"].get<std::string>();
  }
  EXPECT_THAT(failed, HasSubstr("GPU 1 has fallen off the bus"));
}

TEST_F(DoctorTest, FailsForADriverThatDoesNotFitItsLibrary) {
  EXPECT_EQ(Doctor("mismatch", {}), kExitError);
  EXPECT_THAT(out_, HasSubstr("restart the host"));
}

TEST_F(DoctorTest, FailsForACoordinatorThatIsNotThere) {
  EXPECT_EQ(Doctor("well", {"--coordinator", "127.0.0.1:1"}), kExitError);
  EXPECT_THAT(out_, HasSubstr("is milepost-coordinator running there"));
}

TEST_F(DoctorTest, AWrongCommandLineIsAnotherFailure) {
  EXPECT_EQ(Doctor(nullptr, {"-o", "table", "--no-such-flag"}), kExitUsage);
}

}  // namespace
}  // namespace milepost::e2e
