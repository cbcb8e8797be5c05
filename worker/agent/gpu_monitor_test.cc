#include "worker/agent/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/steady_time.h"
#include "worker/gpu/testing/fake_nvml.h"

namespace milepost::worker {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

absl::Status NoCheck(int) { return absl::InternalError("nobody asked for a check"); }

TEST(GpuMonitorTest, ADriverThatHangsTakesTheSlotsOutAndHoldsNobody) {
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}};
  auto nvml = *Nvml::Open(FakeNvml::Functions());
  // As a call that does not return: the monitor's thread waits here.
  auto hang = std::make_unique<std::lock_guard<std::mutex>>(fake.mutex);
  std::vector<v1::DeviceFacts> told;
  absl::Notification answered;
  {
    GpuMonitor monitor(
        std::move(nvml), {{.slot = 4, .gpu = 0}, {.slot = 5, .gpu = 1}}, absl::Hours(1),
        [&](v1::DeviceFacts facts) {
          const bool fine = facts.problem().empty();
          told.push_back(std::move(facts));
          if (fine && told.size() == 4) answered.Notify();
        },
        NoCheck);
    const absl::Time later = SteadyNow() + 2 * kPatience;
    while (told.empty()) monitor.CheckProgress(later, kPatience);  // the thread begins when it may
    ASSERT_EQ(told.size(), 2);
    EXPECT_EQ(told[1].slot(), 5);
    EXPECT_THAT(told[1].problem(), HasSubstr("has not answered for 1m"));
    EXPECT_EQ(monitor.CheckProgress(later, kPatience), later + kPatience);
    EXPECT_EQ(told.size(), 2) << "once";
    hang.reset();
    answered.WaitForNotification();
    EXPECT_EQ(told[3].problem(), "");
  }
}

TEST(GpuMonitorTest, IsNotOverdueWhileItRests) {
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}};
  absl::Notification measured;
  GpuMonitor monitor(
      *Nvml::Open(FakeNvml::Functions()), {{.slot = 0, .gpu = 0}}, absl::Hours(1),
      [&](v1::DeviceFacts facts) {
        EXPECT_EQ(facts.problem(), "");
        if (!measured.HasBeenNotified()) measured.Notify();
      },
      NoCheck);
  measured.WaitForNotification();
  const absl::Time now = SteadyNow();
  EXPECT_LE(monitor.CheckProgress(now, kPatience), now + kPatience);
}

// What a program did wrong is not the GPU's. A check that fails is made again at every tenth
// measurement.
TEST(GpuMonitorTest, GraveErrorsAreCheckedAndOthersAreNot) {
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}};
  fake.xids = {{0, 79}, {1, 31}};
  std::vector<int> checked;
  std::vector<std::string> problems;  // of GPU-a
  absl::Notification well;
  std::unique_ptr<GpuMonitor> monitor;
  monitor = std::make_unique<GpuMonitor>(
      *Nvml::Open(FakeNvml::Functions()),
      std::vector<GpuMonitor::Watched>{{.slot = 0, .gpu = 0}, {.slot = 1, .gpu = 1}},
      absl::Milliseconds(1),
      [&](v1::DeviceFacts facts) {
        if (facts.slot() == 1) {
          EXPECT_EQ(facts.problem(), "");
        } else if (!well.HasBeenNotified()) {
          problems.push_back(facts.problem());
          if (facts.problem().empty()) well.Notify();
        }
      },
      [&](int gpu) {
        checked.push_back(gpu);
        return checked.size() < 2 ? absl::InternalError("two results") : absl::OkStatus();
      });
  well.WaitForNotification();
  monitor.reset();
  ASSERT_EQ(problems.size(), 12);
  EXPECT_THAT(problems[0], HasSubstr("XID 79, the GPU has fallen off the bus"));
  EXPECT_THAT(problems[1], HasSubstr("fails a check: two results"));
  EXPECT_THAT(problems[10], HasSubstr("fails a check: two results"));
  EXPECT_EQ(checked, std::vector<int>({0, 0}));
}

}  // namespace
}  // namespace milepost::worker
