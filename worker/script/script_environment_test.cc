#include "worker/script/script_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/spec/script.h"

namespace milepost::worker {
namespace {

using testing::Contains;
using testing::Pair;

v1::StartRank Start() {
  v1::StartRank start;
  start.set_job("jobs/7");
  start.set_uid("abc");
  start.set_generation(3);
  start.mutable_spec()->mutable_restart()->set_max_failures(5);
  (*start.mutable_spec()->mutable_script()->mutable_environment())["WANDB_MODE"] = "offline";
  return start;
}

const ScriptLayout kLayout = {.rank = 3,
                              .world = 4,
                              .local_rank = 1,
                              .local_world = 2,
                              .group_rank = 1,
                              .group_world = 2,
                              .local_gpus = {"GPU-a", "GPU-b"},
                              .master_address = "10.0.0.7",
                              .master_port = 29500};

TEST(ScriptEnvironmentTest, IsTorchruns) {
  const auto pairs = ScriptEnvironment(Start(), kLayout,
                                       {"/tmp/scratch", "/tmp/error.json", "http://127.0.0.1:1",
                                        "/tmp/token", "/tmp/stop", "/usr/lib/milepost"});
  const std::map<std::string, std::string> environment(pairs.begin(), pairs.end());
  EXPECT_EQ(environment.size(), pairs.size()) << "a variable is there twice";
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"WANDB_MODE", "offline"},
           {"RANK", "3"},
           {"WORLD_SIZE", "4"},
           {"LOCAL_RANK", "1"},
           {"LOCAL_WORLD_SIZE", "2"},
           {"GROUP_RANK", "1"},
           {"GROUP_WORLD_SIZE", "2"},
           {"ROLE_RANK", "3"},
           {"ROLE_WORLD_SIZE", "4"},
           {"MASTER_ADDR", "10.0.0.7"},
           {"MASTER_PORT", "29500"},
           {"TORCHELASTIC_RUN_ID", "abc"},
           {"TORCHELASTIC_RESTART_COUNT", "2"},
           {"TORCHELASTIC_MAX_RESTARTS", "5"},
           {"TORCHELASTIC_USE_AGENT_STORE", "False"},
           {"TORCHELASTIC_ERROR_FILE", "/tmp/error.json"},
           {"MILEPOST_SCRATCH", "/tmp/scratch"},
           {"KUBEFLOW_TRAINER_SERVER_URL", "http://127.0.0.1:1/progress"},
           {"KUBEFLOW_TRAINER_SERVER_TOKEN", "/tmp/token"},
           {"KUBEFLOW_TRAINER_SERVER_CA_CERT", ""},
           {"CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"},
           {"MILEPOST_URL", "http://127.0.0.1:1"},
           {"MILEPOST_TOKEN_FILE", "/tmp/token"},
           {"MILEPOST_STOP_FILE", "/tmp/stop"},
           {"PYTHONPATH", "/usr/lib/milepost"},
           {"MILEPOST_JOB", "jobs/7"},
           {"MILEPOST_ATTEMPT", "3"}}) {
    EXPECT_THAT(environment, Contains(Pair(name, value)));
  }
}

// A spec that sets one would be heeded by half.
TEST(ScriptEnvironmentTest, ASpecMaySetNoneOfThem) {
  v1::StartRank start = Start();
  start.mutable_spec()->clear_script();
  for (const auto& [name, value] : ScriptEnvironment(start, kLayout, {})) {
    EXPECT_TRUE(IsSetForScripts(name)) << name;
  }
}

TEST(ScriptEnvironmentTest, FirstCauseIsTheExceptionOfTheErrorFile) {
  EXPECT_EQ(FirstCause(R"({"message": {"message": "RuntimeError: no luck", "extraInfo": {}}})"),
            "RuntimeError: no luck");
  EXPECT_EQ(FirstCause(R"({"message": "Traceback:\n  File x\nValueError: bad\n"})"),
            "ValueError: bad");
  EXPECT_EQ(FirstCause(std::string("{\"message\": \"") + std::string(5000, 'x') + "\"}").size(),
            512U);
  EXPECT_EQ(FirstCause(std::string(1 << 20, '[')), "");
  for (const char* nothing : {"", "{", "[]", "3", "{}", R"({"message": 3})",
                              R"({"message": {"message": []}})", R"({"message": {}})"}) {
    EXPECT_EQ(FirstCause(nothing), "") << nothing;
  }
}

}  // namespace
}  // namespace milepost::worker
