// Every op of a training step on the CPU against the fp64 interpreter, each on the inputs that the
// CPU's own earlier ops left: errors do not add up, so tolerances are those of one op.
#include "engine/runtime/testing/tiny_job.h"

#include "engine/runtime/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/executor/executor.h"
#include "engine/runtime/executor/randomness.h"
#include "engine/runtime/session/parameter_store.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using graph::ValueId;

// One rank's plan in an arena, with initial parameters and a batch, and the reference beside it.
class StepBench {
 public:
  StepBench(TinyOptions options, int threads) : backend(threads) {
    options.global_batch = 6;  // two micro-steps: gradients share no bytes with activations
    options.micro_batch = 3;
    const v1::JobSpec spec = job.Spec(options);
    plan::PlanOptions plan_options = *plan::OptionsFromSpec(spec, threads);
    // Several chunks of the head, the last one shorter: 72 rows by 32.
    plan_options.lm_head_chunk_bytes = 32 * TinyJob::kVocabulary * (IsBf16() ? 2 : 4);
    plan = *plan::PlanTraining(spec, plan_options);
    plan_options.min_matmul_workspace_bytes = backend.CheckMatmulWorkspace(plan)->needed;
    plan = *plan::PlanTraining(spec, plan_options);
    EXPECT_FALSE(backend.CheckMatmulWorkspace(plan)->missing);
    arena = std::make_unique<Arena>(*Arena::Allocate(plan.arena_bytes));
    backend.Attach(arena->data(), nullptr);
    ParameterStore store(plan, plan.train.graph, arena->data(), nullptr);
    store.Initialize(11);
    EXPECT_TRUE(store.RebuildParameters().ok());
    Perturb();
    FillInputs();
    reference = std::make_unique<graph::ReferenceInterpreter>(plan.train.graph);
    context.seed = 5;
    context.step = 4;
    context.first_sample = 9;
    for (size_t head = 0; head < graph().losses.size(); ++head) {
      context.gradient_factors[head] = kScale * static_cast<float>(graph().losses[head].weight);
    }
  }

  bool IsBf16() const { return plan.options.compute_dtype == DType::kBf16; }
  bool IsF16() const { return plan.options.compute_dtype == DType::kF16; }
  const graph::Graph& graph() const { return plan.train.graph; }

  char* At(ValueId id) const {
    const plan::Place& place = plan.train.places[id];
    return arena->data() + plan.buffers[place.buffer].offset + place.offset;
  }

  void LoadReference(ValueId id) const {
    const graph::Value& value = graph().values[id];
    const int64_t n = graph::Elements(value.shape);
    if (value.dtype == DType::kI32) {
      const auto* data = reinterpret_cast<const int32_t*>(At(id));
      reference->integers(id).assign(data, data + n);
      return;
    }
    reference->values(id) = Read(id);
  }

  std::vector<double> Read(ValueId id) const {
    const graph::Value& value = graph().values[id];
    std::vector<double> out(static_cast<size_t>(graph::Elements(value.shape)));
    for (size_t i = 0; i < out.size(); ++i) {
      switch (value.dtype) {
        case DType::kF32:
          out[i] = reinterpret_cast<const float*>(At(id))[i];
          break;
        case DType::kBf16:
          out[i] = ToFloat(reinterpret_cast<const bf16*>(At(id))[i]);
          break;
        case DType::kF16:
          out[i] = ToFloat(reinterpret_cast<const f16*>(At(id))[i]);
          break;
        case DType::kF64:
          out[i] = reinterpret_cast<const double*>(At(id))[i];
          break;
        case DType::kI32:
          out[i] = reinterpret_cast<const int32_t*>(At(id))[i];
          break;
        default:
          ADD_FAILURE() << value.name;
      }
    }
    return out;
  }

