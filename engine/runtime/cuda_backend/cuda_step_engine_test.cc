// What a whole session on a fake device does where something of the device does not work.
#include "engine/runtime/cuda_backend/cuda_step_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/runtime/device/testing/fake_device.h"
#include "engine/runtime/testing.h"

namespace milepost::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TimelessDevice : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  absl::StatusOr<double> Elapsed(TimerId, TimerId) override {
    return absl::InternalError("the clock has stopped");
  }
};

TEST(CudaStepEngine, TrainsOnWhereItsTimesAreNotKnown) {
  const TinyJob job;
  const auto group = comm::MakeInProcessGroup(1);
  std::vector<std::string> notes;
  SessionOptions options;
  options.engine = [&](const StepEngineArguments& arguments) {
    CudaEngineParts parts;
    parts.device = std::make_unique<TimelessDevice>(/*seed=*/3);
    parts.products = std::make_unique<kernels::cuda::HostProducts>();
    parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
    parts.note = [&](const std::string& note) { notes.push_back(note); };
    return CudaStepEngine(arguments, std::move(parts));
  };
  auto session = TrainingSession::Create(
      job.Spec({.global_batch = 2, .micro_batch = 1, .layers = 1}), options, group[0].get());
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_EQ((*session)->InitializeParameters(), absl::OkStatus());
  for (int step = 0; step < 4; ++step) {
    const auto report = (*session)->Step(false);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->forward_seconds, 0);
  }
  EXPECT_THAT(notes, ElementsAre(HasSubstr("the clock has stopped")));
}

}  // namespace
}  // namespace milepost::runtime
