#include "worker/agent/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "absl/synchronization/notification.h"
#include "worker/gpu/testing/fake_nvml.h"

namespace milepost::worker {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

TEST(GpuMonitorTest, ADriverThatHangsTakesTheSlotsOutAndHoldsNobody) {
#ifdef MILEPOST_TSAN
  GTEST_SKIP() << "abseil comes without ThreadSanitizer's instrumentation";
#endif
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}};
  auto nvml = *Nvml::Open(FakeNvml::Functions());
  // As a call that does not return: the monitor's thread waits here.
  auto hang = std::make_unique<std::lock_guard<std::mutex>>(fake.mutex);
  std::vector<v1::DeviceFacts> told;
  absl::Notification answered;
  {
    GpuMonitor monitor(std::move(nvml), {{.slot = 4, .gpu = 0}, {.slot = 5, .gpu = 1}},
                       absl::Hours(1), [&](v1::DeviceFacts facts) {
                         const bool fine = facts.problem().empty();
                         told.push_back(std::move(facts));
                         if (fine && told.size() == 4) answered.Notify();
                       });
    const absl::Time later = absl::Now() + 2 * kPatience;
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
#ifdef MILEPOST_TSAN
  GTEST_SKIP() << "abseil comes without ThreadSanitizer's instrumentation";
#endif
  FakeNvml fake;
  fake.gpus = {{.uuid = "GPU-a"}};
  absl::Notification measured;
  GpuMonitor monitor(*Nvml::Open(FakeNvml::Functions()), {{.slot = 0, .gpu = 0}}, absl::Hours(1),
                     [&](v1::DeviceFacts facts) {
                       EXPECT_EQ(facts.problem(), "");
                       if (!measured.HasBeenNotified()) measured.Notify();
                     });
  measured.WaitForNotification();
  const absl::Time now = absl::Now();
  EXPECT_LE(monitor.CheckProgress(now, kPatience), now + kPatience);
}

}  // namespace
}  // namespace milepost::worker
