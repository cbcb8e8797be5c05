#include "engine/runtime/generation/generator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "common/spec/model_sizes.h"
#include "common/status_macros.h"
#include "engine/graph/base_matrices.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_generation_engine.h"
#include "engine/runtime/generation/sampling.h"

namespace milepost::runtime {
absl::Status Generator::Open(const v1::ModelSpec& model, const GeneratorOptions& wanted) {
  MP_RETURN_IF_ERROR(CheckGeneratesText(model));
  const ModelSizes sizes = SizesOf(model);
  vocabulary_ = sizes.vocabulary;
  plan::PlanOptions options;
  options.compute_dtype = wanted.precision == v1::PRECISION_BF16   ? DType::kBf16
                          : wanted.precision == v1::PRECISION_FP16 ? DType::kF16
                                                                   : DType::kF32;
  options.sequence = wanted.window > 0 ? std::min(wanted.window, sizes.context) : sizes.context;
  options.threads = std::max(1, wanted.threads);
  v1::ModelSpec trunk = model;  // further heads make no text
  trunk.clear_heads();
  const GenerationEngineFactory make_engine = wanted.engine ? wanted.engine : CpuGenerationEngine;
  MP_ASSIGN_OR_RETURN(engine_, make_engine(trunk, options));
  window_size_ = static_cast<size_t>(options.sequence);
  int64_t elements = 0;
  for (const graph::Parameter& parameter : Graph().parameters) {
    const graph::Value& value = Graph().values[parameter.value];
    v1::TensorInfo& info = tensors_.emplace_back();
    info.set_name(value.name);
    info.set_kind("master");
    info.set_dtype(Name(DType::kF32));
    for (int64_t dimension : value.shape) info.add_shape(dimension);
    elements += graph::Elements(value.shape);
  }
  masters_.resize(static_cast<size_t>(elements));
  nf4_.assign(Graph().parameters.size(), false);
  if (model.lora().quantize_base() == v1::BASE_QUANTIZATION_NF4) {
    nf4_ = graph::BaseMatrices(Graph());
  }
  return absl::OkStatus();
}

std::vector<StateInterval> Generator::LoadTargets() {
  std::vector<StateInterval> targets;
  float* data = masters_.data();
  for (const graph::Parameter& parameter : Graph().parameters) {
    const int64_t elements = graph::Elements(Graph().values[parameter.value].shape);
    targets.push_back({.tensor = static_cast<int32_t>(targets.size()),
                       .begin = 0,
                       .end = elements,
                       .data = reinterpret_cast<char*>(data)});
    data += elements;
  }
  return targets;
}

absl::Status Generator::FinishLoad() {
  if (loaded_) return absl::FailedPreconditionError("FinishLoad was called twice");
  engine_->UseThread();
  float* data = masters_.data();
  for (size_t i = 0; i < Graph().parameters.size(); ++i) {
    const graph::Parameter& parameter = Graph().parameters[i];
    const graph::Value& value = Graph().values[parameter.value];
    const int64_t elements = graph::Elements(value.shape);
    if (nf4_[i]) kernels::RoundToNf4(data, elements);
    char* target = ParameterAt(parameter.value);
    if (value.dtype == DType::kBf16) {
      kernels::CastToBf16(data, elements, reinterpret_cast<bf16*>(target));
    } else if (value.dtype == DType::kF16) {
      kernels::CastToF16(data, elements, reinterpret_cast<f16*>(target));
    } else {
      std::memcpy(target, data, static_cast<size_t>(elements) * sizeof(float));
    }
    data += elements;
  }
  masters_ = std::vector<float>();
  MP_RETURN_IF_ERROR(engine_->Upload());
  loaded_ = true;
  return absl::OkStatus();
}

absl::Status Generator::CheckRequest(absl::Span<const int32_t> prompt,
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

// Runs tokens through the model behind those that the caches hold.
absl::Status Generator::Run(absl::Span<const int32_t> tokens) {
  while (!tokens.empty()) {
    const plan::Program& program = tokens.size() == 1 ? plan().next : plan().prompt;
    const graph::Graph& graph = program.graph;
    const int64_t rows = graph::Elements(graph.values[graph.Input("tokens")].shape);
    const int64_t count = std::min(static_cast<int64_t>(tokens.size()), rows);
    MP_ASSIGN_OR_RETURN(logits_,
                        engine_->Run(program, tokens.first(static_cast<size_t>(count)), cached_));
    cached_ += count;
    tokens.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

// What must be run through the model for `token` to count.
absl::Span<const int32_t> Generator::Add(int32_t token) {
  if (window_.size() < window_size_) {
    window_.push_back(token);
    return absl::MakeConstSpan(window_).last(1);
  }
  const size_t kept = std::max<size_t>(1, window_size_ / 2);
  window_.erase(window_.begin(), window_.end() - static_cast<std::ptrdiff_t>(kept - 1));
  window_.push_back(token);
  cached_ = 0;
  return window_;
}

absl::Status Generator::Generate(absl::Span<const int32_t> prompt, const GenerateOptions& options,
                                 const std::function<bool(int32_t)>& emit) {
  MP_RETURN_IF_ERROR(CheckRequest(prompt, options));
  engine_->UseThread();
  Sampler sampler(options, vocabulary_);
  window_.reserve(window_size_);
  window_.assign(prompt.end() - static_cast<std::ptrdiff_t>(std::min(prompt.size(), window_size_)),
                 prompt.end());
  cached_ = 0;
  absl::Span<const int32_t> unseen = window_;
  for (int64_t i = 0; i < options.tokens; ++i) {
    MP_RETURN_IF_ERROR(Run(unseen));
    const int32_t token = sampler.Next({logits_, static_cast<size_t>(vocabulary_)}, i);
    if (!emit(token)) break;
    unseen = Add(token);
  }
  return absl::OkStatus();
}

absl::Status CheckGeneratesText(const v1::ModelSpec& model) {
  if (model.has_bert()) {
    return absl::InvalidArgumentError("BERT finds masked tokens again; it generates no text");
  }
  if (model.has_resnet()) {
    return absl::InvalidArgumentError("ResNet classifies images; it generates no text");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Generator>> Generator::Create(const v1::ModelSpec& model,
                                                             const GeneratorOptions& options) {
  auto generator = absl::WrapUnique(new Generator());
  MP_RETURN_IF_ERROR(generator->Open(model, options));
  return generator;
}

}  // namespace milepost::runtime
