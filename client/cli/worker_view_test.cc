#include "client/cli/worker_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/output.h"
#include "common/proto_time.h"

namespace milepost::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(10'000);

v1::Worker GpuWorker() {
  v1::Worker worker;
  worker.set_name("workers/a");
  worker.set_state(v1::WORKER_STATE_READY);
  worker.set_driver("580.65.06");
  for (int i = 0; i < 2; ++i) {
    v1::Slot* slot = worker.add_slots();
    slot->set_index(i);
    slot->set_device(v1::DEVICE_KIND_CUDA);
    slot->set_model("NVIDIA H200");
    slot->set_memory_bytes(int64_t{141} << 30);
    slot->set_compute_capability(90);
    slot->set_numa_node(i);
    slot->set_cores(16);
  }
  v1::DeviceFacts* facts = worker.add_devices();
  facts->set_slot(0);
  *facts->mutable_time() = ToProto(kNow - absl::Seconds(3));
  facts->set_utilization_percent(97);
  facts->set_memory_used_bytes(int64_t{61} << 30);
  facts->set_power_watts(650.4);
  facts->set_power_limit_watts(700);
  facts->set_temperature_celsius(61);
  facts->set_sm_clock_mhz(1755);
  facts->set_most_sm_clock_mhz(1980);
  facts->add_throttling("power cap");
  facts->set_nvlinks(18);
  facts->set_nvlinks_active(17);
  facts->set_nvlink_receive_bytes_per_second(int64_t{40} << 30);
  facts->set_nvlink_transmit_bytes_per_second(int64_t{41} << 30);
  facts->set_ecc_errors(2);
  facts->set_last_xid(94);
  *facts->mutable_last_xid_time() = ToProto(kNow - absl::Minutes(5));
  return worker;
}

TEST(WorkerViewTest, SaysHowAGpuDoes) {
  const v1::Worker worker = GpuWorker();
  EXPECT_EQ(FactsText(worker.devices(0), kNow),
            "97% busy, 61.0 GiB used, 650 of 700 W, 61 °C, 1755 of 1980 MHz, held down by power "
            "cap, 17 of 18 NVLinks up, NVLink 40.0 GiB/s in, 41.0 GiB/s out, 2 uncorrected memory "
            "errors, XID 94, memory error that ended one program (5m00s ago); 3s ago");
  v1::DeviceFacts lost;
  lost.set_problem("GPU 0 has fallen off the bus: restart the host");
  *lost.mutable_time() = ToProto(kNow);
  EXPECT_EQ(FactsText(lost, kNow),
            "out of order: GPU 0 has fallen off the bus: restart the host; 0s ago");
  lost.clear_problem();
  EXPECT_EQ(FactsText(lost, kNow), "tells nothing; 0s ago");
}

TEST(WorkerViewTest, OneThatIsDownShowsSinceWhen) {
  v1::Worker worker = GpuWorker();
  worker.set_state(v1::WORKER_STATE_DOWN);
  *worker.mutable_lease_expire_time() = ToProto(kNow - absl::Minutes(3));
  EXPECT_THAT(RenderWorkers({worker}, OutputFormat::kTable, kNow), HasSubstr("gone 3m"));
}

TEST(WorkerViewTest, TablesShowModelAndMemory) {
  v1::Worker worker = GpuWorker();
  const std::string list = RenderWorkers({worker}, OutputFormat::kTable, kNow);
  EXPECT_THAT(list, AllOf(HasSubstr("DEVICE"), HasSubstr("NVIDIA H200"), HasSubstr("141.0 GiB")));
  EXPECT_THAT(RenderWorkers({worker}, OutputFormat::kWide, kNow), HasSubstr("580.65.06"));
  (*worker.mutable_labels())["pool"] = "h200-east";
  EXPECT_THAT(RenderWorkers({worker}, OutputFormat::kWide, kNow),
              AllOf(HasSubstr("POOL"), HasSubstr("h200-east")));
  const std::string text = RenderWorker(worker, OutputFormat::kTable, kNow);
  EXPECT_THAT(text,
              AllOf(HasSubstr("NVIDIA H200, 141.0 GiB, capability 9.0, 16 cores of NUMA node "
                              "1: free"),
                    HasSubstr("97% busy"), HasSubstr("580.65.06"), Not(HasSubstr("not off"))));
  worker.mutable_slots(1)->set_memory_bytes(int64_t{24} << 30);
  worker.mutable_slots(1)->set_model("NVIDIA L4");
  EXPECT_EQ(SlotMemoryText(worker), "24.0 GiB to 141.0 GiB");
  EXPECT_EQ(DevicesText(worker), "NVIDIA H200, NVIDIA L4");
  worker.set_device_note("not offered: GPU 2 is divided (MIG)");
  EXPECT_THAT(RenderWorker(worker, OutputFormat::kTable, kNow), HasSubstr("GPU 2 is divided"));
}

TEST(WorkerViewTest, JsonHasAllOfIt) {
  const std::string json = RenderWorker(GpuWorker(), OutputFormat::kJson, kNow);
  EXPECT_THAT(json, AllOf(HasSubstr("\"model\": \"NVIDIA H200\""), HasSubstr("\"temperature"),
                          HasSubstr("\"driver\": \"580.65.06\"")));
}

// As a coordinator has stored it before there were GPUs.
TEST(WorkerViewTest, OldWorkersHaveNone) {
  v1::Worker worker;
  worker.set_name("workers/old");
  worker.add_slots()->set_device(v1::DEVICE_KIND_CPU);
  worker.mutable_slots(0)->set_cores(1);
  EXPECT_EQ(DevicesText(worker), "cpu");
  EXPECT_EQ(SlotMemoryText(worker), "-");
  EXPECT_EQ(SlotText(worker.slots(0)), "cpu, 1 core");
  EXPECT_THAT(RenderWorker(worker, OutputFormat::kTable, kNow),
              AllOf(HasSubstr("cpu, 1 core: free"), Not(HasSubstr("Driver"))));
}

}  // namespace
}  // namespace milepost::client