  graph::ReferenceContext ReferenceContext() const {
    graph::ReferenceContext c;
    c.gradient_scale = kScale;
    c.first_micro_step = context.first_micro_step;
    // The masks' own definition, by global element.
    c.dropout = [this](uint32_t tag, double p, int64_t element) {
      const int64_t width = graph().values[graph().parameters[0].value].shape[1];
      const kernels::DropoutParams params{
          .p = static_cast<float>(p),
          .seed = context.seed,
          .stream = RandomStream(RandomPurpose::kDropout, tag),
          .step = static_cast<uint64_t>(context.step),
          .first_element = static_cast<uint64_t>(context.first_sample * TinyJob::kContext * width)};
      float multiplier = 0;
      kernels::DropoutMultipliers(params, static_cast<uint64_t>(element), 1, &multiplier);
      return static_cast<double>(multiplier);
    };
    return c;
  }

  // Runs one op on both sides, from the same operands.
  void RunOp(const plan::PlannedOp& planned) {
    for (ValueId id : planned.op.inputs) {
      if (id != graph::kNoValue) LoadReference(id);
    }
    for (const graph::Output& output : planned.op.outputs) {
      if (output.value != graph::kNoValue) LoadReference(output.value);
    }
    auto bound = backend.Bind(plan, plan.train, planned);
    ASSERT_TRUE(bound.ok()) << bound.status();
    ASSERT_EQ((*bound)(context), absl::OkStatus());
    reference->RunOp(planned.op, ReferenceContext());
  }

  static constexpr float kScale = 1.0F / 70;
  TinyJob job;
  CpuBackend backend;
  plan::StepPlan plan;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<graph::ReferenceInterpreter> reference;
  StepContext context;

 private:
  // Initial biases are 0 and gains 1: give every parameter values that would show a mix-up.
  void Perturb() const {
    for (const graph::Parameter& parameter : graph().parameters) {
      const graph::Value& value = graph().values[parameter.value];
      std::vector<float> noise(static_cast<size_t>(graph::Elements(value.shape)));
      kernels::NormalInit(noise.data(), static_cast<int64_t>(noise.size()), 0, 0.2F, 3,
                          static_cast<uint64_t>(parameter.value), 0);
      for (size_t i = 0; i < noise.size(); ++i) {
        if (IsBf16()) {
          auto* data = reinterpret_cast<bf16*>(At(parameter.value));
          data[i] = ToBf16(ToFloat(data[i]) + noise[i]);
        } else if (IsF16()) {
          auto* data = reinterpret_cast<f16*>(At(parameter.value));
          data[i] = ToF16(ToFloat(data[i]) + noise[i]);
        } else {
          reinterpret_cast<float*>(At(parameter.value))[i] += noise[i];
        }
      }
    }
  }
  // Whether few rows have a target.
  bool IsMasked() const { return plan.train.graph.Input("segments") != graph::kNoValue; }
  void Set(const char* input, int64_t i, int64_t value) const {
    const ValueId id = graph().Input(input);
    if (id == graph::kNoValue) return;
    reinterpret_cast<int32_t*>(At(id))[i] = static_cast<int32_t>(value);
  }
  void FillInputs() const {
    auto* tokens = reinterpret_cast<int32_t*>(At(graph().Input("tokens")));
    auto* targets = reinterpret_cast<int32_t*>(At(graph().Input("targets")));
    for (int64_t i = 0; i < 3 * TinyJob::kContext; ++i) {
      tokens[i] = static_cast<int32_t>((i * i + 5 * i) % TinyJob::kVocabulary);
      const bool ignored = IsMasked() ? i % 3 != 1 : i % 36 == 7;
      targets[i] = ignored ? -1 : static_cast<int32_t>((i * 7 + 2) % TinyJob::kVocabulary);
      Set("documents", i, i % TinyJob::kContext / 7);
      Set("positions", i, i % TinyJob::kContext % 7);
      Set("segments", i, i * 5 % 3);
      Set("labels.kind", i, i % 4 == 1 ? -1 : i % 7);
      Set("labels.next", i, i % 9 == 2 ? -1 : i * 3 % 130);
    }
  }
};

// ||a - b|| / ||scale||; without a scale b.
double RelativeError(const std::vector<double>& actual, const std::vector<double>& wanted,
                     const std::vector<double>* scale = nullptr) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += (actual[i] - wanted[i]) * (actual[i] - wanted[i]);
    const double size = scale == nullptr ? wanted[i] : (*scale)[i];
    norm += size * size;
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

