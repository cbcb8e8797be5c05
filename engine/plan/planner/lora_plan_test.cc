// What adapters cost: docs/use/job-spec.md tells it.
#include <string>

#include "absl/strings/match.h"
#include "common/spec/validate.h"
#include "engine/graph/base_matrices.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

v1::JobSpec Adapting(int64_t rank) {
  v1::JobSpec spec = SpecOf({});
  spec.mutable_model()->mutable_lora()->set_rank(rank);
  return spec;
}

PlanOptions LoraOptions(int world, int stage, DType dtype) {
  PlanOptions options = OptionsOf(world, stage, dtype);
  options.frozen_masters = false;
  return options;
}

// At 16 bits that would be 4 bytes for each of its parameters.
TEST(LoraPlan, WhatIsAdaptedHasNeitherGradientNorStateNorMaster) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (int world : {1, 2, 3}) {
      for (int stage : {0, 1, 2, 3}) {
        const auto plan = PlanTraining(Adapting(4), LoraOptions(world, stage, dtype));
        ASSERT_TRUE(plan.ok()) << plan.status();  // and so verified
        int64_t base = 0, trained = 0;
        for (const FlatGroup& group : plan->groups) {
          EXPECT_EQ(group.base, group.frozen);
          (group.base ? base : trained) += group.shard_elements;
          if (!group.base) continue;
          EXPECT_EQ(group.gradient_buffer, kNoBuffer);
          EXPECT_EQ(group.state_buffers[0], kNoBuffer);
          EXPECT_EQ(group.master_buffer != kNoBuffer, dtype == DType::kF16);
          EXPECT_THAT(group.name, HasSubstr(" (base)"));
        }
        ASSERT_GT(base, 10 * trained);
        const int64_t masters = dtype == DType::kF32    ? 0
                                : dtype == DType::kBf16 ? trained
                                                        : trained + base;
        EXPECT_EQ(ClassBytes(*plan, BufferClass::kOptimizer), 4 * (masters + 2 * trained));
      }
    }
  }
}

// What preferences compare a whole model with: in the compute type, and sharded as the model is.
TEST(LoraPlan, PreferencesKeepWhatTheModelWas) {
  for (int stage : {0, 1, 2, 3}) {
    PlanOptions options = OptionsOf(2, stage, DType::kBf16);
    const auto alone = PlanTraining(SpecOf({}), options);
    options.documents = true;
    options.dpo_beta = 0.1;
    const auto plan = PlanTraining(SpecOf({}), options);
    ASSERT_TRUE(alone.ok() && plan.ok()) << plan.status();
    int64_t base = 0, trained = 0;
    for (const FlatGroup& group : plan->groups) {
      (group.base ? base : trained) += group.padded_elements;
      if (!group.base) continue;
      EXPECT_EQ(group.master_buffer, kNoBuffer);
      for (const GroupParameter& p : group.parameters)
        EXPECT_THAT(p.name, StartsWith("reference."));
    }
    EXPECT_EQ(base, trained);
    EXPECT_EQ(plan->parameters, alone->parameters);
    EXPECT_EQ(ClassBytes(*plan, BufferClass::kOptimizer),
              ClassBytes(*alone, BufferClass::kOptimizer));
    EXPECT_EQ(SnapshotBytes(*plan), SnapshotBytes(*alone));
    EXPECT_EQ(ClassBytes(*plan, BufferClass::kParameters),
              2 * ClassBytes(*alone, BufferClass::kParameters));
  }
}

