// Text generation from master weights, one text at a time, on the CPU or on a device.
//
//   MP_ASSIGN_OR_RETURN(auto generator, Generator::Create(model, {.threads = 8}));
//   for (const StateInterval& target : generator->LoadTargets()) ...   // fill
//   MP_RETURN_IF_ERROR(generator->FinishLoad());
//   MP_RETURN_IF_ERROR(generator->Generate(prompt, options, [](const TokenScore& made) {
//     ...
//     return true;  // go on
//   }));
//
// Keys and values of the text are kept, so that each token is run through the model once. A text
// that begins as the one before it did uses those that were kept, in whole chunks of a prompt
// (plan::PromptChunk), as they were made then: its own would be the same to the bit. The same
// prompt, options and weights give the same tokens, with any number of threads as long as oneDNN's
// products of the prompt are the same; a GPU's are its own. Not thread-safe.
#ifndef MILEPOST_ENGINE_RUNTIME_GENERATION_GENERATOR_H_
#define MILEPOST_ENGINE_RUNTIME_GENERATION_GENERATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/token_score.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/generation_engine.h"
#include "engine/runtime/executor/state_interval.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

struct GeneratorOptions {
  v1::Precision precision = v1::PRECISION_FP32;  // of parameters, caches and activations
  int threads = 1;
  // Tokens of the window (below), at most the model's context; 0: as many as that. Keys and values
  // take memory for all of them: a text that is known to be shorter needs no more than its length.
  int64_t window = 0;
  bool scores = false;             // whether Score may be called: takes memory for its logits
  GenerationEngineFactory engine;  // what it runs on; none: the CPU
};

struct GenerateOptions {
  int64_t tokens = 200;
  double temperature = 0.8;  // 0: greedy
  int64_t top_k = 0;         // 0: all
  // The likeliest tokens whose probabilities, at this temperature and among the top_k, reach this
  // sum; in (0, 1], 1: all.
  double top_p = 1;
  uint64_t seed = 0;
  // How many of the likeliest tokens are told of each that is made, with log-probabilities; none:
  // nor is the token's own.
  std::optional<int64_t> best;
};

// Returns whether to go on.
using EmitToken = std::function<bool(const TokenScore&)>;

// OK for a model that goes on with a text; INVALID_ARGUMENT, saying what it does instead,
// otherwise.
absl::Status CheckGeneratesText(const v1::ModelSpec& model);

class Generator {
 public:
  // RESOURCE_EXHAUSTED when the memory cannot be had; INVALID_ARGUMENT for a bad model or one that
  // writes no text.
  static absl::StatusOr<std::unique_ptr<Generator>> Create(const v1::ModelSpec& model,
                                                           const GeneratorOptions& options);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;
  // Master tensors wanted, whole, f32; `data` is valid until FinishLoad. Fill all, then call it.
  const std::vector<v1::TensorInfo>& tensors() const { return tensors_; }
  std::vector<StateInterval> LoadTargets();
  // Of the tensors: what adapters adapt, which a checkpoint of adapters does not hold.
  bool IsBase(int32_t tensor) const { return Graph().parameters[tensor].base; }
  absl::Status FinishLoad();
  // Calls `emit` with each new token as it is made, until it returns false or all are made.
  // INVALID_ARGUMENT for an empty prompt, an id outside the vocabulary or an option out of range.
  // FAILED_PRECONDITION before FinishLoad.
  //
  // What the model sees, with a window of W tokens: at first the prompt, or its last W tokens;
  // then each new token besides. When the window is full, it becomes the newest W / 2 tokens (at
  // least one), the new one included, and is run through the model again from position 0: positions
  // do not slide.
  absl::Status Generate(absl::Span<const int32_t> prompt, const GenerateOptions& options,
                        const EmitToken& emit);
  // Calls `emit` with each token of a text behind the first, in order, until it returns false: how
  // likely the model holds it to be after those before it. `best`: how many of the likeliest to
  // tell. INVALID_ARGUMENT: there is no text, it is longer than the window, or as Generate.
  // FAILED_PRECONDITION: GeneratorOptions has no scores, or it is before FinishLoad.
  absl::Status Score(absl::Span<const int32_t> text, int64_t best, const EmitToken& emit);
  const plan::StepPlan& plan() const { return engine_->plan(); }

 private:
  Generator() = default;
  absl::Status Open(const v1::ModelSpec& model, const GeneratorOptions& options);
  // All parameters are the prompt's.
  const graph::Graph& Graph() const { return plan().prompt.graph; }
  char* ParameterAt(graph::ValueId id) const {
    const plan::Place& place = plan().prompt.places[id];
    return engine_->host_arena() + plan().buffers[place.buffer].offset + place.offset;
  }
  absl::Status CheckText(absl::Span<const int32_t> text) const;
  absl::Status CheckRequest(absl::Span<const int32_t> prompt, const GenerateOptions& options) const;
  int64_t Kept(absl::Span<const int32_t> text) const;
  int64_t KeptWithScores(absl::Span<const int32_t> text, int64_t best) const;
  int64_t WholeChunks(int64_t tokens) const;
  void Begin(absl::Span<const int32_t> text, int64_t kept);
  absl::StatusOr<const float*> RunSome(const plan::Program& program,
                                       absl::Span<const int32_t>* tokens);
  absl::Status Run(absl::Span<const int32_t> tokens);
  absl::Status RunScores(const EmitToken& emit);
  absl::Span<const int32_t> Add(int32_t token);

  std::unique_ptr<GenerationEngine> engine_;
  std::vector<v1::TensorInfo> tensors_;
  std::vector<float> masters_;  // until FinishLoad
  std::vector<bool> nf4_;       // by parameter: trained beside what it is in 4 bits
  size_t window_size_ = 0;
  int64_t vocabulary_ = 0;
  bool loaded_ = false;

  // ---- of one text ----
  std::vector<int32_t> window_;
  int64_t cached_ = 0;             // tokens of the window that the caches hold
  int64_t chunks_ = 0;             // of those, from the first on: that were run in whole chunks
  const float* logits_ = nullptr;  // after the last of those

  // ---- of the text that was scored last ----
  std::vector<int32_t> scored_text_;
  int64_t scored_best_ = 0;
  std::vector<TokenScore> scores_;  // of its tokens behind the first
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GENERATION_GENERATOR_H_
