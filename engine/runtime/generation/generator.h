// Text generation from master weights, on the CPU or on a device: one text, or several side by
// side.
//
//   MP_ASSIGN_OR_RETURN(auto generator, Generator::Create(model, {.threads = 8, .texts = 4}));
//   for (const StateInterval& target : generator->LoadTargets()) ...   // fill
//   MP_RETURN_IF_ERROR(generator->FinishLoad());
//   MP_RETURN_IF_ERROR(generator->Generate(prompt, options, [](const TokenScore& made) {
//     ...
//     return true;  // go on
//   }));
//
// Side by side, texts begin and end as they come, between two steps:
//
//   MP_ASSIGN_OR_RETURN(const int32_t text, generator->Start(prompt, options));
//   while (generator->running() > 0) {
//     MP_RETURN_IF_ERROR(generator->Step([&](int32_t of, const TokenScore& made) { ... }));
//   }
//
// Keys and values of a text are kept, so that each token is run through the model once. A text
// that begins as one before it did uses those that were kept, in whole chunks of a prompt
// (plan::PromptChunk), as they were made then: its own would be the same to the bit. The same
// prompt, options and weights give the same tokens, with any number of threads as long as oneDNN's
// products of the prompt are the same; a GPU's are its own. On a CPU that is so, to the bit of the
// log-probabilities, whichever texts are made beside it and however many GeneratorOptions::texts
// says there may be. A GPU's products are a library's, which may round otherwise for other numbers.
// Not thread-safe.
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
#include "engine/runtime/generation/cached_text.h"
#include "engine/runtime/generation/generate_options.h"
#include "engine/runtime/generation/sampling.h"
#include "milepost/v1/checkpoint.pb.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

struct GeneratorOptions {
  v1::Precision precision = v1::PRECISION_FP32;  // of parameters, caches and activations
  int threads = 1;
  // Tokens of the window (below), at most the model's context; 0: as many as that. Keys and values
  // take memory for all of them: a text that is known to be shorter needs no more than its length.
  int64_t window = 0;
  bool scores = false;  // whether Score may be called: takes memory for its logits
  // That can be made side by side, at most plan::kMostTexts. Keys and values take memory for each.
  int64_t texts = 1;
  GenerationEngineFactory engine;  // what it runs on; none: the CPU
};

// Returns whether to go on.
using EmitToken = std::function<bool(const TokenScore&)>;
// Of one of several texts: what Start returned.
using EmitTextToken = std::function<bool(int32_t text, const TokenScore&)>;

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
  // FAILED_PRECONDITION before FinishLoad, or while other texts are being made.
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
  // FAILED_PRECONDITION: GeneratorOptions has no scores, or as Generate.
  absl::Status Score(absl::Span<const int32_t> text, int64_t best, const EmitToken& emit);

  // ---- several texts side by side ----
  // Begins a text, as Generate or Score has it, and returns which one it is, below
  // GeneratorOptions::texts. RESOURCE_EXHAUSTED: as many as there can be are being made. Otherwise
  // errors are Generate's and Score's.
  absl::StatusOr<int32_t> Start(absl::Span<const int32_t> prompt, const GenerateOptions& options);
  absl::StatusOr<int32_t> StartScore(absl::Span<const int32_t> text, int64_t best);
  // Runs one chunk of a text that has several tokens to run (its prompt, what is left when its
  // window is full, or what is scored), in turns; then one token of each of the others. Calls
  // `emit` with what came of it; where that returns false, the text ends. Blocks. After an error
  // only destruction is allowed.
  absl::Status Step(const EmitTextToken& emit);
  // Whether the text has not ended, which it does when all its tokens are made.
  bool Runs(int32_t text) const { return slots_[static_cast<size_t>(text)].task != Task::kNone; }
  int32_t running() const;
  // Ends a text, whatever is left of it.
  void End(int32_t text);
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
  enum class Task : uint8_t { kNone, kText, kScore };
  // What one text of the caches is used for.
  struct Slot {
    CachedText text;
    Task task = Task::kNone;
    int64_t ended = 0;  // number of the end of the last task
    // ---- of kText ----
    GenerateOptions options = {};
    std::optional<Sampler> sampler = std::nullopt;
    int64_t made = 0;
    // ---- of kScore ----
    int64_t told = 0;  // scores that were emitted

    // Tokens that the next step runs for it by themselves; otherwise it runs one with the others'.
    bool NeedsPiece() const {
      return task == Task::kScore || (task == Task::kText && text.Unseen().size() > 1);
    }
  };
  absl::Status CheckText(absl::Span<const int32_t> text) const;
  absl::Status CheckRequest(absl::Span<const int32_t> prompt, const GenerateOptions& options) const;
  absl::StatusOr<int32_t> FreeSlot(const std::function<int64_t(const CachedText&)>& kept) const;
  absl::Status CheckAlone() const;
  absl::Status RunAlone(int32_t text, const EmitToken& emit);
  absl::StatusOr<const float*> RunPiece(int32_t slot, const plan::Program& program,
                                        absl::Span<const int32_t> tokens);
  absl::Status RunNextPiece(const EmitTextToken& emit);
  absl::Status RunScores(int32_t slot, const EmitTextToken& emit);
  absl::Status RunTokens(const EmitTextToken& emit);
  TokenScore Choose(Slot& slot, const float* logits) const;
  void Take(int32_t slot, const TokenScore& made, const EmitTextToken& emit);

  std::unique_ptr<GenerationEngine> engine_;
  std::vector<v1::TensorInfo> tensors_;
  std::vector<float> masters_;  // until FinishLoad
  std::vector<bool> nf4_;       // by parameter: trained beside what it is in 4 bits
  size_t window_size_ = 0;
  int64_t vocabulary_ = 0;
  bool loaded_ = false;
  std::vector<Slot> slots_;
  size_t last_piece_ = 0;  // whose turn it was
  int64_t ends_ = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GENERATION_GENERATOR_H_
