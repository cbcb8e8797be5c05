// What a whole session on a fake device does where something of the device does not work.
#include "engine/runtime/gpu/backend/cuda_step_engine.h"
#include "engine/ops/linear/linear_contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

class UnpinnedDevice : public FakeDevice {
 public:
  using FakeDevice::FakeDevice;
  absl::Status Pin(char*, int64_t) override {
    return absl::ResourceExhaustedError("no locked pages are left");
  }
};

// Slower, but to the bit the same; and said once.
TEST(CudaStepEngine, TrainsOnAHostThatPinsNoMemory) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec({.global_batch = 2, .micro_batch = 1, .layers = 1});
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  std::vector<std::string> notes;
  const auto losses = [&](auto device) {
    const auto group = comm::MakeInProcessGroup(1);
    SessionOptions options;
    options.engine = [&](const StepEngineArguments& arguments) {
      CudaEngineParts parts;
      parts.device = std::move(device);
      parts.products = std::make_unique<kernels::cuda::HostProducts>();
      parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
      parts.note = [&](const std::string& note) { notes.push_back(note); };
      return CudaStepEngine(arguments, std::move(parts));
    };
    auto session = TrainingSession::Create(spec, options, group[0].get());
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_EQ((*session)->InitializeParameters(), absl::OkStatus());
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) losses.push_back((*session)->Step(false)->train_loss);
    return losses;
  };
  const std::vector<double> pinned = losses(std::make_unique<FakeDevice>(/*seed=*/3));
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_EQ(losses(std::make_unique<UnpinnedDevice>(/*seed=*/3)), pinned);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("no locked pages are left")));
}

// A job's bits depend on the algorithms of its products: a later attempt takes the first one's.
TEST(CudaStepEngine, TheSameChoicesGiveTheSameBits) {
  using Order = kernels::cuda::HostProducts::Order;
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.global_batch = 2, .micro_batch = 1, .layers = 1});
  std::vector<std::string> notes;
  std::string choices;
  const auto losses = [&](Order order, const std::string& given) {
    const auto group = comm::MakeInProcessGroup(1);
    SessionOptions options{.choices = given};
    options.engine = [&](const StepEngineArguments& arguments) {
      CudaEngineParts parts;
      parts.device = std::make_unique<FakeDevice>(/*seed=*/3);
      parts.products =
          std::make_unique<kernels::cuda::HostProducts>(kernels::cuda::kProductScratchBytes, order);
      parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
      parts.note = [&](const std::string& note) { notes.push_back(note); };
      return CudaStepEngine(arguments, std::move(parts));
    };
    auto session = TrainingSession::Create(spec, options, group[0].get());
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_EQ((*session)->InitializeParameters(), absl::OkStatus());
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) losses.push_back((*session)->Step(false)->train_loss);
    choices = (*session)->choices();
    return losses;
  };
  const std::vector<double> first = losses(Order::kForward, "");
  const std::string of_job = choices;
  EXPECT_NE(losses(Order::kBackward, ""), first);
  EXPECT_EQ(losses(Order::kBackward, of_job), first);
  EXPECT_EQ(choices, of_job);
  EXPECT_THAT(notes, IsEmpty());

  const std::string other = kernels::cuda::AlgorithmTable("another GPU").Format();
  EXPECT_EQ(losses(Order::kForward, other), first);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("chosen anew")));
  EXPECT_EQ(choices, of_job + other);  // for when the job comes back to that GPU
}

// The host reads and writes at least 28 bytes of its memory for each parameter that it updates
// (AdamW's), at 460 GB/s on an H200's host.
TEST(CudaStepEngine, WaitsLongerForWhatTakesLonger) {
  const TinyJob job;
  const auto timeout_of = [&](int64_t width, bool offload) {
    v1::JobSpec spec = job.Spec({.precision = v1::PRECISION_BF16, .width = width});
    if (offload) spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
    plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
    options.device = plan::DeviceKind::kCuda;
    const plan::StepPlan plan = *plan::PlanTraining(spec, options);
    return std::pair(StepTimeout(plan, 1, absl::Seconds(60)), plan.parameters);
  };
  EXPECT_LT(timeout_of(32, false).first, absl::Seconds(61));
  EXPECT_GE(timeout_of(32, false).first, absl::Seconds(60));
  const auto [timeout, parameters] = timeout_of(2048, true);
  EXPECT_GT(timeout - absl::Seconds(60),
            absl::Seconds(20 * 28 * static_cast<double>(parameters) / 460e9));
  EXPECT_LT(timeout, absl::Seconds(120));
}

}  // namespace
}  // namespace milepost::runtime
