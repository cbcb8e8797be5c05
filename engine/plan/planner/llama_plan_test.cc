// Plans of the Llama family.
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/planner/planner.h"
#include "engine/plan/testing/plan_fixture.h"
#include "engine/plan/verification/verify.h"
#include "gtest/gtest.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {
namespace {

v1::JobSpec TinyLlama(int64_t kv_heads) {
  v1::JobSpec spec;
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_layers(3);
  llama.set_width(20);
  llama.set_heads(4);
  llama.set_kv_heads(kv_heads);
  llama.set_head_dim(8);
  llama.set_hidden(13);
  llama.set_context(32);
  llama.set_vocabulary(96);
  llama.set_tied(kv_heads == 1);
  llama.set_qkv_bias(kv_heads == 2);
  llama.set_qk_norm(kv_heads == 4);
  NormalizeJobSpec(&spec);
  return spec;
}

TEST(LlamaPlan, EveryCombinationVerifies) {
  for (int64_t kv_heads : {1, 2, 4}) {
    for (int world : {1, 3}) {
      for (int stage : {0, 1, 2, 3}) {
        for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          SCOPED_TRACE(absl::StrCat(kv_heads, " heads of keys, ", world, " ranks, stage ", stage,
                                    " recompute ", Name(recompute)));
          const auto plan = PlanTraining(TinyLlama(kv_heads), {.world = world,
                                                               .zero_stage = stage,
                                                               .recompute = recompute,
                                                               .compute_dtype = DType::kBf16,
                                                               .micro_batch = 2,
                                                               .sequence = 16,
                                                               .accumulation = 2,
                                                               .threads = 2});
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
        }
      }
    }
  }
}

v1::JobSpec TinyOlmo2() {
  v1::JobSpec spec = TinyLlama(2);
  v1::LlamaSpec& llama = *spec.mutable_model()->mutable_llama();
  llama.set_qkv_bias(false);
  llama.set_wide_qk_norm(true);
  llama.set_pre_norms(false);
  llama.set_post_norms(true);
  return spec;
}

// What the forward of a layer makes and something later reads.
std::set<std::string> KeptOfLayer(const StepPlan& plan, int64_t layer) {
  std::set<graph::ValueId> forward;
  std::set<std::string> kept;
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.phase == graph::Phase::kForward) {
      for (const graph::Output& output : op.op.outputs) forward.insert(output.value);
      continue;
    }
    for (const graph::ValueId input : op.op.inputs) {
      if (!forward.contains(input)) continue;
      absl::string_view name = plan.train.graph.values[input].name;
      if (absl::ConsumePrefix(&name, absl::StrCat("layers.", layer, "."))) kept.emplace(name);
    }
  }
  return kept;
}

// Without norms of what sub-layers read these read the stream itself: where a block takes it up it
// is kept, and within the block it is made again.
TEST(LlamaPlan, WhatIsKeptOfALayerWithoutPreNorms) {
  const auto kept = [](Recompute recompute) {
    const auto plan = PlanTraining(TinyOlmo2(), {.world = 2,
                                                 .zero_stage = 3,
                                                 .recompute = recompute,
                                                 .compute_dtype = DType::kBf16,
                                                 .micro_batch = 2,
                                                 .sequence = 16,
                                                 .threads = 2});
    EXPECT_TRUE(plan.ok() && Verify(*plan).ok()) << plan.status();
    return plan.ok() ? KeptOfLayer(*plan, 1) : std::set<std::string>();
  };
  const std::set<std::string> products = {
      "attn.delta", "attn.normed.rstd_k", "attn.normed.rstd_q", "attn.out",    "attn.out.lse",
      "attn.qkv",   "attn.rotated",       "mlp.delta",          "mlp.gate_up", "mlp_post_norm.sum"};
  EXPECT_EQ(kept(Recompute::kSelective), products);
  std::set<std::string> all = products;
  all.insert({"attn_post_norm.rstd", "attn_post_norm.sum", "mlp.swiglu", "mlp_post_norm.rstd"});
  EXPECT_EQ(kept(Recompute::kNone), all);
  EXPECT_EQ(kept(Recompute::kFull), std::set<std::string>{"mlp_post_norm.sum"});
}

TEST(LlamaPlan, Llama3Has8Billion) {
  const auto spec = LoadJobSpec("examples/llama3-8b.yaml");  // tests run in the source folder
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto options = OptionsFromSpec(*spec, 16);
  ASSERT_TRUE(options.ok()) << options.status();
  const auto plan = PlanTraining(*spec, *options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters, 8030261248);  // transformers' meta-llama/Llama-3.1-8B
  // Products with every weight but the embedding's, forward and twice backward, and attention: two
  // products forward and five backward over the causal half.
  const double tokens = 16.0 * 8192;  // of a rank: 128 sequences over 8 ranks
  const double weights = 8030261248.0 - 128256.0 * 4096 - 65.0 * 4096;
  const double attention = 32.0 * 4096 * (8192 + 1);  // of one product, per token
  EXPECT_NEAR(plan->flops_per_step / (tokens * (6 * weights + 7 * attention)), 1, 1e-9);
}

