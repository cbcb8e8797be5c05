// Slots of different devices: kinds, models, and GPUs that are out of order.
#include "coordinator/core/fake_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace milepost::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr v1::DeviceKind kCuda = v1::DEVICE_KIND_CUDA;

class DeviceTest : public ::testing::Test, public FakeCluster {
 protected:
  void TearDown() override { EXPECT_EQ(violation, ""); }

  static v1::DeviceFacts Facts(int slot, const std::string& problem) {
    v1::DeviceFacts facts;
    facts.set_slot(slot);
    facts.set_problem(problem);
    facts.set_power_watts(300);
    return facts;
  }
  std::string Reason(const std::string& job) const { return Job(job).reason_detail(); }
  bool Starts(const std::string& job) const { return Job(job).state() == v1::JOB_STATE_STARTING; }
};

TEST_F(DeviceTest, JobsGetSlotsOfTheirKind) {
  Connect("cpus", 4);
  const std::string gpu = Submit(2, kCuda);
  EXPECT_THAT(Reason(gpu), HasSubstr("needs 2 cuda slots; the workers have 0 cuda slots, 4 cpu"));
  const std::string cpu = Submit(4);  // not behind it: other slots
  EXPECT_TRUE(Starts(cpu));
  Do(WorkerHello{MakeGpuHello("gpus", {"H200", "H200", "H200"})});
  ASSERT_TRUE(Starts(gpu));
  EXPECT_EQ(Job(gpu).placements(1).worker(), "workers/gpus");
  const std::string later = Submit(2, kCuda);
  EXPECT_THAT(Reason(later), HasSubstr("needs 2 cuda slots; 1 of 3 on 2 ready workers"));
}

TEST_F(DeviceTest, AJobsRanksHaveOneModel) {
  Do(WorkerHello{MakeGpuHello("a", {"A100", "A100", "H200"})});
  const std::string job = Submit(3, kCuda);
  EXPECT_THAT(Reason(job), AllOf(HasSubstr("one device model"), HasSubstr("2 A100, 1 H200")));
  Do(WorkerHello{MakeGpuHello("b", {"H200", "H200"})});
  ASSERT_TRUE(Starts(job));
  for (const v1::RankRecord& rank : Record(job).ranks()) {
    EXPECT_TRUE(rank.worker() == "workers/b" || rank.slot() == 2) << rank.DebugString();
  }
}

TEST_F(DeviceTest, ARankGetsAGpuWithRoomForIt) {
  v1::Hello hello = MakeGpuHello("a", {"H200", "L4", "L4", "unknown"});
  hello.mutable_slots(0)->set_memory_bytes(int64_t{141} << 30);
  hello.mutable_slots(1)->set_memory_bytes(int64_t{24} << 30);
  hello.mutable_slots(2)->set_memory_bytes(int64_t{24} << 30);
  Do(WorkerHello{hello});
  const auto submit = [&](int ranks, int64_t gib) {
    JobSubmitted event{.spec = Spec(ranks), .slot_bytes = gib << 30};
    event.spec.mutable_resources()->set_device(kCuda);
    return Do(event).job;
  };
  const std::string large = submit(1, 30);
  ASSERT_TRUE(Starts(large));
  EXPECT_EQ(Record(large).ranks(0).slot(), 0);
  const std::string two = submit(2, 30);
  EXPECT_THAT(Reason(two), AllOf(HasSubstr("one device model"),
                                 HasSubstr("1 H200, 1 unknown; 2 have "
                                           "less than the 30.0 GiB that a rank needs")));
  Do(JobCancelled{two});
  const std::string small = submit(2, 24);  // just as much
  ASSERT_TRUE(Starts(small));
  EXPECT_EQ(Record(small).ranks(0).slot(), 1);
  const std::string silent = submit(1, 1000);  // may have it
  ASSERT_TRUE(Starts(silent));
  EXPECT_EQ(Record(silent).ranks(0).slot(), 3);
}

TEST_F(DeviceTest, WhatIsTooSmallIsNotCountedAsFree) {
  v1::Hello hello = MakeGpuHello("a", {"A100", "A100", "A100", "A100"});
  for (int i = 0; i < 4; ++i) {
    hello.mutable_slots(i)->set_memory_bytes(int64_t{i < 2 ? 40 : 80} << 30);
  }
  Do(WorkerHello{hello});
  const auto submit = [&](int ranks) {
    JobSubmitted event{.spec = Spec(ranks), .slot_bytes = int64_t{60} << 30};
    event.spec.mutable_resources()->set_device(kCuda);
    event.spec.mutable_resources()->set_device_model("a100");
    return Do(event).job;
  };
  EXPECT_THAT(Reason(submit(3)), HasSubstr("needs 3 x a100 with 60.0 GiB; the workers have 2 of "
                                           "these: start workers with 1 more; 2 have less"));
  const std::string first = submit(1);
  ASSERT_TRUE(Starts(first));
  EXPECT_THAT(Reason(submit(2)), AllOf(HasSubstr("needs 2 x a100 with 60.0 GiB; 1 of 2 on 1 ready "
                                                 "worker is free; 2 have less than the 60.0 GiB"),
                                       HasSubstr("; 1 held by jobs/2 until it ends")));
}

