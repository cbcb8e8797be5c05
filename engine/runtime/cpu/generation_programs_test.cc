// The programs of a generation plan on the CPU, against the fp64 reference of the whole text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "common/spec/validate.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/models/model.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/executor/executor.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kContext = 96;
constexpr int64_t kVocabulary = 61;

v1::ModelSpec Gpt2() {
  v1::ModelSpec model;
  v1::Gpt2Spec* gpt2 = model.mutable_gpt2();
  gpt2->set_layers(2);
  gpt2->set_width(48);
  gpt2->set_heads(2);
  gpt2->set_context(kContext);
  gpt2->set_vocabulary(kVocabulary);
  return model;
}

v1::ModelSpec Llama(bool variant) {
  v1::JobSpec spec;
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_layers(2);
  llama->set_width(48);
  llama->set_heads(6);
  llama->set_kv_heads(variant ? 1 : 3);
  llama->set_head_dim(variant ? 16 : 8);
  llama->set_hidden(72);
  llama->set_context(kContext);
  llama->set_vocabulary(kVocabulary);
  if (variant) {
    llama->set_tied(true);
    llama->set_qkv_bias(true);
    llama->set_qk_norm(true);
    llama->set_norm_offset(true);
    llama->set_post_norms(true);
    llama->set_scale_embedding(true);
    llama->mutable_window()->set_positions(9);
    llama->mutable_window()->set_full_every(2);
    llama->mutable_rope_scaling()->set_factor(4);
    llama->mutable_rope_scaling()->set_original_context(24);
    llama->set_rope_theta(100);
  }
  NormalizeJobSpec(&spec);
  return spec.model();
}

v1::ModelSpec Olmo3() {
  v1::JobSpec spec;
  *spec.mutable_model() = Llama(false);
  v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
  llama->set_wide_qk_norm(true);
  llama->set_pre_norms(false);
  llama->set_post_norms(true);
  llama->mutable_window()->set_positions(9);
  llama->mutable_window()->set_full_every(2);
  NormalizeJobSpec(&spec);
  return spec.model();
}

// All are chosen: with fewer, another rounding may choose others.
v1::ModelSpec Mixture() {
  v1::JobSpec spec;
  *spec.mutable_model() = Llama(false);
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_count(3);
  spec.mutable_model()->mutable_llama()->mutable_experts()->set_per_token(3);
  NormalizeJobSpec(&spec);
  return spec.model();
}

int32_t Token(int64_t position) {
  return static_cast<int32_t>((position * position + 7 * position + 2) % kVocabulary);
}

// As the compute dtype stores them.
std::vector<float> Weights(size_t parameter, int64_t elements, DType dtype) {
  std::vector<float> weights(static_cast<size_t>(elements));
  kernels::NormalInit(weights.data(), elements, 0, 0.2F, 3, parameter, 0);
  for (float& w : weights) {
    if (dtype == DType::kBf16) w = ToFloat(ToBf16(w));
    if (dtype == DType::kF16) w = ToFloat(ToF16(w));
  }
  return weights;
}

class Programs {
 public:
  Programs(const v1::ModelSpec& model, DType dtype, int threads) : backend_(threads) {
    plan::PlanOptions options{.compute_dtype = dtype, .sequence = kContext, .threads = threads};
    Make(model, options);
    const auto workspace = backend_.CheckMatmulWorkspace(plan_);
    EXPECT_TRUE(workspace.ok()) << workspace.status();
    options.min_matmul_workspace_bytes = workspace->needed;
    Make(model, options);
    absl::StatusOr<Arena> arena = Arena::Allocate(plan_.arena_bytes);
    EXPECT_TRUE(arena.ok()) << arena.status();
    arena_.emplace(*std::move(arena));
    // NaNs: what nobody wrote must not be read, the caches included.
    std::memset(arena_->data(), 0xff, static_cast<size_t>(plan_.arena_bytes));
    backend_.Attach(arena_->data(), nullptr);
    SetWeights(dtype);
  }