// A key's bias moves all scores of a query alike, so its gradient is 0 but for rounding: it is held
// against the query's bias.
std::vector<double> Scale(const StepBench& bench, ValueId value) {
  const std::string& name = bench.graph().values[value].name;
  for (const graph::Parameter& p : bench.graph().parameters) {
    const std::string& own = bench.graph().values[p.value].name;
    const std::string key = absl::StrReplaceAll(
        own, {{"self.query.bias", "self.key.bias"}, {"q_lin.bias", "k_lin.bias"}});
    if (key != own && absl::StrContains(name, key)) return bench.reference->values(p.gradient);
  }
  return bench.reference->values(value);
}

struct Case {
  TinyOptions options;
  int threads;
};

class EveryOp : public ::testing::TestWithParam<Case> {};

TEST_P(EveryOp, MatchesTheReference) {
  StepBench bench(GetParam().options, GetParam().threads);
  // bf16: results are rounded to 8 bits, and attention rounds its probabilities. Halves: to 11.
  const double tolerance = bench.IsBf16() ? 6e-3 : bench.IsF16() ? 5e-4 : 3e-6;
  std::set<OpKind> seen;
  for (bool first : {true, false}) {
    bench.context.first_micro_step = first;
    for (const plan::PlannedOp& planned : bench.plan.train.ops) {
      if (planned.when != plan::When::kEveryMicroStep) continue;
      bench.RunOp(planned);
      seen.insert(planned.op.kind);
      for (const graph::Output& output : planned.op.outputs) {
        if (output.value == graph::kNoValue) continue;
        if (bench.graph().values[output.value].dtype == DType::kI32) {
          const std::vector<int32_t>& wanted = bench.reference->integers(output.value);
          EXPECT_EQ(bench.Read(output.value), std::vector<double>(wanted.begin(), wanted.end()))
              << bench.graph().values[output.value].name;
          continue;
        }
        const std::vector<double> scale = Scale(bench, output.value);
        EXPECT_LT(
            RelativeError(bench.Read(output.value), bench.reference->values(output.value), &scale),
            tolerance)
            << graph::Name(planned.op.kind) << " -> " << bench.graph().values[output.value].name;
      }
    }
  }
  // Every forward and backward kind of the family.
  const TinyOptions& options = GetParam().options;
  const bool dropout_alone = options.bert && options.dropout > 0;
  const size_t of_experts = options.experts > 0 ? 10 : 0;
  EXPECT_EQ(seen.size() - of_experts, options.dora      ? (options.llama ? 22u : 19u)
                                      : options.gemma3  ? 19u
                                      : options.qk_norm ? 18u
                                      : options.olmo3   ? 18u
                                      : options.llama   ? 16u
                                      : dropout_alone   ? 15u
                                                        : 14u);
}

INSTANTIATE_TEST_SUITE_P(
    Gpt2, EveryOp,
    ::testing::Values(Case{{.precision = v1::PRECISION_FP32, .dropout = 0.25}, 1},
                      Case{{.precision = v1::PRECISION_FP32}, 2},
                      Case{{.precision = v1::PRECISION_BF16, .dropout = 0.25}, 2},
                      Case{{.precision = v1::PRECISION_BF16}, 1},
                      Case{{.precision = v1::PRECISION_FP16, .dropout = 0.25}, 2}));

