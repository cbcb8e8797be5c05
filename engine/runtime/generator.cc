#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/plan/planner.h"
#include "engine/runtime/arena.h"
#include "engine/runtime/cpu_backend.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/sampling.h"
#include "engine/runtime/session.h"

namespace milepost::runtime {
namespace {

class GeneratorImpl : public Generator {
 public:
  explicit GeneratorImpl(int threads) : backend_(std::max(1, threads)) {}
  absl::Status Open(const v1::ModelSpec& model, v1::Precision precision, int threads);

  const std::vector<v1::TensorInfo>& tensors() const override { return tensors_; }
  std::vector<StateInterval> LoadTargets() override;
  absl::Status FinishLoad() override;
  absl::Status Generate(absl::Span<const int32_t> prompt, const GenerateOptions& options,
                        const std::function<void(int32_t)>& emit) override;

 private:
  const plan::Program& program() const { return plan_.evaluate; }
  char* ValueAt(graph::ValueId id) const {
    const plan::Place& place = program().places[id];
    return arena_->data() + plan_.buffers[place.buffer].offset + place.offset;
  }
  absl::Status CheckRequest(absl::Span<const int32_t> prompt, const GenerateOptions& options) const;

  CpuBackend backend_;
  plan::StepPlan plan_;
  std::optional<Arena> arena_;
  std::unique_ptr<Executor> executor_;
  std::vector<v1::TensorInfo> tensors_;
  std::vector<float> masters_;  // until FinishLoad
  int64_t context_ = 0;
  int64_t vocabulary_ = 0;
  bool loaded_ = false;
};

absl::Status GeneratorImpl::Open(const v1::ModelSpec& model, v1::Precision precision, int threads) {
  if (model.has_bert()) {
    return absl::InvalidArgumentError("BERT finds masked tokens again; it generates no text");
  }
  const ModelSizes sizes = SizesOf(model);
  context_ = sizes.context;
  vocabulary_ = sizes.vocabulary;
  plan::PlanOptions options;
  options.compute_dtype = precision == v1::PRECISION_BF16   ? graph::DType::kBF16
                          : precision == v1::PRECISION_FP16 ? graph::DType::kF16
                                                            : graph::DType::kF32;
  options.sequence = context_;
  options.threads = std::max(1, threads);
  MP_ASSIGN_OR_RETURN(plan_, plan::PlanGeneration(model, options));
  MP_ASSIGN_OR_RETURN(CpuBackend::MatmulWorkspace workspace, backend_.CheckMatmulWorkspace(plan_));
  if (workspace.missing) {
    options.min_matmul_workspace_bytes = workspace.needed;
    MP_ASSIGN_OR_RETURN(plan_, plan::PlanGeneration(model, options));
  }
  MP_ASSIGN_OR_RETURN(arena_, Arena::Allocate(plan_.arena_bytes));
  backend_.Attach(arena_->data(), nullptr);
  MP_ASSIGN_OR_RETURN(executor_, Executor::Create(plan_, program(), &backend_, nullptr));
  int64_t elements = 0;
  for (const graph::Parameter& parameter : program().graph.parameters) {
    const graph::Value& value = program().graph.values[parameter.value];
    v1::TensorInfo& info = tensors_.emplace_back();
    info.set_name(value.name);
    info.set_kind("master");
    info.set_dtype(graph::Name(graph::DType::kF32));
    for (int64_t dimension : value.shape) info.add_shape(dimension);
    elements += graph::Elements(value.shape);
  }
  masters_.resize(static_cast<size_t>(elements));
  return absl::OkStatus();
}

std::vector<StateInterval> GeneratorImpl::LoadTargets() {
  std::vector<StateInterval> targets;
  float* data = masters_.data();
  for (const graph::Parameter& parameter : program().graph.parameters) {
    const int64_t elements = graph::Elements(program().graph.values[parameter.value].shape);
    targets.push_back({.tensor = static_cast<int32_t>(targets.size()),
                       .begin = 0,
                       .end = elements,
                       .data = reinterpret_cast<char*>(data)});
    data += elements;
  }
  return targets;
}

absl::Status GeneratorImpl::FinishLoad() {
  if (loaded_) return absl::FailedPreconditionError("FinishLoad was called twice");
  backend_.UseThreads();
  const float* data = masters_.data();
  for (const graph::Parameter& parameter : program().graph.parameters) {
    const graph::Value& value = program().graph.values[parameter.value];
    const int64_t elements = graph::Elements(value.shape);
    char* target = ValueAt(parameter.value);
    if (value.dtype == graph::DType::kBF16) {
      kernels::CastToBf16(data, elements, reinterpret_cast<kernels::bf16*>(target));
    } else if (value.dtype == graph::DType::kF16) {
      kernels::CastToF16(data, elements, reinterpret_cast<kernels::f16*>(target));
    } else {
      std::memcpy(target, data, static_cast<size_t>(elements) * sizeof(float));
    }
    data += elements;
  }
  masters_ = std::vector<float>();
  loaded_ = true;
  return absl::OkStatus();
}

absl::Status GeneratorImpl::CheckRequest(absl::Span<const int32_t> prompt,
                                         const GenerateOptions& options) const {
  if (!loaded_) return absl::FailedPreconditionError("Generate needs FinishLoad before it");
  if (prompt.empty()) {
    return absl::InvalidArgumentError("the prompt is empty: give at least one token");
  }
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (prompt[i] >= 0 && prompt[i] < vocabulary_) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt token %d has id %d; the model's vocabulary is %d", i, prompt[i], vocabulary_));
  }
  if (options.tokens < 0) {
    return absl::InvalidArgumentError("tokens must not be negative");
  }
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return absl::InvalidArgumentError("temperature must be a number of at least 0");
  }
  if (options.top_k < 0) return absl::InvalidArgumentError("top_k must be at least 0");
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return absl::InvalidArgumentError("top_p must be above 0 and at most 1");
  }
  return absl::OkStatus();
}