  // Logits after `count` tokens from `first` on.
  std::vector<float> Run(int64_t first, int64_t count, const plan::Program& program) {
    const graph::Graph& graph = program.graph;
    auto* tokens = At<int32_t>(program, graph.Input("tokens"));
    auto* positions = At<int32_t>(program, graph.Input("positions"));
    for (int64_t row = 0; row < graph.values[graph.Input("tokens")].shape[0]; ++row) {
      const int64_t position = first + std::min(row, count - 1);
      tokens[row] = Token(position);
      positions[row] = static_cast<int32_t>(position);
    }
    std::unique_ptr<Executor>& executor = &program == &plan_.next ? next_ : prompt_;
    if (executor == nullptr) {
      auto made = Executor::Create(plan_, program, &backend_, nullptr);
      EXPECT_TRUE(made.ok()) << made.status();
      executor = *std::move(made);
    }
    StepContext context;
    context.position = count - 1;
    EXPECT_EQ(executor->Run(Section::kMicroStep, context), absl::OkStatus());
    const auto* logits = At<float>(program, graph.logits);
    return {logits, logits + kVocabulary};
  }

  const plan::StepPlan& plan() const { return plan_; }

 private:
  void Make(const v1::ModelSpec& model, const plan::PlanOptions& options) {
    absl::StatusOr<plan::StepPlan> plan = plan::PlanGeneration(model, options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
  }

  template <typename T>
  T* At(const plan::Program& program, graph::ValueId id) const {
    const plan::Place& place = program.places[id];
    return reinterpret_cast<T*>(arena_->data() + plan_.buffers[place.buffer].offset + place.offset);
  }

  void SetWeights(DType dtype) {
    const graph::Graph& graph = plan_.prompt.graph;
    for (size_t p = 0; p < graph.parameters.size(); ++p) {
      const graph::ValueId id = graph.parameters[p].value;
      const std::vector<float> weights = Weights(p, graph::Elements(graph.values[id].shape), dtype);
      for (size_t i = 0; i < weights.size(); ++i) {
        if (dtype == DType::kBf16) {
          At<bf16>(plan_.prompt, id)[i] = ToBf16(weights[i]);
        } else if (dtype == DType::kF16) {
          At<f16>(plan_.prompt, id)[i] = ToF16(weights[i]);
        } else {
          At<float>(plan_.prompt, id)[i] = weights[i];
        }
      }
    }
  }

  CpuBackend backend_;
  plan::StepPlan plan_;
  std::optional<Arena> arena_;
  std::unique_ptr<Executor> prompt_, next_;
};

// The whole text, once; then the logits of each position.
class Reference {
 public:
  Reference(const v1::ModelSpec& model, DType dtype)
      : graph_(
            *models::BuildModel(model, {.mode = models::Mode::kGeneration, .sequence = kContext})),
        reference_(graph_) {
    for (size_t p = 0; p < graph_.parameters.size(); ++p) {
      const graph::ValueId id = graph_.parameters[p].value;
      const auto weights = Weights(p, graph::Elements(graph_.values[id].shape), dtype);
      reference_.values(id).assign(weights.begin(), weights.end());
    }
    for (int64_t i = 0; i < kContext; ++i) {
      reference_.integers(graph_.Input("tokens"))[i] = Token(i);
    }
    reference_.Run({});
  }

  const std::vector<double>& After(int64_t position) {
    reference_.RunOp(graph_.ops.back(), {.position = position});
    return reference_.values(graph_.logits);
  }

 private:
  const graph::Graph graph_;
  graph::ReferenceInterpreter reference_;
};

void ExpectClose(const std::vector<float>& got, const std::vector<double>& want, double tolerance,
                 int64_t position) {
  double largest = 0;
  for (double w : want) largest = std::max(largest, std::abs(w));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * largest) << "token " << i << " after " << position;
  }
}

// A prompt in two chunks, the second partly filled, then token by token up to the context's end.
void CheckModel(const v1::ModelSpec& model, DType dtype, double tolerance) {
  SCOPED_TRACE(testing::Message() << model.ShortDebugString() << " " << Name(dtype));
  Programs programs(model, dtype, 1);
  Reference reference(model, dtype);
  const plan::StepPlan& plan = programs.plan();
  ExpectClose(programs.Run(0, 64, plan.prompt), reference.After(63), tolerance, 63);
  ExpectClose(programs.Run(64, 9, plan.prompt), reference.After(72), tolerance, 72);
  for (int64_t t = 73; t < kContext; ++t) {
    ExpectClose(programs.Run(t, 1, plan.next), reference.After(t), tolerance, t);
  }
}

TEST(GenerationPrograms, LogitsAreTheReferencesOfTheWholeText) {
  for (const v1::ModelSpec& model : {Gpt2(), Llama(false), Llama(true), Olmo3(), Mixture()}) {
    CheckModel(model, DType::kF32, 1e-5);
    CheckModel(model, DType::kBf16, 1.0 / 32);
    CheckModel(model, DType::kF16, 1.0 / 256);
  }
}

}  // namespace
}  // namespace milepost::runtime
