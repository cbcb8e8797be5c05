#include "engine/runtime/gpu/backend/step_control.h"

#include <cstring>
#include <string>
#include <vector>

#include "common/philox.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/executor/randomness.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using kernels::cuda::SegmentFactors;

plan::StepPlan PlanOf(const TinyJob& job, v1::OptimizerSpec::Type optimizer, int world, int stage) {
  v1::JobSpec spec = job.Spec({.ranks = world, .stage = stage});
  spec.mutable_train()->mutable_optimizer()->set_type(optimizer);
  v1::OptimizerSpec& groups = *spec.mutable_train()->mutable_optimizer();
  v1::ParameterGroupSpec* slow = groups.add_groups();
  slow->set_match("*.h.0.mlp*");
  slow->set_lr_scale(0.5);
  v1::ParameterGroupSpec* frozen = groups.add_groups();
  frozen->set_match("*wpe*");
  frozen->set_freeze(true);
  return *plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
}

StepContext SomeContext() {
  StepContext c;
  c.seed = 5;
  c.step = 12;
  c.first_sample = 77;
  c.gradient_factors = {0.5F, 0.25F};
  c.position = 9;
  c.stop_requested = true;
  c.learning_rate = 0.01F;
  c.beta1 = 0.9F;
  c.beta2 = 0.95F;
  c.epsilon = 1e-8F;
  c.weight_decay = 0.1F;
  c.momentum = 0.8F;
  c.update = 4;
  return c;
}

struct Written {
  Written(const plan::StepPlan& plan, int rank)
      : layout(ControlLayoutOf(plan, rank)),
        memory(static_cast<size_t>(layout.bytes + 64), '\xee') {
    WriteControl(plan, rank, layout, SomeContext(), {.loss_scale = 2, .max_norm = 3}, At());
  }
  char* At() {
    const auto begin = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (16 - begin % 16) % 16;
  }
  template <typename T>
  T Read(int64_t offset) {
    T value;
    std::memcpy(&value, At() + offset, sizeof(T));
    return value;
  }
  ControlLayout layout;
  std::string memory;
};

TEST(StepControl, HoldsWhatTheContextSays) {
  TinyJob job;
  const plan::StepPlan plan = PlanOf(job, v1::OptimizerSpec::TYPE_ADAMW, 1, 0);
  Written written(plan, 0);
  const auto control = written.Read<StepControl>(0);
  EXPECT_EQ(control.position.step, 12U);
  EXPECT_EQ(control.position.first_sample, 77U);
  EXPECT_EQ(control.gradient_factors[0], 0.5F);
  EXPECT_EQ(control.gradient_factors[1], 0.25F);
  EXPECT_EQ(control.stop, 1);
  EXPECT_EQ(control.row, 9);
  EXPECT_EQ(control.clip.loss_scale, 2);
  EXPECT_EQ(control.clip.max_norm, 3);
  EXPECT_EQ(control.factors.momentum, 0.8F);
  EXPECT_EQ(control.factors.step, 12U);
  EXPECT_EQ(control.factors.root1, static_cast<float>(1 / (1 - std::pow(double{0.9F}, 4))));
}

