// What a Generator drives: the programs of a generation plan and the memory that they work on, on
// the CPU or on a device.
//
//   MP_ASSIGN_OR_RETURN(auto engine, CpuGenerationEngine(model, options));
//   ... parameters into engine->host_arena(); MP_RETURN_IF_ERROR(engine->Upload());
//   MP_ASSIGN_OR_RETURN(const float* logits, engine->Run(engine->plan().prompt, tokens, 0));
//
// One thread at a time, which has called UseThread since another one did. After an error only
// destruction is allowed.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_GENERATION_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_GENERATION_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::runtime {

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

  // Runs tokens, at most as many as the program has rows, which begin at position `first`, through
  // one of the plan's programs. Returns the logits behind the last of them, or, of `score`, behind
  // each, [tokens, vocabulary]. They are valid until the next call. Blocks.
  virtual absl::StatusOr<const float*> Run(const plan::Program& program,
                                           absl::Span<const int32_t> tokens, int64_t first) = 0;
};

// Plans and allocates. `options`: of PlanGeneration; those of a device are the factory's. Errors
// are PlanGeneration's, RESOURCE_EXHAUSTED with the figures.
using GenerationEngineFactory = std::function<absl::StatusOr<std::unique_ptr<GenerationEngine>>(
    const v1::ModelSpec& model, const plan::PlanOptions& options)>;

// Where a generation program has what the host gives it and takes from it: bytes from the arena's
// begin.
struct GenerationPlaces {
  static GenerationPlaces Find(const plan::StepPlan& plan, const plan::Program& program);
  // Tokens and positions, in memory laid out as the arena; rows behind the last token repeat it.
  void Fill(absl::Span<const int32_t> tokens, int64_t first, char* arena) const;

  int64_t rows = 0;
  int64_t tokens = 0;     // i32 [rows]
  int64_t positions = 0;  // the same
  int64_t logits = 0;     // f32 [logit_rows, vocabulary]
  int64_t logit_rows = 0;
  int64_t logit_row_bytes = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_GENERATION_ENGINE_H_
