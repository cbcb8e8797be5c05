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
#include "engine/kernels/cpu/parallel.h"
#include "engine/ops/nf4/nf4_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_generation_engine.h"
#include "engine/runtime/generation/token_scores.h"

namespace milepost::runtime {
namespace {

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
  options.texts = wanted.texts;
  v1::ModelSpec trunk = model;  // further heads make no text
  trunk.clear_heads();
  const GenerationEngineFactory make_engine = wanted.engine ? wanted.engine : CpuGenerationEngine;
  MP_ASSIGN_OR_RETURN(engine_, make_engine(trunk, options));
  window_size_ = static_cast<size_t>(options.sequence);
  for (int64_t i = 0; i < options.texts; ++i) {
    slots_.push_back({.text = CachedText(options.sequence, RowsOf(Graph()))});
  }
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

// Of those that are free, the one with the most that need not be run again, if that is at least
// half of what it has: one that shares a beginning alone is for the text that goes on with it. Else
// the one that has been free for the longest.
absl::StatusOr<int32_t> Generator::FreeSlot(
    const std::function<int64_t(const CachedText&)>& kept) const {
  int32_t best = -1;
  int64_t best_kept = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].task != Task::kNone) continue;
    const int64_t shared = kept(slots_[i].text);
    const int64_t its = 2 * shared >= slots_[i].text.cached() ? shared : 0;
    const bool better =
        best < 0 || its > best_kept || (its == best_kept && slots_[i].ended < slots_[best].ended);
    if (!better) continue;
    best = static_cast<int32_t>(i);
    best_kept = its;
  }
  if (best >= 0) return best;
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d texts are being made: more cannot be", slots_.size()));
}

absl::StatusOr<int32_t> Generator::Start(absl::Span<const int32_t> prompt,
                                         const GenerateOptions& options) {
  MP_RETURN_IF_ERROR(CheckRequest(prompt, options));
  const auto seen = prompt.last(std::min(prompt.size(), window_size_));
  const auto kept = [&](const CachedText& text) { return text.Kept(seen); };
  MP_ASSIGN_OR_RETURN(const int32_t text, FreeSlot(kept));
  if (options.tokens == 0) return text;
  Slot& slot = slots_[text];
  slot.task = Task::kText;
  slot.options = options;
  slot.sampler.emplace(options, vocabulary_);
  slot.made = 0;
  slot.text.Begin(seen, kept(slot.text));
  return text;
}

absl::StatusOr<int32_t> Generator::StartScore(absl::Span<const int32_t> text, int64_t best) {
  if (plan().score.ops.empty()) {
    return absl::FailedPreconditionError("Score needs GeneratorOptions with `scores`");
  }
  MP_RETURN_IF_ERROR(CheckText(text));
  if (text.size() > window_size_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the text has %d tokens; there is room for %d", text.size(), window_size_));
  }
  const auto kept = [&](const CachedText& one) { return one.KeptWithScores(text, best); };
  MP_ASSIGN_OR_RETURN(const int32_t index, FreeSlot(kept));
  if (text.size() == 1) return index;
  Slot& slot = slots_[index];
  slot.task = Task::kScore;
  slot.told = 0;
  slot.text.BeginScores(text, best, kept(slot.text));
  return index;
}

int32_t Generator::running() const {
  return static_cast<int32_t>(std::count_if(
      slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.task != Task::kNone; }));
}

void Generator::End(int32_t text) {
  Slot& slot = slots_[text];
  slot.task = Task::kNone;
  slot.sampler.reset();
  slot.ended = ++ends_;
}

absl::Status Generator::Step(const EmitTextToken& emit) {
  engine_->UseThread();
  MP_RETURN_IF_ERROR(RunNextPiece(emit));
  return RunTokens(emit);
}

// The next tokens of a text, as many as go through the program at once of those given.
absl::StatusOr<const float*> Generator::RunPiece(int32_t slot, const plan::Program& program,
                                                 absl::Span<const int32_t> tokens) {
  CachedText& text = slots_[slot].text;
  const int64_t rows = RowsOf(program.graph);
  const int64_t count = std::min(static_cast<int64_t>(tokens.size()), rows);
  MP_ASSIGN_OR_RETURN(const float* logits,
                      engine_->Run(program, {.tokens = tokens.first(static_cast<size_t>(count)),
                                             .position = text.cached(),
                                             .text = slot}));
  text.Ran(count, count == rows);
  return logits;
}