v1::JobSpec TinyMixture(int64_t per_token) {
  v1::JobSpec spec = TinyLlama(per_token == 1 ? 4 : 1);
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_count(5);
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_per_token(per_token);
  NormalizeJobSpec(&spec);
  return spec;
}

// Muon's matrices are those of layers, experts' too; embeddings, heads and norms are AdamW's.
TEST(LlamaPlan, MuonUpdatesExperts) {
  PlanOptions options = OptionsOf(3, 2, DType::kBf16);
  options.optimizer = Optimizer::kMuon;
  const auto plan = PlanTraining(TinyMixture(2), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  int experts = 0;
  for (const FlatGroup& group : plan->groups) {
    for (const GroupParameter& p : group.parameters) {
      if (!absl::StrContains(p.name, "experts.")) continue;
      EXPECT_EQ(group.optimizer, Optimizer::kMuon) << p.name;
      ++experts;
    }
  }
  EXPECT_GE(experts, 15);
}

TEST(LlamaPlan, EveryCombinationWithExpertsVerifies) {
  for (int64_t per_token : {1, 2, 5}) {
    for (int world : {1, 3}) {
      for (int stage : {0, 1, 2, 3}) {
        for (Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          SCOPED_TRACE(absl::StrCat(per_token, " experts, ", world, " ranks, stage ", stage,
                                    " recompute ", Name(recompute)));
          const auto plan = PlanTraining(TinyMixture(per_token), {.world = world,
                                                                  .zero_stage = stage,
                                                                  .recompute = recompute,
                                                                  .compute_dtype = DType::kBf16,
                                                                  .micro_batch = 2,
                                                                  .sequence = 16,
                                                                  .accumulation = 2,
                                                                  .threads = 2});
          ASSERT_TRUE(plan.ok()) << plan.status();
          EXPECT_TRUE(Verify(*plan).ok()) << Verify(*plan);
        }
      }
    }
  }
}

TEST(LlamaPlan, ExpertRanksOnAGpu) {
  PlanOptions options = {
      .device = DeviceKind::kCuda, .world = 2, .compute_dtype = DType::kBf16, .sequence = 16};
  v1::JobSpec spec = TinyMixture(2);
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_count(4);
  options.expert = 2;
  EXPECT_EQ(PlanTraining(spec, options).status(), absl::OkStatus());
}

// What a row is routed to is kept; the rows of experts are made again.
TEST(LlamaPlan, WhatIsKeptOfALayerOfExperts) {
  const auto kept = [](Recompute recompute) {
    const auto plan = PlanTraining(TinyMixture(2), {.recompute = recompute,
                                                    .compute_dtype = DType::kBf16,
                                                    .micro_batch = 2,
                                                    .sequence = 16,
                                                    .threads = 2});
    EXPECT_TRUE(plan.ok() && Verify(*plan).ok()) << plan.status();
    return plan.ok() ? KeptOfLayer(*plan, 1) : std::set<std::string>();
  };
  const std::set<std::string> routes = {"mlp.routes.chosen", "mlp.routes.offsets",
                                        "mlp.routes.slots", "mlp.routes.weights"};
  const std::set<std::string> full = kept(Recompute::kFull);
  for (const std::string& value : routes) EXPECT_TRUE(full.contains(value)) << value;
  EXPECT_EQ(full.size(), routes.size() + 1);  // the residual stream
  EXPECT_FALSE(kept(Recompute::kSelective).contains("mlp.rows"));
  EXPECT_TRUE(kept(Recompute::kNone).contains("mlp.rows"));
}

// A job with the sizes of a mixture on the hub.
v1::JobSpec LargeMixture(const v1::LlamaSpec& llama) {
  v1::JobSpec spec;
  *spec.mutable_model()->mutable_llama() = llama;
  spec.mutable_data()->set_train("/train.npy");
  spec.mutable_data()->set_sequence_length(4096);
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->set_precision(v1::PRECISION_BF16);
  spec.mutable_train()->mutable_batch()->set_global(64);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_resources()->set_ranks(64);
  NormalizeJobSpec(&spec);
  return spec;
}

// FLOPs of a step of one sample, of products alone: `weights` that a token meets and attention.
double FlopsOf(double weights, double attention) {
  return 4096.0 * (6 * weights + 7 * attention * (4096 + 1));
}

TEST(LlamaPlan, OfAMixtralATokenMeetsAQuarter) {
  v1::LlamaSpec llama;
  llama.set_layers(32);
  llama.set_width(4096);
  llama.set_heads(32);
  llama.set_kv_heads(8);
  llama.set_hidden(14336);
  llama.set_context(32768);
  llama.set_vocabulary(32000);
  llama.mutable_experts()->set_count(8);
  llama.mutable_experts()->set_per_token(2);
  const v1::JobSpec spec = LargeMixture(llama);
  const auto plan = PlanTraining(spec, *OptionsFromSpec(spec, 16));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters, 46702792704);  // transformers' mistralai/Mixtral-8x7B-v0.1
  const double expert = 3.0 * 4096 * 14336;
  const double met =
      46702792704.0 - 32000.0 * 4096 - 65.0 * 4096 - 32 * 6 * expert;  // no embedding, no norms
  EXPECT_NEAR(plan->flops_per_step / FlopsOf(met, 32.0 * 4096), 1, 1e-9);
}

