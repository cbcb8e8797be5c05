// What a Generator drives: the programs of a generation plan and the memory that they work on, on
// the CPU or on a device.
//
//   MP_ASSIGN_OR_RETURN(auto engine, CpuGenerationEngine(model, options));
//   ... parameters into engine->host_arena(); MP_RETURN_IF_ERROR(engine->Upload());
//   MP_ASSIGN_OR_RETURN(const float* logits, engine->Run(engine->plan().prompt, {tokens, 0}));
//   MP_ASSIGN_OR_RETURN(logits, engine->RunNext({{.token = 17, .position = 5, .text = 0}}));
//
// One thread at a time, which has called UseThread since another one did. After an error only
// destruction is allowed.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_GENERATION_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_GENERATION_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

// Tokens of one of the plan's texts, the first at `position`.
struct TextPiece {
  absl::Span<const int32_t> tokens;
  int64_t position = 0;
  int32_t text = 0;
};

// The newest token of one of the plan's texts.
struct TextToken {
  int32_t token = 0;
  int64_t position = 0;
  int32_t text = 0;
};

class GenerationEngine {
 public:
  virtual ~GenerationEngine() = default;
  // Makes the calling thread the one that drives. Cheap.
  virtual void UseThread() = 0;
  virtual const plan::StepPlan& plan() const = 0;

  // Host memory laid out as the arena. Parameters go here, whole and in their own type; Upload
  // takes them to where programs find them, and blocks. Once, before the first Run.
  virtual char* host_arena() = 0;
  virtual absl::Status Upload() = 0;

  // Runs tokens, at most as many as the program has rows, through the plan's `prompt` or `score`.
  // Returns the logits behind the last of them, or, of `score`, behind each, [tokens, vocabulary].
  // They are valid until the next call. Blocks.
  virtual absl::StatusOr<const float*> Run(const plan::Program& program,
                                           const TextPiece& piece) = 0;
  // Runs one token of each of some of the plan's texts, at least one, through `next`. Returns the
  // logits behind each, [tokens, vocabulary]. Valid and blocks as above.
  virtual absl::StatusOr<const float*> RunNext(absl::Span<const TextToken> tokens) = 0;
};

// Plans and allocates. `options`: of PlanGeneration; those of a device are the factory's. Errors
// are PlanGeneration's, RESOURCE_EXHAUSTED with the figures.
using GenerationEngineFactory = std::function<absl::StatusOr<std::unique_ptr<GenerationEngine>>(
    const v1::ModelSpec& model, const plan::PlanOptions& options)>;

// What takes less memory, for the errors of a factory.
inline constexpr char kGenerationAdvice[] =
    "keys and values take a part of it: fewer tokens of a text (serve: --context, generate: "
    "--tokens) or fewer texts side by side (--parallel) take less";

// Where a generation program has what the host gives it and takes from it: bytes from the arena's
// begin.
struct GenerationPlaces {
  static GenerationPlaces Find(const plan::StepPlan& plan, const plan::Program& program);
  // In memory laid out as the arena. Rows behind the last token repeat it, of texts as one of none.
  void Fill(const TextPiece& piece, char* arena) const;
  void Fill(absl::Span<const TextToken> tokens, char* arena) const;
  // Where the inputs are.
  std::vector<int64_t> Inputs() const;

  int64_t rows = 0;
  int64_t tokens = 0;     // i32 [rows]
  int64_t positions = 0;  // the same
  int64_t texts = -1;     // the same; -1: the plan is of one text
  int64_t logits = 0;     // f32 [logit_rows, vocabulary]
  int64_t logit_rows = 0;
  int64_t logit_row_bytes = 0;

 private:
  void Set(int64_t row, int32_t token, int64_t position, int32_t text, char* arena) const;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_GENERATION_ENGINE_H_