// Nor is it copied for a checkpoint, or from a GPU for one.
TEST(LoraPlan, CheckpointsAreOfWhatIsTrained) {
  for (DType dtype : {DType::kF32, DType::kBf16}) {
    PlanOptions options = LoraOptions(2, 1, dtype);
    options.device = DeviceKind::kCuda;
    const auto plan = PlanTraining(Adapting(4), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    int64_t trained = 0, with_base = 0;
    for (const FlatGroup& group : plan->groups) {
      if (!group.base) trained += group.padded_elements;
    }
    EXPECT_EQ(SnapshotBytes(*plan), trained / 2 * 3 * 4);
    int64_t without = 0;
    for (const BufferId id : StateOnDevice(*plan, true, false)) without += plan->buffers[id].bytes;
    for (const BufferId id : StateOnDevice(*plan, true, true)) with_base += plan->buffers[id].bytes;
    EXPECT_GT(with_base, 2 * without);
  }
}

TEST(LoraPlan, TheBackwardEndsAtTheLowestAdapters) {
  v1::JobSpec top = Adapting(4);
  top.mutable_model()->mutable_lora()->add_targets("h.1.*");
  const PlanOptions options = LoraOptions(1, 0, DType::kBf16);
  const auto all = PlanTraining(SpecOf({}), options);
  const auto adapters = PlanTraining(Adapting(4), options);
  const auto upper = PlanTraining(top, options);
  ASSERT_TRUE(all.ok() && adapters.ok() && upper.ok());
  // Two products of a layer's three, but for the head's and attention's.
  EXPECT_LT(adapters->flops_per_step, 0.85 * all->flops_per_step);
  EXPECT_LT(upper->flops_per_step, 0.85 * adapters->flops_per_step);
}

TEST(LoraPlan, AdaptersKeep16BitsAtFp8) {
  PlanOptions options = LoraOptions(1, 0, DType::kBf16);
  options.fp8 = true;
  const auto plan = PlanTraining(Adapting(16), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int fp8 = 0, wide = 0;
  for (const PlannedOp& planned : plan->train.ops) {
    if (planned.op.kind != graph::OpKind::kLinear) continue;
    (planned.op.attributes.fp8 ? fp8 : wide) += 1;
  }
  EXPECT_EQ(fp8, 8);
  EXPECT_EQ(wide, 8);
}

// 4 bits an element and 32 for 64 of them: of the layers' matrices, not of embeddings, norms and
// biases. Only what one product reads is there in 16 bits.
TEST(LoraPlan, MatricesIn4BitsTakeTheirBytes) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const auto& [world, stage] : {std::pair(1, 0), std::pair(2, 1), std::pair(3, 3)}) {
      PlanOptions options = LoraOptions(world, stage, dtype);
      const auto wide = PlanTraining(Adapting(4), options);
      options.nf4_base = true;
      const auto packed = PlanTraining(Adapting(4), options);
      ASSERT_TRUE(wide.ok() && packed.ok()) << packed.status();
      EXPECT_EQ(packed->parameters, wide->parameters);
      EXPECT_EQ(packed->flops_per_step, wide->flops_per_step);
      int64_t elements = 0, bytes = 0;
      for (const FlatGroup& group : packed->groups) {
        if (!group.Packed()) continue;
        EXPECT_THAT(group.name, testing::EndsWith(" (base, nf4)"));
        EXPECT_EQ(group.master_buffer, kNoBuffer);
        EXPECT_EQ(packed->buffers[group.parameter_buffer].bytes,
                  stage == 3 ? group.shard_elements : group.padded_elements);
        bytes += group.elements;
        for (const GroupParameter& p : group.parameters) {
          EXPECT_THAT(p.name, testing::EndsWith(".weight"));
          const graph::Graph& graph = packed->train.graph;
          elements += graph.ElementsOf(graph.parameters[p.parameter]);
        }
      }
      const graph::Shape& wte =
          wide->train.graph.values[wide->train.graph.parameters[0].value].shape;
      const int64_t width = wte[1];
      EXPECT_EQ(elements, 2 * 12 * width * width);  // of two layers
      EXPECT_EQ(bytes * 16, elements * 9);
    }
  }
}

TEST(LoraPlan, EachProductOfAMatrixIn4BitsUnpacksIt) {
  PlanOptions options = LoraOptions(1, 0, DType::kBf16);
  options.nf4_base = true;
  options.recompute = Recompute::kFull;
  const auto plan = PlanTraining(Adapting(4), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<PlannedOp>& ops = plan->train.ops;
  int unpacked = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].op.kind != graph::OpKind::kUnpackNf4) continue;
    ++unpacked;
    const PlannedOp& reader = ops[i + 1];
    EXPECT_TRUE(graph::IsLayerWeight(reader.op, 1));
    EXPECT_EQ(reader.op.inputs[1], ops[i].op.outputs[0].value);
    for (size_t later = i + 2; later < ops.size(); ++later) {
      EXPECT_THAT(ops[later].op.inputs, testing::Not(testing::Contains(reader.op.inputs[1])));
    }
  }
  // Of two layers four matrices each, forward and backward; three once more, since what the fourth
  // makes is kept for the layer above. Nothing below the lowest one is trained.
  EXPECT_EQ(unpacked, 2 * (4 + 4 + 3) - 1);
}