// Heads of keys: one, some, all. Width 20 and hidden 13: gate and up do not follow each other
// without a gap, so that they are two products.
INSTANTIATE_TEST_SUITE_P(
    Llama, EveryOp,
    ::testing::Values(
        Case{{.precision = v1::PRECISION_FP32, .llama = true}, 2},
        Case{{.precision = v1::PRECISION_BF16, .llama = true, .tied = true, .qkv_bias = true}, 2},
        Case{{.precision = v1::PRECISION_FP32,
              .width = 20,
              .llama = true,
              .kv_heads = 1,
              .hidden = 13,
              .qkv_bias = true},
             1},
        Case{{.precision = v1::PRECISION_BF16,
              .width = 20,
              .llama = true,
              .kv_heads = 1,
              .hidden = 13},
             2},
        Case{{.precision = v1::PRECISION_FP16,
              .width = 20,
              .llama = true,
              .kv_heads = 1,
              .hidden = 13,
              .qkv_bias = true},
             2},
        Case{{.precision = v1::PRECISION_FP32, .llama = true, .kv_heads = 4, .tied = true}, 1},
        Case{{.precision = v1::PRECISION_FP32, .llama = true, .qk_norm = true}, 2},
        Case{{.precision = v1::PRECISION_BF16, .llama = true, .kv_heads = 1, .qk_norm = true}, 1},
        Case{{.precision = v1::PRECISION_FP16, .llama = true, .qk_norm = true}, 2},
        Case{{.precision = v1::PRECISION_FP32, .llama = true, .gemma3 = true}, 2},
        Case{{.precision = v1::PRECISION_BF16, .llama = true, .kv_heads = 1, .gemma3 = true}, 1},
        Case{{.precision = v1::PRECISION_FP32, .llama = true, .olmo3 = true}, 2},
        Case{{.precision = v1::PRECISION_BF16, .llama = true, .kv_heads = 1, .olmo3 = true}, 1},
        Case{{.precision = v1::PRECISION_FP16, .llama = true, .kv_heads = 4, .olmo3 = true}, 2}));

// Experts with rows and without; gate and up side by side and not.
INSTANTIATE_TEST_SUITE_P(
    Experts, EveryOp,
    ::testing::Values(Case{{.precision = v1::PRECISION_FP32, .llama = true, .experts = 5}, 2},
                      Case{{.precision = v1::PRECISION_BF16, .llama = true, .experts = 5}, 2},
                      Case{{.precision = v1::PRECISION_FP16, .llama = true, .experts = 5}, 1},
                      Case{{.precision = v1::PRECISION_FP32,
                            .width = 20,
                            .llama = true,
                            .hidden = 13,
                            .qk_norm = true,
                            .experts = 70,
                            .per_token = 1},
                           1},
                      Case{{.precision = v1::PRECISION_BF16,
                            .width = 20,
                            .llama = true,
                            .hidden = 13,
                            .qk_norm = true,
                            .experts = 4,
                            .per_token = 3},
                           2}));

// Adapters of all layers with magnitudes: weights of either layout, with biases and without.
INSTANTIATE_TEST_SUITE_P(
    Dora, EveryOp,
    ::testing::Values(
        Case{{.precision = v1::PRECISION_FP32, .lora = 4, .dora = true}, 2},
        Case{{.precision = v1::PRECISION_BF16, .lora = 3, .dora = true}, 1},
        Case{{.precision = v1::PRECISION_FP32,
              .width = 20,
              .llama = true,
              .kv_heads = 1,
              .hidden = 13,
              .qkv_bias = true,
              .lora = 3,
              .dora = true},
             1},
        Case{{.precision = v1::PRECISION_BF16, .llama = true, .lora = 4, .dora = true}, 2},
        Case{{.precision = v1::PRECISION_FP16, .llama = true, .lora = 4, .dora = true}, 2}));

INSTANTIATE_TEST_SUITE_P(
    Documents, EveryOp,
    ::testing::Values(Case{{.precision = v1::PRECISION_FP32, .documents = true}, 2},
                      Case{{.precision = v1::PRECISION_BF16, .llama = true, .documents = true},
                           1}));

// A head of few targets, in several chunks.
INSTANTIATE_TEST_SUITE_P(
    Bert, EveryOp,
    ::testing::Values(
        Case{{.precision = v1::PRECISION_FP32, .dropout = 0.25, .bert = true}, 2},
        Case{{.precision = v1::PRECISION_FP32, .bert = true, .documents = true}, 1},
        Case{{.precision = v1::PRECISION_BF16, .dropout = 0.25, .bert = true, .documents = true},
             2}));

