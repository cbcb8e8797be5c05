#include "engine/runtime/gpu/backend/device_communicators.h"

#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::runtime {
namespace {

// What a communicator is told, and its health.
struct Told {
  absl::Status health;
  std::string aborted;
};

class ToldCommunicator : public DeviceCommunicator {
 public:
  explicit ToldCommunicator(Told* told) : told_(told) {}
  int rank() const override { return 0; }
  int world() const override { return 2; }
  bool capturable() const override { return true; }
  absl::Status Enqueue(const Collective&, char*, void*, cudaStream_t) override {
    return absl::OkStatus();
  }
  absl::Status EnqueueRows(const RowTransfers&, cudaStream_t) override { return absl::OkStatus(); }
  absl::Status Health() override { return told_->health; }
  void Abort(absl::string_view reason) override { told_->aborted = std::string(reason); }

 private:
  Told* const told_;
};

// A stage whose transfer failed would give the others sums of what never came.
TEST(DeviceCommunicators, AFailureOfOneEndsAll) {
  Told told[plan::kStreams];
  plan::StepPlan plan;
  plan.options.pipeline = 2;
  DeviceCommunicators communicators;
  ASSERT_EQ(communicators.Open(plan,
                               [&](const plan::StepPlan&, plan::Stream stream) {
                                 return std::make_unique<ToldCommunicator>(
                                     &told[static_cast<int>(stream)]);
                               }),
            absl::OkStatus());
  EXPECT_EQ(communicators.Health(), absl::OkStatus());
  Told& gradients = told[static_cast<int>(plan::Stream::kStageGradients)];
  gradients.health = absl::UnavailableError("rank 1 is gone");
  EXPECT_EQ(communicators.Health(), gradients.health);
  for (const plan::Stream stream :
       {plan::Stream::kCommunication, plan::Stream::kStageActivations}) {
    EXPECT_EQ(told[static_cast<int>(stream)].aborted, "rank 1 is gone");
  }
}

}  // namespace
}  // namespace milepost::runtime