// One after the other, and as many as the rank's shard has.
TEST(StepControl, EverySegmentHasAPlaceOfItsOwn) {
  TinyJob job;
  for (const auto& [world, stage, rank] :
       {std::tuple(1, 0, 0), std::tuple(3, 2, 1), std::tuple(2, 3, 1)}) {
    const plan::StepPlan plan = PlanOf(job, v1::OptimizerSpec::TYPE_ADAMW, world, stage);
    Written written(plan, rank);
    int64_t end = sizeof(StepControl);
    int frozen = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const plan::FlatGroup& group = plan.groups[g];
      const std::vector<Segment> segments = SegmentsOf(
          group, group.shard_elements * (rank % plan.options.Shards()), group.shard_elements);
      frozen += group.frozen ? 1 : 0;
      EXPECT_EQ(written.layout.segments[g],
                group.frozen ? 0 : static_cast<int64_t>(segments.size()));
      EXPECT_GE(written.layout.factors[g], end);
      EXPECT_EQ(written.layout.factors[g] % 16, 0);
      end = written.layout.factors[g];
      for (int64_t i = 0; i < written.layout.segments[g]; ++i) {
        const auto factors = written.Read<SegmentFactors>(end);
        const float rate = 0.01F * segments[i].lr_scale;
        EXPECT_EQ(factors.rate, static_cast<float>(rate / (1 - std::pow(double{0.9F}, 4))));
        EXPECT_EQ(factors.shrink,
                  static_cast<float>(1 - double{rate} * (segments[i].decay ? 0.1F : 0.0F)));
        EXPECT_EQ(factors.element_offset + segments[i].begin, segments[i].element);
        EXPECT_EQ(factors.round_states[1],
                  PhiloxKey(5, RandomStream(RandomPurpose::kRoundV,
                                            static_cast<uint32_t>(segments[i].parameter))));
        EXPECT_NE(factors.round_states[0], factors.round_states[1]);
        end += sizeof(SegmentFactors);
      }
    }
    EXPECT_EQ(frozen, 1);
    EXPECT_LE(end, written.layout.bytes);
    EXPECT_EQ(written.At()[written.layout.bytes], '\xee');
  }
}

// Of a pipeline's stage, whose program has all of a step's micro-batches.
TEST(StepControl, EveryMicroBatchHasItsPositionAndTables) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.ranks = 4,
                                     .pipeline = 2,
                                     .global_batch = 12,
                                     .micro_batch = 2,
                                     .documents = true});  // three for each of two data ranks
  plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
  const plan::StepPlan plan = *plan::PlanTraining(spec, options);
  Written written(plan, 0);
  ASSERT_EQ(written.layout.micro_batches, 3);
  for (int64_t i = 0; i < 3; ++i) {
    const auto position = written.Read<kernels::cuda::StepPosition>(written.layout.PositionOf(i));
    EXPECT_EQ(position.step, 12U);
    EXPECT_EQ(position.first_sample, static_cast<uint64_t>(77 + i * 4));
    EXPECT_EQ(written.layout.PositionOf(i) % 16, 0);
  }
  ASSERT_TRUE(written.layout.documents.has_value());
  EXPECT_GE(written.layout.TablesOf(0), written.layout.PositionOf(2) + 16);
  EXPECT_GT(written.layout.TablesOf(1), written.layout.TablesOf(0));
  EXPECT_LT(written.layout.TablesOf(2), written.layout.bytes);
  EXPECT_EQ(written.At()[written.layout.bytes], '\xee');
}

TEST(StepControl, LambsTensorsAndMuonsFactors) {
  TinyJob job;
  for (const auto optimizer : {v1::OptimizerSpec::TYPE_LAMB, v1::OptimizerSpec::TYPE_MUON}) {
    const plan::StepPlan plan = PlanOf(job, optimizer, 1, 0);
    Written written(plan, 0);
    int seen = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const plan::FlatGroup& group = plan.groups[g];
      if (group.frozen) continue;
      const std::vector<Segment> segments = SegmentsOf(group, 0, group.shard_elements);
      for (size_t i = 0; i < segments.size(); ++i) {
        const auto factors = written.Read<SegmentFactors>(
            written.layout.factors[g] + static_cast<int64_t>(i * sizeof(SegmentFactors)));
        const float rate = 0.01F * segments[i].lr_scale;
        if (group.optimizer == plan::Optimizer::kLamb) {
          EXPECT_EQ(factors.norms, segments[i].decay ? static_cast<int32_t>(i) : -1);
          EXPECT_EQ(factors.rate, rate);
          EXPECT_EQ(factors.decay, segments[i].decay ? 0.1F : 0.0F);
          ++seen;
        } else if (group.optimizer == plan::Optimizer::kMuon) {
          const graph::Shape& shape = group.parameters[i].shape;
          const auto side = static_cast<double>(std::max(shape[0], shape[1]));
          EXPECT_EQ(factors.rate, rate * static_cast<float>(0.2 * std::sqrt(side)));
          ++seen;
        }
      }
    }
    EXPECT_GT(seen, 4);
  }
}

}  // namespace
}  // namespace milepost::runtime