INSTANTIATE_TEST_SUITE_P(
    Heads, EveryOp,
    ::testing::Values(Case{{.precision = v1::PRECISION_FP32, .heads = true}, 2},
                      Case{{.precision = v1::PRECISION_BF16, .llama = true, .heads = true}, 1},
                      Case{{.precision = v1::PRECISION_FP16, .bert = true, .heads = true}, 2}));

// A head that makes logits only where a target is, beside others over the same rows.
TEST(CpuBackend, AHeadOfFewTargetsAddsToTheOthers) {
  StepBench bench({.heads = true}, 2);
  bool met = false;
  for (plan::PlannedOp planned : bench.plan.train.ops) {
    if (planned.when != plan::When::kEveryMicroStep) continue;
    const bool last =
        planned.op.kind == OpKind::kLmHeadLossBackward && planned.op.attributes.head == 0;
    if (last) {
      planned.op.attributes.gathers = true;
      planned.op.attributes.chunk_rows /= 2;  // the rows then fit where logits were
      ASSERT_NE(planned.op.inputs[4], graph::kNoValue);
    }
    bench.RunOp(planned);
    met |= last;
    for (size_t i = 0; last && i < 3; ++i) {
      const ValueId id = planned.op.outputs[i].value;
      EXPECT_LT(RelativeError(bench.Read(id), bench.reference->values(id)), 3e-6) << i;
    }
  }
  EXPECT_TRUE(met);
}

// The whole micro-step through the executor: every parameter's gradient, twice accumulated.
class WholeModel : public ::testing::TestWithParam<TinyOptions> {};

TEST_P(WholeModel, GradientsMatchTheReference) {
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    TinyOptions options = GetParam();
    options.precision = precision;
    StepBench bench(options, 2);
    for (size_t id = 0; id < bench.graph().values.size(); ++id) {
      const graph::ValueKind kind = bench.graph().values[id].kind;
      if (kind == graph::ValueKind::kParameter || kind == graph::ValueKind::kInput) {
        bench.LoadReference(static_cast<ValueId>(id));
      }
    }
    auto executor = Executor::Create(bench.plan, bench.plan.train, &bench.backend, nullptr);
    ASSERT_TRUE(executor.ok()) << executor.status();
    for (bool first : {true, false}) {
      bench.context.first_micro_step = first;
      bench.context.last_micro_step = !first;
      bench.context.first_sample = first ? 9 : 12;  // another mask
      ASSERT_EQ((*executor)->Run(Section::kMicroStep, bench.context), absl::OkStatus());
      bench.reference->Run(bench.ReferenceContext());
    }
    for (const graph::Parameter& parameter : bench.graph().parameters) {
      // A key bias moves all scores of a query nearly alike: its gradient's terms cancel.
      const bool key_bias = bench.graph().values[parameter.value].name.ends_with("k_proj.bias");
      // A Llama rounds to bf16 once more, after the rotation, in a narrower model.
      const double bf16_tolerance = key_bias ? 8e-2 : options.llama ? 4e-2 : 3e-2;
      // Halves have three bits more.
      const double tolerance = precision == v1::PRECISION_FP32   ? 1e-5
                               : precision == v1::PRECISION_BF16 ? bf16_tolerance
                                                                 : bf16_tolerance / 8;
      const std::vector<double> scale = Scale(bench, parameter.gradient);
      EXPECT_LT(RelativeError(bench.Read(parameter.gradient),
                              bench.reference->values(parameter.gradient), &scale),
                tolerance)
          << bench.graph().values[parameter.value].name;
    }
    for (const graph::LossHead& head : bench.graph().losses) {
      EXPECT_NEAR(bench.Read(head.sums)[0], bench.reference->values(head.sums)[0],
                  precision == v1::PRECISION_FP32   ? 1e-3
                  : precision == v1::PRECISION_BF16 ? 1.0
                                                    : 0.125)
          << head.name;
      EXPECT_EQ(bench.Read(head.sums)[1], bench.reference->values(head.sums)[1]) << head.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, WholeModel,
    ::testing::Values(
        TinyOptions{.dropout = 0.25}, TinyOptions{.llama = true, .qkv_bias = true},
        TinyOptions{.width = 20, .llama = true, .kv_heads = 1, .hidden = 13, .tied = true},
        TinyOptions{.llama = true, .documents = true}, TinyOptions{.llama = true, .qk_norm = true},
        TinyOptions{.llama = true, .gemma3 = true, .documents = true},
        TinyOptions{.llama = true, .olmo3 = true},
        // All are chosen: with fewer, another rounding may choose others.
        TinyOptions{.llama = true, .experts = 3, .per_token = 3},
        TinyOptions{.llama = true, .kv_heads = 4, .olmo3 = true, .documents = true},
        TinyOptions{.dropout = 0.25, .bert = true, .distilbert = true, .documents = true},
        TinyOptions{.dropout = 0.25, .bert = true, .documents = true}, TinyOptions{.heads = true},
        TinyOptions{.llama = true, .heads = true}, TinyOptions{.bert = true, .heads = true}));

// The planner's model of workspaces is the kernels' own, but for the products' scratch, which only
// a backend knows.
TEST(CpuBackend, AsksAgainOnlyForProductScratch) {
  TinyJob job;
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    for (int threads : {1, 2, 3, 4}) {
      const bool llama = threads > 2;
      v1::JobSpec spec = job.Spec({.precision = precision, .llama = llama, .qkv_bias = true});
      v1::ModelSpec* model = spec.mutable_model();
      llama ? model->mutable_llama()->set_context(300) : model->mutable_gpt2()->set_context(300);
      spec.mutable_data()->set_sequence_length(300);
      CpuBackend backend(threads);
      plan::PlanOptions plan_options = *plan::OptionsFromSpec(spec, threads);
      plan::StepPlan plan = *plan::PlanTraining(spec, plan_options);
      const auto workspace = backend.CheckMatmulWorkspace(plan);
      ASSERT_TRUE(workspace.ok());
      plan_options.min_matmul_workspace_bytes = workspace->needed;
      plan = *plan::PlanTraining(spec, plan_options);
      auto arena = Arena::Allocate(plan.arena_bytes);
      ASSERT_TRUE(arena.ok());
      backend.Attach(arena->data(), nullptr);
      for (const plan::Program* program : {&plan.train, &plan.evaluate}) {
        EXPECT_EQ(Executor::Create(plan, *program, &backend, nullptr).status(), absl::OkStatus());
      }
    }
  }
}