TEST_F(DeviceTest, ASlotWhoseGpuIsLostGetsNothing) {
  Do(WorkerHello{MakeGpuHello("a", {"H200", "H200"})});
  Do(WorkerHeartbeat{"workers/a", {Facts(0, "GPU-0 fell off the bus"), Facts(1, "")}});
  EXPECT_EQ(Worker("a").devices(0).problem(), "GPU-0 fell off the bus");
  EXPECT_EQ(Worker("a").devices(1).power_watts(), 300);
  const std::string job = Submit(2, kCuda);
  EXPECT_THAT(Reason(job), AllOf(HasSubstr("the workers have 1 cuda slot"),
                                 HasSubstr("slot 0 of workers/a is out: GPU-0 fell off the bus")));
  const std::string small = Submit(1, kCuda);
  EXPECT_TRUE(Starts(small)) << "what the workers cannot run at all is waited for by nobody";
  Do(JobCancelled{small});
  ReportAll(small, v1::RANK_STATE_STOPPED);
  Do(WorkerHeartbeat{"workers/a", {Facts(0, "")}});
  EXPECT_TRUE(Starts(job));
  EXPECT_EQ(Worker("a").devices_size(), 2);
}

TEST_F(DeviceTest, OnlyADrainedWorkerThatFitsIsNamed) {
  v1::Hello hello = MakeGpuHello("a", {"L4", "H200", "H200", "H200"});
  for (int i = 0; i < 3; ++i) hello.mutable_slots(i)->set_memory_bytes(int64_t{24 << i} << 30);
  Do(WorkerHello{hello});
  Do(WorkerHeartbeat{"workers/a", {Facts(3, "GPU-3 fell off the bus")}});
  Do(WorkerDrained{"workers/a", "new disk", now});
  Connect("cpus", 1);
  const auto submit = [&](const std::string& model, int64_t gib) {
    JobSubmitted event{.spec = Spec(1), .slot_bytes = gib << 30};
    event.spec.mutable_resources()->set_device(kCuda);
    event.spec.mutable_resources()->set_device_model(model);
    return Do(event).job;
  };
  EXPECT_THAT(Reason(submit("", 0)), AllOf(HasSubstr("workers/a with 1 such slot is drained"),
                                           HasSubstr("workers/a with 2 such slots is drained"),
                                           HasSubstr("slot 3 of workers/a is out: GPU-3 fell")));
  EXPECT_THAT(Reason(submit("h200", 0)), AllOf(HasSubstr("workers/a with 2 such slots is drained"),
                                               Not(HasSubstr("with 1 such slot"))));
  EXPECT_THAT(Reason(submit("h200", 90)), HasSubstr("workers/a with 1 such slot is drained"));
  EXPECT_THAT(Reason(submit("", 100)),
              AllOf(Not(HasSubstr("such slot")), Not(HasSubstr("back from a drain"))));
  EXPECT_THAT(Reason(submit("b200", 0)), Not(HasSubstr("drained")));
}

TEST_F(DeviceTest, ALossChangesTheReasonOfAJobThatWaits) {
  Do(WorkerHello{MakeGpuHello("a", {"H200"})});
  const std::string running = Submit(1, kCuda);
  const std::string job = Submit(1, kCuda);
  EXPECT_THAT(Reason(job), HasSubstr("0 of 1"));
  Do(WorkerHeartbeat{"workers/a", {Facts(0, "lost")}});
  EXPECT_THAT(Reason(job), HasSubstr("slot 0 of workers/a is out: lost"));
  EXPECT_TRUE(Starts(running)) << "its rank says itself how it ends";
}

TEST_F(DeviceTest, HelloSaysAllThatIsKnown) {
  v1::Hello hello = MakeGpuHello("a", {"H200"});
  *hello.add_devices() = Facts(0, "lost");
  *hello.add_devices() = Facts(7, "of no slot");
  hello.set_driver("580.65");
  Do(WorkerHello{hello});
  EXPECT_EQ(Worker("a").devices_size(), 1);
  EXPECT_EQ(Worker("a").driver(), "580.65");
  const std::string job = Submit(1, kCuda);
  EXPECT_FALSE(Starts(job));
  hello.clear_devices();
  Do(WorkerHello{hello});
  EXPECT_TRUE(Starts(job));
}

TEST_F(DeviceTest, SaysWhyAHostsGpusAreNotOffered) {
  v1::Hello hello = MakeHello("a", 1, 1);
  hello.set_device_note("8 GPUs are not offered: milepost-trainer-cuda is not installed");
  Do(WorkerHello{hello});
  EXPECT_THAT(Reason(Submit(1, kCuda)), HasSubstr("workers/a: 8 GPUs are not offered"));
  const std::string cpu = Submit(2);
  EXPECT_THAT(Reason(cpu), ::testing::Not(HasSubstr("not offered")));
}

TEST_F(DeviceTest, FactsOfUnknownWorkersAndCpuSlotsAreIgnored) {
  Connect("a", 1);
  Do(WorkerHeartbeat{"workers/a", {Facts(0, "a CPU has no such thing")}});
  EXPECT_EQ(Worker("a").devices_size(), 0);
  EXPECT_TRUE(Do(WorkerHeartbeat{"workers/nobody", {Facts(0, "")}}).status.ok());
  EXPECT_TRUE(Starts(Submit(1)));
}

TEST_F(DeviceTest, FactsAreNotWritten) {
  Do(WorkerHello{MakeGpuHello("a", {"H200"})});
  EXPECT_FALSE(Do(WorkerHeartbeat{"workers/a", {Facts(0, "lost")}}).NeedsWrite());
}

}  // namespace
}  // namespace milepost::coordinator
