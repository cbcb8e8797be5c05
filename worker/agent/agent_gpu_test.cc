// The agent on a host with GPUs, which are described to it.
#include <gmock/gmock.h>

#include "absl/strings/match.h"
#include "worker/agent/agent_fixture.h"
#include "worker/gpu/testing/fake_nvml.h"

namespace milepost::worker {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

class AgentGpuTest : public AgentTest {
 protected:
  AgentGpuTest() { fake_.gpus = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}}; }
  ~AgentGpuTest() override { StopAgent(); }  // before the fake goes

  void StartOnGpus(absl::Duration interval = absl::Milliseconds(100)) {
    AgentOptions options;
    options.slots.device = v1::DEVICE_KIND_CUDA;
    options.cuda_trainer_binary = "/proc/self/exe";
    options.measure_interval = interval;
    options.open_nvml = [] { return Nvml::Open(FakeNvml::Functions(), "/nowhere"); };
    StartAgent(std::move(options));
  }

  static v1::CoordinatorMessage StartOnGpu(const std::string& role, int rank) {
    v1::CoordinatorMessage message = Start(role, 1, rank);
    message.mutable_start_rank()->mutable_spec()->mutable_resources()->set_device(
        v1::DEVICE_KIND_CUDA);
    return message;
  }

  // Facts of a slot that `wanted` accepts, wherever they come.
  v1::DeviceFacts AwaitFacts(const std::function<bool(const v1::DeviceFacts&)>& wanted) {
    v1::DeviceFacts found;
    coordinator_->count_heartbeats_ = true;
    coordinator_->Await([&](const auto& message) {
      const auto& devices =
          message.has_hello() ? message.hello().devices() : message.heartbeat().devices();
      for (const v1::DeviceFacts& facts : devices) {
        if (!wanted(facts)) continue;
        found = facts;
        return true;
      }
      return false;
    });
    return found;
  }

  void Change(const std::function<void()>& change) {
    std::lock_guard lock(fake_.mutex);
    change();
  }

  FakeNvml fake_;
};

TEST_F(AgentGpuTest, OffersItsGpus) {
  StartOnGpus();
  const v1::Hello hello = coordinator_->AwaitHello();
  ASSERT_EQ(hello.slots_size(), 2);
  EXPECT_EQ(hello.slots(1).device(), v1::DEVICE_KIND_CUDA);
  EXPECT_EQ(hello.slots(1).uuid(), "GPU-b");
  EXPECT_EQ(hello.driver(), "580.65.06");
  EXPECT_EQ(agent_->offer(), "2 cuda slots (NVIDIA H200)");
}

TEST_F(AgentGpuTest, ARankSeesItsGpuAlone) {
  StartOnGpus();
  coordinator_->Say(StartOnGpu("fails", /*rank=*/1));
  const v1::RankReport end = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_THAT(end.last_lines(), Contains(HasSubstr("sees GPU 'GPU-b'")));
}

TEST_F(AgentGpuTest, ACpuRankSeesNone) {
  StartAgent(1);
  coordinator_->Say(Start("fails"));
  EXPECT_THAT(coordinator_->AwaitReport(v1::RANK_STATE_FAILED).last_lines(),
              Contains(HasSubstr("sees GPU ''")));
}

TEST_F(AgentGpuTest, RefusesARankOfTheOtherKind) {
  StartOnGpus();
  coordinator_->Say(Start("succeeds"));
  EXPECT_THAT(coordinator_->AwaitReport(v1::RANK_STATE_FAILED).message(),
              HasSubstr("slot 0 is a GPU's"));
}

TEST_F(AgentGpuTest, TellsHowItsGpusDo) {
  StartOnGpus();
  v1::DeviceFacts facts = AwaitFacts([](const auto& facts) { return facts.slot() == 1; });
  EXPECT_EQ(facts.temperature_celsius(), 61);
  EXPECT_TRUE(facts.has_time());
  Change([&] { fake_.xids = {{1, 31}}; });
  facts = AwaitFacts([](const auto& facts) { return facts.last_xid() != 0; });
  EXPECT_EQ(facts.slot(), 1);
  EXPECT_EQ(facts.last_xid(), 31);
  EXPECT_TRUE(facts.has_last_xid_time());
}

TEST_F(AgentGpuTest, TellsOfALostGpuAndSaysItAgainInItsHello) {
  StartOnGpus();
  Change([&] { fake_.gpus[0].error = kNvmlGpuIsLost; });
  const v1::DeviceFacts facts =
      AwaitFacts([](const auto& facts) { return !facts.problem().empty(); });
  EXPECT_EQ(facts.slot(), 0);
  EXPECT_THAT(facts.problem(), HasSubstr("off the bus"));
  coordinator_->DropStream();
  const v1::Hello hello = coordinator_->AwaitHello();
  ASSERT_EQ(hello.devices_size(), 2);
  EXPECT_THAT(hello.devices(0).problem(), HasSubstr("off the bus"));
  EXPECT_EQ(hello.devices(1).problem(), "");
}

// Grave errors take a slot out until the GPU passes a check, which the fake trainer says of GPU-b.
TEST_F(AgentGpuTest, AGpuWithAGraveErrorIsOutUntilItPassesACheck) {
  StartOnGpus();
  AwaitFacts([](const auto& facts) { return facts.slot() == 1 && facts.problem().empty(); });
  Change([&] { fake_.xids = {{0, 95}, {1, 48}}; });
  const v1::DeviceFacts out =
      AwaitFacts([](const auto& facts) { return facts.slot() == 1 && !facts.problem().empty(); });
  EXPECT_THAT(out.problem(), HasSubstr("XID 48, memory error"));
  EXPECT_THAT(out.problem(), HasSubstr("is checked next"));
  const v1::DeviceFacts back = AwaitFacts([](const auto& facts) {
    return facts.slot() == 1 && facts.last_xid() == 48 && facts.problem().empty();
  });
  EXPECT_EQ(back.last_xid(), 48);
  const v1::DeviceFacts ill = AwaitFacts([](const auto& facts) {
    return facts.slot() == 0 && absl::StrContains(facts.problem(), "fails a check");
  });
  EXPECT_THAT(ill.problem(), AllOf(HasSubstr("XID 95"), HasSubstr("check: exit code 1")));
}

TEST_F(AgentGpuTest, LooksAtTheGpusWhenARankHasEnded) {
  StartOnGpus(/*interval=*/absl::Hours(1));
  AwaitFacts([](const auto& facts) { return facts.slot() == 1; });
  Change([&] { fake_.gpus[0].error = kNvmlGpuIsLost; });
  coordinator_->Say(StartOnGpu("fails", 0));
  // Either may be told first.
  bool failed = false;
  bool told = false;
  coordinator_->Await([&](const v1::WorkerMessage& message) {
    failed |= message.has_rank_report() && message.rank_report().state() == v1::RANK_STATE_FAILED;
    for (const v1::DeviceFacts& facts : message.heartbeat().devices()) {
      told |= !facts.problem().empty();
    }
    return failed && told;
  });
}

}  // namespace
}  // namespace milepost::worker