struct ModelShape {
  int64_t context;
  int64_t width;
  int64_t heads;
  int64_t vocabulary;
};

// What is planned without a backend is what a run allocates: the reserve for products is enough.
TEST(CpuBackend, TheReserveForProductsIsEnough) {
  TinyJob job;
  for (const ModelShape& shape :
       {ModelShape{128, 192, 6, 256}, {256, 384, 6, 256}, {512, 768, 12, 50257}}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      for (const int threads : {1, 2, 4}) {
        TinyOptions options;
        options.precision = precision;
        v1::JobSpec spec = job.Spec(options);
        v1::Gpt2Spec* model = spec.mutable_model()->mutable_gpt2();
        model->set_context(shape.context);
        model->set_width(shape.width);
        model->set_heads(shape.heads);
        model->set_vocabulary(shape.vocabulary);
        spec.mutable_data()->set_sequence_length(shape.context);
        CpuBackend backend(threads);
        const auto plan = plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, threads));
        ASSERT_TRUE(plan.ok()) << plan.status();
        const auto workspace = backend.CheckMatmulWorkspace(*plan);
        ASSERT_TRUE(workspace.ok()) << workspace.status();
        EXPECT_FALSE(workspace->missing) << shape.width << " wide, " << threads << " threads, "
                                         << workspace->needed << " bytes needed";
      }
    }
  }
}

