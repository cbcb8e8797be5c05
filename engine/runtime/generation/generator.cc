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
#include "engine/runtime/generation/token_scores.h"

namespace milepost::runtime {
namespace {

// Of their beginnings.
int64_t CommonTokens(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// How many tokens go through the program at once.
int64_t RowsOf(const graph::Graph& graph) {
  return graph::Elements(graph.values[graph.Input("tokens")].shape);
}

}  // namespace

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
  options.scores = wanted.scores;
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

absl::Status Generator::CheckText(absl::Span<const int32_t> text) const {
  if (!loaded_) return absl::FailedPreconditionError("Generate needs FinishLoad before it");
  if (text.empty()) {
    return absl::InvalidArgumentError("the prompt is empty: give at least one token");
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] >= 0 && text[i] < vocabulary_) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt token %d has id %d; the model's vocabulary is %d", i, text[i], vocabulary_));
  }
  return absl::OkStatus();
}

absl::Status Generator::CheckRequest(absl::Span<const int32_t> prompt,
                                     const GenerateOptions& options) const {
  MP_RETURN_IF_ERROR(CheckText(prompt));
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

// How many tokens of a new text need not be run again. They lie in whole chunks, so that the others
// are run as they would be without these; and at least one is run, for its logits.
int64_t Generator::Kept(absl::Span<const int32_t> text) const {
  const int64_t most = std::min(static_cast<int64_t>(text.size()) - 1, chunks_);
  return WholeChunks(CommonTokens(text.first(static_cast<size_t>(most)), window_));
}

// The score of the token behind those kept is of logits that are gone: it is kept, too.
int64_t Generator::KeptWithScores(absl::Span<const int32_t> text, int64_t best) const {
  if (best != scored_best_) return 0;
  const int64_t scored =
      std::min(CommonTokens(text, scored_text_) - 1, static_cast<int64_t>(scores_.size()));
  return std::min(Kept(text), WholeChunks(std::max<int64_t>(0, scored)));
}

int64_t Generator::WholeChunks(int64_t tokens) const {
  const int64_t chunk = RowsOf(plan().prompt.graph);
  return tokens / chunk * chunk;
}

void Generator::Begin(absl::Span<const int32_t> text, int64_t kept) {
  chunks_ = cached_ = kept;
  window_.reserve(window_size_);
  window_.assign(text.begin(), text.end());
}

// Runs as many of the tokens as go through the program at once, behind those that the caches hold,
// and takes them away.
absl::StatusOr<const float*> Generator::RunSome(const plan::Program& program,
                                                absl::Span<const int32_t>* tokens) {
  const int64_t rows = RowsOf(program.graph);
  const int64_t count = std::min(static_cast<int64_t>(tokens->size()), rows);
  MP_ASSIGN_OR_RETURN(const float* logits,
                      engine_->Run(program, tokens->first(static_cast<size_t>(count)), cached_));
  if (&program != &plan().next && count == rows && chunks_ == cached_) chunks_ += count;
  cached_ += count;
  tokens->remove_prefix(static_cast<size_t>(count));
  return logits;
}

absl::Status Generator::Run(absl::Span<const int32_t> tokens) {
  while (!tokens.empty()) {
    MP_ASSIGN_OR_RETURN(logits_,
                        RunSome(tokens.size() == 1 ? plan().next : plan().prompt, &tokens));
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
  chunks_ = cached_ = 0;
  return window_;
}

absl::Status Generator::Generate(absl::Span<const int32_t> prompt, const GenerateOptions& options,
                                 const EmitToken& emit) {
  MP_RETURN_IF_ERROR(CheckRequest(prompt, options));
  engine_->UseThread();
  Sampler sampler(options, vocabulary_);
  const auto seen = prompt.last(std::min(prompt.size(), window_size_));
  Begin(seen, Kept(seen));
  absl::Span<const int32_t> unseen = absl::MakeConstSpan(window_).subspan(cached_);
  for (int64_t i = 0; i < options.tokens; ++i) {
    MP_RETURN_IF_ERROR(Run(unseen));
    const int32_t token = sampler.Next({logits_, static_cast<size_t>(vocabulary_)}, i);
    TokenScore made{.token = {.token = token}};
    if (options.best.has_value()) made = ScoresOf(logits_, vocabulary_, {token}, *options.best)[0];
    if (!emit(made)) break;
    unseen = Add(token);
  }
  return absl::OkStatus();
}

absl::Status Generator::Score(absl::Span<const int32_t> text, int64_t best, const EmitToken& emit) {
  if (plan().score.ops.empty()) {
    return absl::FailedPreconditionError("Score needs GeneratorOptions with `scores`");
  }
  MP_RETURN_IF_ERROR(CheckText(text));
  if (text.size() > window_size_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the text has %d tokens; there is room for %d", text.size(), window_size_));
  }
  engine_->UseThread();
  const int64_t kept = KeptWithScores(text, best);
  Begin(text, kept);
  scores_.resize(static_cast<size_t>(kept));
  scored_text_ = window_;
  scored_best_ = best;
  for (const TokenScore& score : scores_) {
    if (!emit(score)) return absl::OkStatus();
  }
  return RunScores(emit);
}

// Of the text in the window, behind those that there are.
absl::Status Generator::RunScores(const EmitToken& emit) {
  const auto text = absl::MakeConstSpan(window_);
  auto unseen = text.first(text.size() - 1).subspan(static_cast<size_t>(cached_));
  while (!unseen.empty()) {
    const auto first = static_cast<size_t>(cached_) + 1;
    const size_t before = unseen.size();
    MP_ASSIGN_OR_RETURN(const float* logits, RunSome(plan().score, &unseen));
    const auto scores =
        ScoresOf(logits, vocabulary_, text.subspan(first, before - unseen.size()), scored_best_);
    scores_.insert(scores_.end(), scores.begin(), scores.end());
    for (const TokenScore& score : scores) {
      if (!emit(score)) return absl::OkStatus();
    }
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
