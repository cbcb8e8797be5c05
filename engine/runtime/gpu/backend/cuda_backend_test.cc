// Every op of the forward and the backward of the families of texts on the GPU's backend, against
// the CPU's.
#include "engine/runtime/gpu/backend/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "engine/ops/experts/experts.h"
#include "engine/plan/cuda_beside.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/testing/op_bench.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using ::testing::HasSubstr;

// Relative to the result's norm. Sums are ordered otherwise; of 16 bits also one rounding each, and
// the CPU's attention rounds its probabilities.
double BarOf(const graph::Op& op, DType dtype) {
  const OpKind kind = op.kind;
  // The CPU rounds what goes into a fused GELU, and what its gradient is multiplied by.
  if (op.attributes.gelu) return dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
  const bool attention = kind == OpKind::kAttention || kind == OpKind::kAttentionBackward ||
                         kind == OpKind::kCachedAttention;
  switch (dtype) {
    case DType::kBf16:
      return attention ? 6e-3 : 1.5e-3;
    case DType::kF16:
      return attention ? 6e-4 : 2e-4;
    default:
      return 2e-6;
  }
}

struct Case {
  TinyOptions options;
  bool graph_attention = false;
  int64_t document_length = 7;
  bool many_documents = false;
  bool fuse_gelu = false;
  int64_t attention_call_bytes = 512 << 20;
  int calls = 0;        // of the library's attention; 0: not counted
  int target_rows = 3;  // a masked text has a target in every so many
};

// Two micro-steps: gradients last from one to the next.
v1::JobSpec SpecOf(const TinyJob& job, TinyOptions options) {
  // 8-bit layers have rows in multiples of 16.
  options.micro_batch = options.precision == v1::PRECISION_FP8 ? 2 : 3;
  options.global_batch = 2 * options.micro_batch;
  return job.Spec(options);
}

plan::PlanOptions OptionsOf(const v1::JobSpec& spec) {
  plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
  // Several chunks of the head, the last one shorter: 72 rows by 32.
  options.lm_head_chunk_bytes = 32 * TinyJob::kVocabulary * ByteSize(options.compute_dtype);
  return options;
}

// Of masked texts 24 rows or 12 have a target; a chunk of the head has 16.
void FillInputs(OpBench& bench, OpBench::ProgramOf program, int64_t document_length = 7,
                int target_rows = 3) {
  bench.context.many_targets = target_rows < 6;
  const graph::Graph& graph = (bench.plan().*program).graph;
  const bool masked = graph.Input("segments") != graph::kNoValue;
  for (int64_t i = 0; i < graph.values[graph.Input("tokens")].shape[0]; ++i) {
    bench.Set(program, "tokens", i, (i * i + 5 * i) % TinyJob::kVocabulary);
    const bool ignored = masked ? i % target_rows != 1 : i % 36 == 7;
    bench.Set(program, "targets", i, ignored ? -1 : (i * 7 + 2) % TinyJob::kVocabulary);
    bench.Set(program, "documents", i, i % TinyJob::kContext / document_length);
    bench.Set(program, "positions", i, i % TinyJob::kContext % document_length);
    bench.Set(program, "segments", i, i * 5 % 3);
    bench.Set(program, "labels.kind", i, i % 4 == 1 ? -1 : i % 7);
    bench.Set(program, "labels.next", i, i % 9 == 2 ? -1 : i * 3 % 130);
  }
}

class EveryOp : public ::testing::TestWithParam<Case> {};

// A key's bias moves all scores of a query alike: its gradient is 0 but for rounding.
bool IsNoise(const std::string& name) {
  return absl::StrContains(name, "self.key.bias") || absl::StrContains(name, "k_proj.bias");
}