absl::Status GeneratorImpl::Generate(absl::Span<const int32_t> prompt,
                                     const GenerateOptions& options,
                                     const std::function<void(int32_t)>& emit) {
  MP_RETURN_IF_ERROR(CheckRequest(prompt, options));
  backend_.UseThreads();
  auto* tokens = reinterpret_cast<int32_t*>(ValueAt(program().graph.Input("tokens")));
  const absl::Span<const float> logits(
      reinterpret_cast<const float*>(ValueAt(program().graph.logits)),
      static_cast<size_t>(vocabulary_));
  Sampler sampler(options, vocabulary_);
  // The window lies at the front of the sequence. What stands behind it is never seen: attention is
  // causal, and only the logits of the window's last position are taken.
  int64_t length = std::min<int64_t>(static_cast<int64_t>(prompt.size()), context_);
  std::fill(tokens, tokens + context_, 0);
  std::copy(prompt.end() - length, prompt.end(), tokens);
  for (int64_t i = 0; i < options.tokens; ++i) {
    StepContext context;
    context.position = length - 1;
    MP_RETURN_IF_ERROR(executor_->Run(Section::kMicroStep, context));
    const int32_t next = sampler.Next(logits, i);
    emit(next);
    if (length == context_) {
      std::memmove(tokens, tokens + 1, static_cast<size_t>(context_ - 1) * sizeof(int32_t));
      --length;
    }
    tokens[length++] = next;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(const v1::ModelSpec& model,
                                                             v1::Precision precision, int threads) {
  auto generator = std::make_unique<GeneratorImpl>(threads);
  MP_RETURN_IF_ERROR(generator->Open(model, precision, threads));
  return std::unique_ptr<Generator>(std::move(generator));
}

}  // namespace milepost::runtime