// Their norms read the matrices, in 4 bits too.
TEST(LoraPlan, MagnitudesAreTrainedVectors) {
  v1::JobSpec spec = Adapting(4);
  spec.mutable_model()->mutable_lora()->set_dora(true);
  for (const auto& [world, stage] : {std::pair(1, 0), std::pair(2, 1), std::pair(3, 3)}) {
    for (const bool nf4 : {false, true}) {
      PlanOptions options = LoraOptions(world, stage, DType::kBf16);
      options.nf4_base = nf4;
      const auto plan = PlanTraining(spec, options);
      ASSERT_TRUE(plan.ok()) << plan.status();
      int changes = 0;
      for (const FlatGroup& group : plan->groups) {
        for (const GroupParameter& p : group.parameters) {
          if (!absl::EndsWith(p.name, ".lora_magnitude_change")) continue;
          ++changes;
          EXPECT_FALSE(group.base || plan->train.graph.parameters[p.parameter].decay);
        }
      }
      EXPECT_EQ(changes, 8);
      const std::vector<PlannedOp>& ops = plan->train.ops;
      for (size_t i = 0; i < ops.size(); ++i) {
        if (ops[i].op.kind != graph::OpKind::kDoraNorms || !nf4) continue;
        ASSERT_EQ(ops[i - 1].op.kind, graph::OpKind::kUnpackNf4);
        EXPECT_EQ(ops[i].op.inputs[0], ops[i - 1].op.outputs[0].value);
      }
    }
  }
}

TEST(LoraPlan, BytesThatDoNotFitTheirMatrixAreRefused) {
  PlanOptions options = LoraOptions(2, 1, DType::kBf16);
  options.nf4_base = true;
  const auto valid = PlanTraining(Adapting(4), options);
  ASSERT_TRUE(valid.ok()) << valid.status();
  for (size_t i = 0; i < valid->train.ops.size(); ++i) {
    const graph::Op& op = valid->train.ops[i].op;
    if (op.kind != graph::OpKind::kUnpackNf4) continue;
    StepPlan plan = *valid;
    plan.train.graph.values[op.outputs[0].value].shape[0] -= 1;
    EXPECT_FALSE(Verify(plan).ok()) << i;
  }
  StepPlan plan = *valid;
  plan.options.nf4_base = false;
  EXPECT_FALSE(Verify(plan).ok());
}

TEST(LoraPlan, GroupsApplyToWhatIsTrained) {
  v1::JobSpec spec = Adapting(4);
  v1::ParameterGroupSpec& group = *spec.mutable_train()->mutable_optimizer()->add_groups();
  group.set_match("*");
  group.set_lr_scale(2);
  const auto plan = PlanTraining(spec, LoraOptions(1, 0, DType::kF32));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameter_groups[0].tensors, 16);  // of two matrices at each of eight layers
  group.set_match("wte.weight");
  EXPECT_THAT(std::string(PlanTraining(spec, LoraOptions(1, 0, DType::kF32)).status().message()),
              HasSubstr("matches only what is not trained (transformer.wte"));
}

// Only their second matrices are of no other op than products. Magnitudes are no matrices.
TEST(LoraPlan, MuonUpdatesAdapters) {
  PlanOptions options = LoraOptions(2, 1, DType::kF32);
  options.optimizer = Optimizer::kMuon;
  v1::JobSpec spec = Adapting(4);
  for (const bool dora : {false, true}) {
    spec.mutable_model()->mutable_lora()->set_dora(dora);
    const auto plan = PlanTraining(spec, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const FlatGroup& group : plan->groups) {
      const bool vectors = group.parameters[0].shape.size() == 1;
      EXPECT_TRUE(group.base || (group.optimizer == Optimizer::kMuon) != vectors) << group.name;
    }
  }
}

TEST(LoraPlan, AMasterOfWhatIsAdaptedIsRefused) {
  const auto valid = PlanTraining(Adapting(4), LoraOptions(2, 1, DType::kBf16));
  ASSERT_TRUE(valid.ok()) << valid.status();
  for (size_t i = 0; i < valid->groups.size(); ++i) {
    StepPlan plan = *valid;
    plan.groups[i].master_dtype = plan.groups[i].base ? DType::kF32 : DType::kBf16;
    EXPECT_FALSE(Verify(plan).ok()) << plan.groups[i].name;
  }
}

}  // namespace
}  // namespace milepost::plan