void RunProgram(OpBench& bench, OpBench::ProgramOf program, const Case& given,
                std::set<OpKind>* seen) {
  FillInputs(bench, program, given.document_length, given.target_rows);
  const std::vector<plan::PlannedOp>& ops = bench.Ops(program);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].when != plan::When::kEveryMicroStep) continue;
    seen->insert(ops[i].op.kind);
    const double bar = BarOf(ops[i].op, bench.plan().options.compute_dtype);
    for (const OpBench::Result& result : bench.RunOp(program, i)) {
      if (IsNoise(result.name)) continue;
      EXPECT_LT(result.error, bar) << graph::Name(ops[i].op.kind) << " -> " << result.name;
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(EveryOp, IsTheCpus) {
  const TinyJob job;
  const v1::JobSpec spec = SpecOf(job, GetParam().options);
  plan::PlanOptions options = OptionsOf(spec);
  options.fuse_gelu = GetParam().fuse_gelu;
  options.attention_call_bytes = GetParam().attention_call_bytes;
  OpBench bench(spec, options, {.attention = GetParam().graph_attention});
  for (size_t head = 0; head < bench.plan().train.graph.losses.size(); ++head) {
    bench.context.gradient_factors[head] = 0.014F / static_cast<float>(1 + head);
  }
  std::set<OpKind> seen;
  for (const bool first : {true, false}) {
    bench.context.first_micro_step = first;
    bench.context.new_scalings = first;
    RunProgram(bench, &plan::StepPlan::train, GetParam(), &seen);
  }
  RunProgram(bench, &plan::StepPlan::evaluate, GetParam(), &seen);
  EXPECT_GE(seen.size(), GetParam().fuse_gelu ? 13U : 14U);
  EXPECT_EQ(bench.context.many_documents, GetParam().many_documents);
  EXPECT_EQ(bench.graphs->attention_calls() > 0,
            GetParam().graph_attention && !GetParam().many_documents);
  if (GetParam().calls > 0) {
    EXPECT_EQ(bench.graphs->attention_calls(), GetParam().calls);
  }
}

// Gradients that are added to lie, in every plan, where the sum comes to lie. Nothing says so.
TEST(CudaBackend, AddsToWhatLiesElsewhere) {
  const TinyJob job;
  constexpr OpBench::ProgramOf kTrain = &plan::StepPlan::train;
  struct {
    bool bert;
    int target_rows;
  } const cases[] = {{true, 3}, {true, 6}, {false, 3}};
  for (const auto& [bert, target_rows] : cases) {
    const v1::JobSpec spec = SpecOf(job, {.layers = 1, .bert = bert, .heads = true});
    OpBench bench(spec, OptionsOf(spec));
    bench.context.gradient_factors.fill(0.014F);
    FillInputs(bench, kTrain, 7, target_rows);
    std::set<OpKind> seen;
    for (size_t i = 0; i < bench.Ops(kTrain).size(); ++i) {
      const graph::Op& op = bench.Ops(kTrain)[i].op;
      if (bench.Ops(kTrain)[i].when != plan::When::kEveryMicroStep) continue;
      const bool linear = op.kind == OpKind::kLinearBackwardInput &&
                          static_cast<int64_t>(op.inputs.size()) > 1 + op.attributes.parts;
      const bool head = op.kind == OpKind::kLmHeadLossBackward && op.inputs[4] != graph::kNoValue;
      if (linear || head) {
        bench.Separate(kTrain, i, op.inputs.size() - 1);
        seen.insert(op.kind);
      }
      for (const OpBench::Result& result : bench.RunOp(kTrain, i)) {
        if (IsNoise(result.name)) continue;
        EXPECT_LT(result.error, 2e-6) << graph::Name(op.kind) << " -> " << result.name;
      }
    }
    EXPECT_EQ(seen.contains(OpKind::kLinearBackwardInput), bert);
    EXPECT_TRUE(seen.contains(OpKind::kLmHeadLossBackward));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpt2, EveryOp,
    ::testing::Values(
        Case{{.precision = v1::PRECISION_FP32, .layers = 1, .dropout = 0.25}},
        Case{{.precision = v1::PRECISION_BF16, .layers = 1, .width = 64, .dropout = 0.25}},
        Case{{.precision = v1::PRECISION_FP16, .layers = 1, .dropout = 0.25}},
        Case{{.precision = v1::PRECISION_FP32, .layers = 1, .documents = true}}));

// Sums kept for the backward, left out where they are made again, and in evaluation.
INSTANTIATE_TEST_SUITE_P(FusedGelu, EveryOp,
                         ::testing::Values(Case{.options = {.precision = v1::PRECISION_BF16,
                                                            .layers = 1},
                                                .fuse_gelu = true},
                                           Case{.options = {.recompute = v1::RECOMPUTE_FULL,
                                                            .precision = v1::PRECISION_FP16},
                                                .fuse_gelu = true}));

// Biases of one and of several weights, none; layers whose widths are no multiples of 16.
INSTANTIATE_TEST_SUITE_P(
    Fp8, EveryOp,
    ::testing::Values(
        Case{.options = {.precision = v1::PRECISION_FP8, .layers = 1, .dropout = 0.25}},
        Case{.options = {.precision = v1::PRECISION_FP8, .layers = 1, .llama = true}},
        Case{.options = {.precision = v1::PRECISION_FP8,
                         .layers = 1,
                         .llama = true,
                         .hidden = 40,
                         .qkv_bias = true}},
        Case{.options = {.precision = v1::PRECISION_FP8, .layers = 1, .bert = true}}));

// Heads of keys: one, some, all. Width 20 and hidden 13: gate and up do not follow each other
// without a gap, so that they are two products, whose columns are not aligned.
INSTANTIATE_TEST_SUITE_P(
    Llama, EveryOp,
    ::testing::Values(
        Case{{.precision = v1::PRECISION_FP32, .layers = 1, .llama = true, .qk_norm = true}},
        Case{{.precision = v1::PRECISION_FP32, .llama = true, .gemma3 = true}},
        Case{{.precision = v1::PRECISION_BF16, .layers = 1, .llama = true, .gemma3 = true}},
        Case{{.precision = v1::PRECISION_FP32, .llama = true, .olmo3 = true}},
        Case{{.precision = v1::PRECISION_BF16, .layers = 1, .llama = true, .olmo3 = true}},
        Case{{.precision = v1::PRECISION_FP16,
              .layers = 1,
              .llama = true,
              .kv_heads = 1,
              .olmo3 = true}},
        Case{{.precision = v1::PRECISION_BF16,
              .layers = 1,
              .llama = true,
              .kv_heads = 1,
              .tied = true,
              .qkv_bias = true}},
        Case{{.precision = v1::PRECISION_FP32,
              .layers = 1,
              .width = 20,
              .llama = true,
              .kv_heads = 1,
              .hidden = 13,
              .qkv_bias = true}},
        Case{{.precision = v1::PRECISION_FP16,
              .layers = 1,
              .width = 20,
              .llama = true,
              .kv_heads = 4,
              .hidden = 13,
              .qkv_bias = true}},
        Case{{.precision = v1::PRECISION_BF16, .layers = 1, .llama = true, .documents = true}}));

// Of some experts no row is; of hidden 13 an expert's parts are products of their own.
INSTANTIATE_TEST_SUITE_P(Experts, EveryOp,
                         ::testing::Values(Case{{.precision = v1::PRECISION_FP32,
                                                 .layers = 1,
                                                 .llama = true,
                                                 .experts = 4,
                                                 .balance = 0.02}},
                                           Case{{.precision = v1::PRECISION_BF16,
                                                 .layers = 2,
                                                 .llama = true,
                                                 .qk_norm = true,
                                                 .experts = 9,
                                                 .per_token = 3,
                                                 .balance = 0.02}},
                                           Case{{.precision = v1::PRECISION_FP16,
                                                 .layers = 1,
                                                 .width = 20,
                                                 .llama = true,
                                                 .hidden = 13,
                                                 .experts = 3,
                                                 .per_token = 1}}));

// Of width 20 and hidden 13 an expert's parts are products of their own, with a table each.
TEST(CudaBackend, TablesOfExpertsAreAsManyBytesAsAPlanSays) {
  const TinyJob job;
  const v1::JobSpec spec = SpecOf(
      job, {.layers = 2, .width = 20, .llama = true, .kv_heads = 4, .hidden = 13, .experts = 90});
  OpBench bench(spec, OptionsOf(spec));
  int64_t parts = 0;
  for (const OpBench::ProgramOf program : {&plan::StepPlan::train, &plan::StepPlan::evaluate}) {
    for (size_t i = 0; i < bench.Ops(program).size(); ++i) {
      const graph::Op& op = bench.Ops(program)[i].op;
      if (!ops::IsExpertProduct(op.kind)) continue;
      const int64_t before = bench.tables.bytes();
      ASSERT_EQ(bench.BindOp(program, i), absl::OkStatus());
      EXPECT_EQ(bench.tables.bytes() - before, op.attributes.parts * 90 * 8) << i;
      parts += op.attributes.parts;
    }
  }
  EXPECT_EQ(parts, 2 * (3 * 3 + 3));  // layers, of three ops and an evaluation's
  EXPECT_GE(plan::ExpertTableBytes(bench.plan()), parts * 768);  // each on 256 bytes
  EXPECT_LE(plan::ExpertTableBytes(bench.plan()), 2 * parts * 768);
}

// Adapters with magnitudes: weights of either layout.
INSTANTIATE_TEST_SUITE_P(
    Dora, EveryOp,
    ::testing::Values(Case{{.precision = v1::PRECISION_FP32, .layers = 1, .lora = 4, .dora = true}},
                      Case{{.precision = v1::PRECISION_BF16,
                            .layers = 1,
                            .llama = true,
                            .qkv_bias = true,
                            .lora = 8,
                            .dora = true}},
                      Case{{.precision = v1::PRECISION_FP16,
                            .layers = 1,
                            .width = 20,
                            .llama = true,
                            .kv_heads = 4,
                            .hidden = 13,
                            .lora = 3,
                            .dora = true}}));

// A head of few targets, in several chunks.
INSTANTIATE_TEST_SUITE_P(Bert, EveryOp,
                         ::testing::Values(Case{{.precision = v1::PRECISION_FP32,
                                                 .layers = 1,
                                                 .dropout = 0.25,
                                                 .bert = true}},
                                           Case{{.precision = v1::PRECISION_BF16,
                                                 .layers = 1,
                                                 .dropout = 0.25,
                                                 .bert = true,
                                                 .documents = true}}));

INSTANTIATE_TEST_SUITE_P(
    Heads, EveryOp,
    ::testing::Values(
        Case{{.precision = v1::PRECISION_FP32, .layers = 1, .heads = true}},
        Case{{.precision = v1::PRECISION_FP16, .layers = 1, .bert = true, .heads = true}}));

// One chunk of the head holds all rows that have a target.
INSTANTIATE_TEST_SUITE_P(
    FewTargets, EveryOp,
    ::testing::Values(
        Case{.options = {.precision = v1::PRECISION_FP32, .layers = 1, .bert = true},
             .target_rows = 6},
        Case{.options = {.precision = v1::PRECISION_BF16, .layers = 1, .bert = true, .heads = true},
             .target_rows = 6}));

INSTANTIATE_TEST_SUITE_P(
    GraphAttention, EveryOp,
    ::testing::Values(Case{{.precision = v1::PRECISION_BF16, .layers = 1}, true},
                      Case{{.precision = v1::PRECISION_FP16, .layers = 1, .llama = true}, true}));

// 4 documents in each of 3 sequences; 5 are planned for. Then 12.
INSTANTIATE_TEST_SUITE_P(
    GraphAttentionOfDocuments, EveryOp,
    ::testing::Values(
        Case{{.precision = v1::PRECISION_BF16, .layers = 1, .width = 64, .documents = true}, true},
        Case{{.precision = v1::PRECISION_FP16,
              .layers = 1,
              .width = 64,
              .bert = true,
              .documents = true},
             true},
        Case{{.precision = v1::PRECISION_BF16, .layers = 1, .width = 64, .documents = true},
             true,
             2,
             true}));

// Of 3 sequences and 4 heads on 2: a sequence a call, a head of keys of one, and with documents a
// head of keys of all. Forward in three programs, and the backward twice.
INSTANTIATE_TEST_SUITE_P(
    GraphAttentionInParts, EveryOp,
    ::testing::Values(Case{.options = {.precision = v1::PRECISION_BF16, .layers = 1, .llama = true},
                           .graph_attention = true,
                           .attention_call_bytes = 4 * 64 * 128 * 2,
                           .calls = 3 + 2 * 3},
                      Case{.options = {.precision = v1::PRECISION_FP16, .layers = 1, .llama = true},
                           .graph_attention = true,
                           .attention_call_bytes = 1,
                           .calls = 3 + 2 * 6},
                      Case{.options = {.precision = v1::PRECISION_BF16,
                                       .layers = 1,
                                       .llama = true,
                                       .documents = true,
                                       .head_dim = 16},
                           .graph_attention = true,
                           .attention_call_bytes = 1,
                           .calls = 3 + 2 * 2}));

// A text in pieces: a chunk partly filled, then one row at a time.
void TestGeneration(const v1::ModelSpec& model, DType dtype) {
  constexpr int64_t kPositions = TinyJob::kContext;
  OpBench bench(model, {.compute_dtype = dtype, .sequence = kPositions});
  const auto run = [&](OpBench::ProgramOf program, int64_t first, int64_t count) {
    const graph::Graph& graph = (bench.plan().*program).graph;
    for (int64_t r = 0; r < graph.values[graph.Input("tokens")].shape[0]; ++r) {
      const int64_t position = first + std::min(r, count - 1);
      bench.Set(program, "tokens", r, (position * position + 2) % TinyJob::kVocabulary);
      bench.Set(program, "positions", r, position);
    }
    bench.context.position = count - 1;
    const std::vector<plan::PlannedOp>& ops = bench.Ops(program);
    for (size_t i = 0; i < ops.size(); ++i) {
      for (const OpBench::Result& result : bench.RunOp(program, i)) {
        EXPECT_LT(result.error, BarOf(ops[i].op, dtype))
            << graph::Name(ops[i].op.kind) << " -> " << result.name;
      }
      if (::testing::Test::HasFatalFailure()) return;
    }
  };
  run(&plan::StepPlan::prompt, 0, 7);
  run(&plan::StepPlan::next, 7, 1);
  run(&plan::StepPlan::next, 8, 1);
}

TEST(CudaBackend, GeneratesAsTheCpu) {
  const TinyJob job;
  const v1::JobSpec gpt2 = job.Spec({.layers = 1});
  const v1::JobSpec llama = job.Spec({.layers = 1, .llama = true, .qk_norm = true});
  TestGeneration(gpt2.model(), DType::kF32);
  TestGeneration(llama.model(), DType::kBf16);
  TestGeneration(llama.model(), DType::kF16);
  const v1::JobSpec olmo = job.Spec({.layers = 1, .llama = true, .olmo3 = true});
  TestGeneration(olmo.model(), DType::kBf16);
}

}  // namespace
}  // namespace milepost::runtime
