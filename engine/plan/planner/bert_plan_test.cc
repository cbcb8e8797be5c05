// Plans of the BERT family, and of samples with documents.
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/match.h"
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
using graph::Phase;

v1::JobSpec TinyBert(double dropout) {
  v1::JobSpec spec;
  v1::BertSpec& bert = *spec.mutable_model()->mutable_bert();
  bert.set_layers(3);
  bert.set_width(20);
  bert.set_heads(4);
  bert.set_hidden(13);
  bert.set_context(32);
  bert.set_vocabulary(96);
  bert.set_dropout(dropout);
  NormalizeJobSpec(&spec);
  return spec;
}

TEST(BertPlan, EveryCombinationVerifies) {
  for (double dropout : {0.0, 0.1}) {
    for (int world : {1, 3}) {
      for (int stage : {0, 1, 2, 3}) {
        for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          SCOPED_TRACE(absl::StrCat("dropout ", dropout, ", ", world, " ranks, stage ", stage,
                                    " recompute ", Name(recompute)));
          PlanOptions options{.world = world,
                              .zero_stage = stage,
                              .recompute = recompute,
                              .compute_dtype = DType::kBf16,
                              .micro_batch = 2,
                              .sequence = 16,
                              .accumulation = 2};
          options.documents = stage % 2 == 1;
          options.segments = stage >= 2;
          const auto plan = PlanTraining(TinyBert(dropout), options);
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
        }
      }
    }
  }
}

// Forward values of the encoder's layers that the backward reads.
std::set<std::string> Kept(const StepPlan& plan) {
  std::set<graph::ValueId> forward;
  std::set<std::string> kept;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.phase == Phase::kForward) {
      for (const graph::Output& output : op.op.outputs) forward.insert(output.value);
      continue;
    }
    for (graph::ValueId input : op.op.inputs) {
      if (!forward.contains(input)) continue;
      const std::string& name = plan.train.graph.values[input].name;
      if (absl::StartsWith(name, "layer.")) kept.insert(name);
    }
  }
  return kept;
}

// What flows between blocks is normalised already: it is kept, as no later block has the norm's
// parameters.
TEST(BertPlan, RecomputationKeepsWhatFlowsBetweenBlocks) {
  PlanOptions options{.micro_batch = 2, .sequence = 16};
  options.recompute = Recompute::kFull;
  EXPECT_EQ(Kept(*PlanTraining(TinyBert(0.1), options)),
            (std::set<std::string>{"layer.0.mlp.norm", "layer.1.mlp.norm", "layer.2.mlp.norm"}));
  options.recompute = Recompute::kSelective;
  const std::set<std::string> kept = Kept(*PlanTraining(TinyBert(0.1), options));
  for (const char* layer : {"layer.0.", "layer.1.", "layer.2."}) {
    for (const char* name : {"attn.norm.sum", "mlp.norm.sum", "mlp.norm", "attn.qkv", "mlp.fc"}) {
      EXPECT_TRUE(kept.contains(absl::StrCat(layer, name))) << layer << name;
    }
    for (const char* name : {"attn.norm", "attn.norm.mean", "mlp.gelu"}) {
      EXPECT_FALSE(kept.contains(absl::StrCat(layer, name))) << layer << name;
    }
  }
}

TEST(BertPlan, LargeHas335Million) {
  const auto spec = LoadJobSpec("examples/bert-large.yaml");  // tests run in the source folder
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto options = OptionsFromSpec(*spec, 16);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->documents);
  EXPECT_FALSE(options->segments);
  const auto plan = PlanTraining(*spec, *options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters, 335174458);  // transformers' BertForMaskedLM of bert-large-uncased
  // Products with the encoder's and the head's dense weights, forward and twice backward; attention
  // over all of the sequence, two products forward and five backward; logits of one chunk of rows
  // in a micro-batch of 8 samples.
  const double rows = 8.0 * 512;
  const double dense = 24 * (4.0 * 1024 * 1024 + 2.0 * 1024 * 4096) + 1024.0 * 1024;
  const double attention = 24.0 * 1024 * 2 * 512;  // of one product, per token
  double chunk = 0;
  for (const PlannedOp& op : plan->train.ops) {
    if (op.op.kind == OpKind::kLmHeadLossBackward) chunk = op.op.attributes.chunk_rows;
  }
  EXPECT_GE(chunk, 0.15 * rows);
  EXPECT_LE(chunk, 0.18 * rows);
  const double micro_step = rows * (6 * dense + 7 * attention) + 6 * chunk * 1024 * 30522;
  EXPECT_NEAR(plan->flops_per_step / (4 * micro_step), 1, 1e-9);
}

TEST(DocumentsPlan, GiveEveryFamilyItsInputs) {
  PlanOptions options{.micro_batch = 2, .sequence = 16};
  options.documents = true;
  v1::JobSpec spec;
  v1::Gpt2Spec& gpt2 = *spec.mutable_model()->mutable_gpt2();
  gpt2.set_layers(2);
  gpt2.set_width(16);
  gpt2.set_heads(2);
  gpt2.set_context(16);
  gpt2.set_vocabulary(50);
  v1::JobSpec llama_spec;
  v1::LlamaSpec& llama = *llama_spec.mutable_model()->mutable_llama();
  llama.set_layers(2);
  llama.set_width(16);
  llama.set_heads(2);
  llama.set_hidden(24);
  llama.set_context(16);
  llama.set_vocabulary(50);
  NormalizeJobSpec(&llama_spec);
  for (const v1::JobSpec& each : {spec, llama_spec, TinyBert(0)}) {
    const auto plan = PlanTraining(each, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const Program* program : {&plan->train, &plan->evaluate}) {
      for (const char* input : {"tokens", "targets", "documents", "positions"}) {
        EXPECT_NE(program->graph.Input(input), graph::kNoValue) << input;
      }
    }
  }
}

}  // namespace
}  // namespace milepost::plan
