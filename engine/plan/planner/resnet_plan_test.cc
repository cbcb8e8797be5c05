// Plans of convolutional networks: sizes, running statistics, and what the verifier refuses.
#include <algorithm>

#include "common/spec/parse.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/statistics.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {
namespace {

using graph::OpKind;
using testing::HasSubstr;

v1::JobSpec Example(const char* name) {
  const auto spec = LoadJobSpec(std::string("examples/") + name);  // tests run in the source folder
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

StepPlan Plan(const v1::JobSpec& spec) {
  const auto options = OptionsFromSpec(spec, 2);
  EXPECT_TRUE(options.ok()) << options.status();
  auto plan = PlanTraining(spec, *options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

int Count(const StepPlan& plan, OpKind kind) {
  return static_cast<int>(std::count_if(plan.train.ops.begin(), plan.train.ops.end(),
                                        [&](const PlannedOp& op) { return op.op.kind == kind; }));
}

// torchvision: 60.19 M parameters, 11.51 GMAC for a forward of one image.
TEST(ResNetPlan, ResNet152) {
  v1::JobSpec spec = Example("resnet-152.yaml");
  StepPlan plan = Plan(spec);
  EXPECT_EQ(plan.parameters, 60192808);
  double forward = 0;
  for (const PlannedOp& op : plan.evaluate.ops) forward += op.flops;
  EXPECT_NEAR(forward / 32, 2 * 11.51e9, 0.02e9);
  // The stem's input needs no gradient.
  EXPECT_NEAR(plan.flops_per_step, 3 * forward - 32 * 2 * 0.118e9, 0.002 * forward);
  EXPECT_EQ(Count(plan, OpKind::kConvolution), 155 + 0);
  EXPECT_EQ(Count(plan, OpKind::kAverageStatistics), 1);
  EXPECT_EQ(Count(plan, OpKind::kReduceStatistics), 0);

  int64_t activations = plan.bytes_by_class[static_cast<int>(BufferClass::kActivations)];
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_NONE);
  EXPECT_GT(Plan(spec).bytes_by_class[static_cast<int>(BufferClass::kActivations)],
            1.15 * static_cast<double>(activations));
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_FULL);
  EXPECT_LT(Plan(spec).bytes_by_class[static_cast<int>(BufferClass::kActivations)],
            0.6 * static_cast<double>(activations));
}

TEST(ResNetPlan, SynchronisedNormsReduceInForwardAndBackward) {
  const v1::JobSpec spec = Example("resnet-tiny.yaml");
  const StepPlan plan = Plan(spec);
  const int norms = Count(plan, OpKind::kBatchNormSums);
  EXPECT_EQ(norms, 1 + 3 * 2 + 2);
  EXPECT_EQ(Count(plan, OpKind::kReduceStatistics), 2 * norms);
  EXPECT_EQ(Count(plan, OpKind::kAverageStatistics), 0);
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.kind != OpKind::kReduceStatistics) continue;
    const graph::Shape& sums = plan.train.graph.values[op.op.outputs[0].value].shape;
    EXPECT_EQ(op.stream, Stream::kCommunication);
    EXPECT_EQ(op.wire_bytes, 8 * graph::Elements(sums));  // 2 (1 - 1/2) of each f64
  }
}

// A recomputed norm must not count its batch twice.
TEST(ResNetPlan, RecomputationReplaysNoStatistics) {
  v1::JobSpec spec = Example("resnet-tiny.yaml");
  for (const v1::Recompute recompute : {v1::RECOMPUTE_SELECTIVE, v1::RECOMPUTE_FULL}) {
    spec.mutable_train()->set_recompute(recompute);
    const StepPlan plan = Plan(spec);
    int replayed = 0;
    for (const PlannedOp& op : plan.train.ops) {
      if (op.op.phase != graph::Phase::kRecompute) continue;
      ++replayed;
      EXPECT_TRUE(op.op.kind == OpKind::kBatchNorm || op.op.kind == OpKind::kNormalizeImages ||
                  op.op.kind == OpKind::kConvolution || op.op.kind == OpKind::kMaxPool)
          << graph::Name(op.op.kind);
    }
    EXPECT_GT(replayed, 0);
  }
}

class ResNetVerify : public testing::Test {
 protected:
  ResNetVerify() {
    v1::JobSpec spec = Example("resnet-tiny.yaml");
    spec.mutable_model()->mutable_resnet()->set_sync_statistics(false);
    plan_ = Plan(spec);
  }
  PlannedOp& First(OpKind kind) {
    return *std::find_if(plan_.train.ops.begin(), plan_.train.ops.end(),
                         [&](const PlannedOp& op) { return op.op.kind == kind; });
  }
  void ExpectRefused(const char* message) {
    const absl::Status status = Verify(plan_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  StepPlan plan_;
};

TEST_F(ResNetVerify, StatisticsMoveInPlace) {
  First(OpKind::kBatchNormStatistics).op.outputs[2].mode = graph::WriteMode::kAssign;
  ExpectRefused("not once in the forward");
}

TEST_F(ResNetVerify, StatisticsMoveInTheForwardOnly) {
  First(OpKind::kBatchNormStatistics).op.phase = graph::Phase::kRecompute;
  ExpectRefused("not once in the forward");
}

TEST_F(ResNetVerify, StatisticsMoveInEveryMicroStep) {
  First(OpKind::kBatchNormStatistics).when = When::kUpdate;
  EXPECT_FALSE(Verify(plan_).ok());
}

TEST_F(ResNetVerify, RanksAgreeOnStatistics) {
  PlannedOp& average = First(OpKind::kAverageStatistics);
  plan_.wire_bytes_per_step -= average.wire_bytes;
  plan_.train.ops.erase(plan_.train.ops.begin() + (&average - plan_.train.ops.data()));
  ExpectRefused("averaged 0 times");
}

TEST_F(ResNetVerify, StatisticsLieInTheirBuffer) {
  plan_.buffers[plan_.statistics].bytes -= 8;
  EXPECT_FALSE(Verify(plan_).ok());
}

TEST_F(ResNetVerify, WireBytesOfTheAverage) {
  First(OpKind::kAverageStatistics).wire_bytes += 4;
  ExpectRefused("average_statistics");
}

TEST(StatisticsLayout, FloatsComeFirst) {
  graph::Graph graph;
  const auto add = [&](DType dtype, const graph::Shape& shape) {
    graph.values.push_back(
        {.name = "s", .dtype = dtype, .shape = shape, .kind = graph::ValueKind::kStatistic});
    graph.statistics.push_back({.value = static_cast<graph::ValueId>(graph.values.size()) - 1});
  };
  add(DType::kF32, {3});
  add(DType::kI64, {});
  add(DType::kF32, {2});
  add(DType::kI64, {});
  const StatisticsLayout layout = LayOutStatistics(graph);
  EXPECT_THAT(layout.offsets, testing::ElementsAre(0, 24, 12, 32));
  EXPECT_EQ(layout.f32_elements, 5);
  EXPECT_EQ(layout.bytes, 40);
}

}  // namespace
}  // namespace milepost::plan