absl::Status Generator::RunNextPiece(const EmitTextToken& emit) {
  for (size_t i = 1; i <= slots_.size(); ++i) {
    const size_t turn = (last_piece_ + i) % slots_.size();
    Slot& slot = slots_[turn];
    if (!slot.NeedsPiece()) continue;
    last_piece_ = turn;
    const auto index = static_cast<int32_t>(turn);
    if (slot.task == Task::kScore) return RunScores(index, emit);
    MP_ASSIGN_OR_RETURN(const float* logits, RunPiece(index, plan().prompt, slot.text.Unseen()));
    if (slot.text.Unseen().empty()) Take(index, Choose(slot, logits), emit);
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

// Those that there are; then of the next tokens. The last token is not run: nothing is behind it.
absl::Status Generator::RunScores(int32_t index, const EmitTextToken& emit) {
  Slot& slot = slots_[index];
  const auto text = slot.text.window();
  std::vector<TokenScore>& scores = slot.text.scores();
  if (slot.told == static_cast<int64_t>(scores.size())) {
    const int64_t first = slot.text.cached() + 1;
    const auto unseen = slot.text.Unseen();
    MP_ASSIGN_OR_RETURN(const float* logits,
                        RunPiece(index, plan().score, unseen.first(unseen.size() - 1)));
    const int64_t count = slot.text.cached() + 1 - first;
    const auto made = ScoresOf(logits, vocabulary_,
                               text.subspan(static_cast<size_t>(first), static_cast<size_t>(count)),
                               slot.text.best());
    scores.insert(scores.end(), made.begin(), made.end());
  }
  while (slot.told < static_cast<int64_t>(scores.size())) {
    if (!emit(index, scores[static_cast<size_t>(slot.told++)])) {
      End(index);
      return absl::OkStatus();
    }
  }
  if (scores.size() + 1 == text.size()) End(index);
  return absl::OkStatus();
}

// One token of each text that has one.
absl::Status Generator::RunTokens(const EmitTextToken& emit) {
  std::vector<TextToken> tokens;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].task != Task::kText || slots_[i].NeedsPiece()) continue;
    const CachedText& text = slots_[i].text;
    tokens.push_back(
        {.token = text.Unseen()[0], .position = text.cached(), .text = static_cast<int32_t>(i)});
  }
  if (tokens.empty()) return absl::OkStatus();
  MP_ASSIGN_OR_RETURN(const float* logits, engine_->RunNext(tokens));
  std::vector<TokenScore> made(tokens.size());
  kernels::ParallelTasks(static_cast<int64_t>(tokens.size()), [&](int64_t i, int) {
    made[i] = Choose(slots_[tokens[i].text], logits + i * vocabulary_);
  });
  for (size_t i = 0; i < tokens.size(); ++i) {
    slots_[tokens[i].text].text.Ran(1, /*whole_chunk=*/false);
    Take(tokens[i].text, made[i], emit);
  }
  return absl::OkStatus();
}

TokenScore Generator::Choose(Slot& slot, const float* logits) const {
  const int32_t token = slot.sampler->Next({logits, static_cast<size_t>(vocabulary_)}, slot.made);
  if (!slot.options.best.has_value()) return {.token = {.token = token}, .best = {}};
  return ScoresOf(logits, vocabulary_, {token}, *slot.options.best)[0];
}

void Generator::Take(int32_t index, const TokenScore& made, const EmitTextToken& emit) {
  Slot& slot = slots_[index];
  if (!emit(index, made) || ++slot.made == slot.options.tokens) return End(index);
  slot.text.Add(made.token.token);
}

absl::Status Generator::RunAlone(int32_t text, const EmitToken& emit) {
  while (Runs(text)) {
    MP_RETURN_IF_ERROR(Step([&](int32_t, const TokenScore& made) { return emit(made); }));
  }
  return absl::OkStatus();
}

absl::Status Generator::Generate(absl::Span<const int32_t> prompt, const GenerateOptions& options,
                                 const EmitToken& emit) {
  MP_RETURN_IF_ERROR(CheckAlone());
  MP_ASSIGN_OR_RETURN(const int32_t text, Start(prompt, options));
  return RunAlone(text, emit);
}

absl::Status Generator::Score(absl::Span<const int32_t> text, int64_t best, const EmitToken& emit) {
  MP_RETURN_IF_ERROR(CheckAlone());
  MP_ASSIGN_OR_RETURN(const int32_t scored, StartScore(text, best));
  return RunAlone(scored, emit);
}

absl::Status Generator::CheckAlone() const {
  if (running() == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("other texts are being made: Start begins one beside them");
}

absl::Status CheckGeneratesText(const v1::ModelSpec& model) {
  if (model.has_bert()) {
    return absl::InvalidArgumentError("BERT finds masked tokens again; it generates no text");
  }
  if (model.has_resnet()) {
    return absl::InvalidArgumentError("ResNet classifies images; it generates no text");
  }
  if (model.has_vit()) {
    return absl::InvalidArgumentError("ViT classifies images; it generates no text");
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