TEST(CpuBackend, TheReserveForProductsIsEnoughForLlama) {
  TinyJob job;
  for (const v1::Precision precision :
       {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
    for (const int threads : {1, 2, 4}) {
      for (const int64_t experts : {0, 4}) {
        v1::JobSpec spec = job.Spec({.precision = precision, .llama = true, .experts = experts});
        v1::LlamaSpec* model = spec.mutable_model()->mutable_llama();
        if (experts > 0) model->mutable_experts()->set_hidden(2816);
        model->set_context(512);
        model->set_width(1024);
        model->set_heads(16);
        model->set_kv_heads(4);
        model->set_head_dim(64);
        model->set_hidden(2816);
        model->set_vocabulary(32000);
        spec.mutable_data()->set_sequence_length(512);
        CpuBackend backend(threads);
        const auto plan = plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, threads));
        ASSERT_TRUE(plan.ok()) << plan.status();
        const auto workspace = backend.CheckMatmulWorkspace(*plan);
        ASSERT_TRUE(workspace.ok()) << workspace.status();
        EXPECT_FALSE(workspace->missing) << experts << " experts, " << threads << " threads, "
                                         << workspace->needed << " bytes needed";
      }
    }
  }
}

// Every op refuses a cache line less of workspace than it is planned to have; `kinds`: how many
// kinds of op have one.
void ExpectExactWorkspaces(const v1::JobSpec& spec, size_t kinds) {
  CpuBackend backend(2);
  plan::PlanOptions plan_options = *plan::OptionsFromSpec(spec, 2);
  plan_options.min_matmul_workspace_bytes = 0;  // the reserve for products is generous
  plan::StepPlan plan = *plan::PlanTraining(spec, plan_options);
  auto arena = Arena::Allocate(plan.arena_bytes);
  ASSERT_TRUE(arena.ok());
  backend.Attach(arena->data(), nullptr);
  std::set<OpKind> seen;
  for (plan::PlannedOp& op : plan.train.ops) {
    if (op.workspace_bytes == 0) continue;
    op.workspace_bytes -= 64;
    EXPECT_EQ(backend.Bind(plan, plan.train, op).status().code(), absl::StatusCode::kInternal)
        << graph::Name(op.op.kind) << " at sequence length " << spec.data().sequence_length();
    seen.insert(op.op.kind);
  }
  EXPECT_EQ(seen.size(), kinds);
}

// ... and not a cache line more than they need.
TEST(CpuBackend, RefusesAWorkspaceThatIsTooSmall) {
  TinyJob job;
  for (const ModelShape& shape : {ModelShape{24, 32, 4, 61}, {70, 80, 2, 500}, {300, 48, 2, 33}}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      TinyOptions options;
      options.precision = precision;
      v1::JobSpec spec = job.Spec(options);
      v1::Gpt2Spec* model = spec.mutable_model()->mutable_gpt2();
      model->set_context(shape.context);
      model->set_width(shape.width);
      model->set_heads(shape.heads);
      model->set_vocabulary(shape.vocabulary);
      spec.mutable_data()->set_sequence_length(shape.context);
      // Attention, norms and head with their backwards, weight gradients, the gradient's norm.
      ExpectExactWorkspaces(spec, 7);
    }
  }
}

TEST(CpuBackend, RefusesAWorkspaceThatIsTooSmallForLlama) {
  TinyJob job;
  for (const int64_t context : {24, 70, 300}) {
    for (const v1::Precision precision :
         {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16}) {
      for (const int64_t kv_heads : {1, 4}) {
        v1::JobSpec spec = job.Spec(
            {.precision = precision, .llama = true, .kv_heads = kv_heads, .qkv_bias = true});
        spec.mutable_model()->mutable_llama()->set_context(context);
        spec.mutable_data()->set_sequence_length(context);
        // Attention and its backward, norms' backward, the head, linear layers of several biases
        // and their weight gradients, the gradient's norm.
        ExpectExactWorkspaces(spec, 7);
      }
    }
  }
}

TEST(CpuBackend, RefusesAWorkspaceThatIsTooSmallForBert) {
  TinyJob job;
  for (const int64_t context : {24, 70}) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      v1::JobSpec spec = job.Spec({.precision = precision, .bert = true});
      spec.mutable_model()->mutable_bert()->set_context(context);
      spec.mutable_data()->set_sequence_length(context);
      // Attention, norms with their backwards, the head, linear layers of several biases, weight
      // gradients, the gradient's norm.
      ExpectExactWorkspaces(spec, 8);
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
