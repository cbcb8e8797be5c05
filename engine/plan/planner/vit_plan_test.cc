// Plans of Vision Transformers.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/verification/verify.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

v1::JobSpec TinyVit(double dropout, int64_t lora) {
  v1::JobSpec spec;
  v1::VitSpec& vit = *spec.mutable_model()->mutable_vit();
  vit.set_layers(2);
  vit.set_width(20);
  vit.set_heads(4);
  vit.set_hidden(13);
  vit.set_classes(7);
  vit.set_image_size(15);
  vit.set_patch_size(5);
  vit.set_dropout(dropout);
  if (lora > 0) {
    spec.mutable_model()->mutable_lora()->set_rank(lora);
    spec.mutable_model()->mutable_lora()->set_quantize_base(v1::BASE_QUANTIZATION_NF4);
  }
  NormalizeJobSpec(&spec);
  return spec;
}

TEST(VitPlan, EveryCombinationVerifies) {
  for (const int64_t lora : {0, 3}) {
    for (const int world : {1, 3}) {
      for (const int stage : {0, 1, 2, 3}) {
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          SCOPED_TRACE(absl::StrCat("lora ", lora, ", ", world, " ranks, stage ", stage,
                                    " recompute ", Name(recompute)));
          const PlanOptions options{.world = world,
                                    .zero_stage = stage,
                                    .recompute = recompute,
                                    .compute_dtype = DType::kBf16,
                                    .nf4_base = lora > 0,
                                    .micro_batch = 2,
                                    .sequence = 1,
                                    .accumulation = 2};
          const auto plan = PlanTraining(TinyVit(stage % 2 == 0 ? 0.1 : 0, lora), options);
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
        }
      }
    }
  }
}

TEST(VitPlan, PartsOfTheEmbeddingMayBeFrozen) {
  for (const char* frozen : {"vit.embeddings.cls_token", "vit.embeddings.position_embeddings",
                             "vit.embeddings.patch_embeddings.*", "vit.embeddings.*"}) {
    SCOPED_TRACE(frozen);
    v1::JobSpec spec = TinyVit(0.1, 0);
    v1::ParameterGroupSpec& group = *spec.mutable_train()->mutable_optimizer()->add_groups();
    group.set_match(frozen);
    group.set_freeze(true);
    NormalizeJobSpec(&spec);
    const auto plan = PlanTraining(spec, {.world = 2, .zero_stage = 3, .micro_batch = 2});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
  }
}

int CountOf(const StepPlan& plan, OpKind kind, graph::Phase phase) {
  return static_cast<int>(std::count_if(
      plan.train.ops.begin(), plan.train.ops.end(),
      [&](const PlannedOp& op) { return op.op.kind == kind && op.op.phase == phase; }));
}

// transformers: 86.57 M parameters.
TEST(VitPlan, Base) {
  auto spec = LoadJobSpec("examples/vit-base.yaml");  // tests run in the source folder
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto options = OptionsFromSpec(*spec, 16);
  ASSERT_TRUE(options.ok()) << options.status();
  const auto plan = PlanTraining(*spec, *options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters, 86567656);
  // Of an image: products with the weights, forward and twice backward, but of pixels there is no
  // gradient; attention's two products forward and five backward.
  const double patches = 2.0 * 196 * 768 * 768;
  const double dense = 2.0 * 197 * 12 * (4.0 * 768 * 768 + 2.0 * 768 * 3072);
  const double attention = 2.0 * 12 * 197 * 197 * 768;
  const double classifier = 2.0 * 768 * 1000;
  double forward = 0;
  for (const PlannedOp& op : plan->evaluate.ops) forward += op.flops;
  EXPECT_NEAR(forward / 64 / (patches + dense + 2 * attention + classifier), 1, 1e-9);
  const double step = 2 * patches + 3 * dense + 7 * attention + 3 * classifier;
  EXPECT_NEAR(plan->flops_per_step / (64.0 * 2 * step), 1, 1e-9);
  // Patches are made of bytes again rather than kept; rows with their positions are kept.
  EXPECT_EQ(CountOf(*plan, OpKind::kImagePatches, graph::Phase::kRecompute), 1);
  EXPECT_EQ(CountOf(*plan, OpKind::kPatchTokens, graph::Phase::kRecompute), 0);
}

// Adapters alone are trained: nothing of what comes before the first layer has a gradient.
TEST(VitPlan, AdaptersNeedNoGradientOfPatches) {
  const auto plan = PlanTraining(TinyVit(0, 3), {.nf4_base = true, .micro_batch = 2});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(CountOf(*plan, OpKind::kPatchTokensBackward, graph::Phase::kBackward), 0);
  for (const graph::Parameter& parameter : plan->train.graph.parameters) {
    const graph::Value& value = plan->train.graph.values[parameter.value];
    const bool packed = value.dtype == DType::kU8;
    EXPECT_EQ(packed, parameter.unpacked.size() == 2) << value.name;
    EXPECT_FALSE(packed && value.name.find("projection") != std::string::npos);
  }
}

}  // namespace
}  // namespace milepost::plan