TEST(LlamaPlan, Qwen3MixturesOf128ExpertsArePlanned) {
  v1::LlamaSpec llama;
  llama.set_layers(48);
  llama.set_width(2048);
  llama.set_heads(32);
  llama.set_kv_heads(4);
  llama.set_head_dim(128);
  llama.set_hidden(6144);
  llama.set_context(40960);
  llama.set_vocabulary(151936);
  llama.set_qk_norm(true);
  llama.mutable_experts()->set_count(128);
  llama.mutable_experts()->set_per_token(8);
  llama.mutable_experts()->set_hidden(768);
  const v1::JobSpec spec = LargeMixture(llama);
  const auto plan = PlanTraining(spec, *OptionsFromSpec(spec, 16));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters, 30532122624);  // transformers' Qwen/Qwen3-30B-A3B
  const double norms = 97.0 * 2048 + 48 * 2 * 128;
  const double met = 30532122624.0 - 151936.0 * 2048 - norms - 48.0 * 120 * 3 * 2048 * 768;
  EXPECT_NEAR(plan->flops_per_step / FlopsOf(met, 48.0 * 32 * 128), 1, 1e-9);
}

constexpr int64_t kBytesOf74GiB = int64_t{74} << 30;

// Sequences of 8192 tokens, everything within a block made once more, nothing in host memory.
TEST(LlamaPlan, EightBillionTrainOnAnH100) {
  auto spec = LoadJobSpec("examples/llama3-8b-one-gpu.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_EQ(ValidateJobSpec(*spec), absl::OkStatus());
  const auto plan = PlanTraining(*spec, *OptionsFromSpec(*spec, 1));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->parameters, 8030261248);
  const int64_t needed = RequiredBytes(*plan, plan->arena_bytes, /*arena_in_host_memory=*/false);
  EXPECT_LE(needed, kBytesOf74GiB);
  EXPECT_EQ(plan->host_arena_bytes, 0);
}

// Of a job that sums up 16 micro-steps in fp32: masters go, states become small, gradients stay.
TEST(LlamaPlan, LowMemoryFindsWhatAnH100CanTrain) {
  auto spec = LoadJobSpec("examples/llama3-8b-one-gpu.yaml");
  ASSERT_TRUE(spec.ok()) << spec.status();
  v1::TrainSpec& train = *spec->mutable_train();
  train.set_memory(v1::MEMORY_USE_LOW);
  train.set_grad_dtype(v1::GRAD_DTYPE_FP32);
  train.set_recompute(v1::RECOMPUTE_AUTO);
  train.mutable_batch()->set_global(16);
  train.mutable_batch()->set_accumulation(16);
  train.mutable_optimizer()->set_type(v1::OptimizerSpec::TYPE_ADAMW);
  train.mutable_optimizer()->set_master(v1::MASTER_DTYPE_FP32);
  ASSERT_EQ(ValidateJobSpec(*spec), absl::OkStatus());
  const DeviceProfile h100 = *BuiltInProfile("h100");
  const RankPlace place = {.memory_bytes = kBytesOf74GiB,
                           .memory_of = "an h100",
                           .host_memory = false,
                           .profile = ForThreads(h100, 1)};
  const auto fitting = PlanThatFits(*spec, place);
  ASSERT_TRUE(fitting.ok()) << fitting.status();
  const v1::TrainSpec& chosen = fitting->spec.train();
  EXPECT_EQ(chosen.optimizer().type(), v1::OptimizerSpec::TYPE_ADAMW_8BIT);
  EXPECT_EQ(chosen.optimizer().master(), v1::MASTER_DTYPE_NONE);
  EXPECT_EQ(chosen.grad_dtype(), v1::GRAD_DTYPE_FP32);
  EXPECT_EQ(chosen.recompute(), v1::RECOMPUTE_FULL);
  EXPECT_LE(RequiredBytes(fitting->plan, fitting->plan.arena_bytes, false), kBytesOf74GiB);
}

}  // namespace
}  // namespace milepost::plan
