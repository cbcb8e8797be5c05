// What a training session drives: the plan's programs and the memory that they work on, on the CPU
// or on a device. The session decides what is trained on and what is reported; an engine only runs.
//
//   MP_ASSIGN_OR_RETURN(auto engine, CpuStepEngine({spec, threads, data, communicator}));
//   ... parameters into engine->mirror(); MP_RETURN_IF_ERROR(engine->Upload());
//   for (each micro-step) {
//     MP_ASSIGN_OR_RETURN(const HostInputs* inputs, engine->NextInputs());
//     inputs->Copy(batch.fields);
//     MP_RETURN_IF_ERROR(engine->MicroStep(context));
//   }
//   MP_ASSIGN_OR_RETURN(absl::Span<const double> scalars, engine->FinishStep(context));
//
// One thread at a time, which has called UseThread since another one did. Errors are those of ops
// and of peers (comm::IsPeerLost); after one only Download is allowed, which then brings
// the state as it was before the step unless may_have_updated, ExchangeAverages(false), and
// destruction.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_STEP_ENGINE_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_STEP_ENGINE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/data/training/training_data.h"
#include "engine/optim/optimizer.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/drawn_values.h"
#include "engine/runtime/executor/host_inputs.h"
#include "engine/runtime/executor/op_time.h"
#include "engine/runtime/executor/stage_transfers.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::comm {
class Communicator;
}

namespace milepost::runtime {

class StateDisk;

// Islands meet once in many steps, each at its own pace, over a network that may be slow. One that
// is lost is noticed without this.
inline constexpr absl::Duration kIslandPatience = absl::Hours(12);

class StepEngine {
 public:
  virtual ~StepEngine() = default;

  // Makes the calling thread the one that drives: its OpenMP threads, its device. Cheap.
  virtual void UseThread() = 0;

  virtual const plan::StepPlan& plan() const = 0;
  // What it has chosen by trying, and its bits depend on, so that another one makes the same of a
  // job: its StepEngineArguments::choices. Empty: nothing.
  virtual std::string choices() const { return ""; }
  // Of the arenas, as allocated: plan().arena_bytes and plan().host_arena_bytes.
  virtual int64_t allocated_bytes() const = 0;
  virtual int64_t allocated_host_bytes() const = 0;
  // Of the device's memory that lies beside the arena, as allocated: what changes from step to step
  // and the kernels' tables; at most plan::CudaBesideBytes. 0 on the CPU.
  virtual int64_t beside_bytes() const { return 0; }

  // ---- state ----
  // Host memory laid out as the arena. Of the persistent buffers (parameters, optimizer states,
  // statistics) it holds what Download has last copied, and what Upload copies to where steps find
  // it, and on a device takes away. On the CPU it is the arena, and both do nothing. Both block.
  // Download leaves out what adapters adapt (plan::FlatGroup::base), and so does Upload unless
  // `base`.
  virtual char* mirror() = 0;
  virtual absl::Status Upload(bool base) = 0;
  // Instead of Upload, on a device that has just been opened: of masters, parameters and statistics
  // the device makes what drawn(buffer) says. Where that is nothing, initial(buffer, begin, bytes,
  // at) writes bytes to host memory `at`, as they are sent. All else stays zeros. Not where states
  // are offloaded. Blocks.
  using InitialDrawn =
      absl::FunctionRef<std::optional<std::vector<DrawnValues>>(plan::BufferId buffer)>;
  using InitialBytes =
      absl::FunctionRef<void(plan::BufferId buffer, int64_t begin, int64_t bytes, char* at)>;
  virtual absl::Status UploadInitial(InitialDrawn drawn, InitialBytes initial) {
    (void)drawn, (void)initial;
    return absl::UnimplementedError("this engine's memory is the host's");
  }
  virtual absl::Status Download() = 0;
  // Sends the mirror's errors of gradients that travel as factors to the device. The mirror keeps
  // them. Blocks.
  virtual absl::Status UploadErrors() { return absl::OkStatus(); }
  // The plan's arena in host memory; null where nothing is offloaded. Steps use it where it is.
  virtual char* host_arena() = 0;
  // Between steps, where the optimizer's state is on disk; null: it is in the arenas.
  virtual StateDisk* disk() { return nullptr; }

  // More packed documents in a micro-batch than this are told as StepContext::many_documents, of
  // every rank's where one rank's has them: ranks enqueue the same calls.
  virtual int64_t most_documents() const { return std::numeric_limits<int64_t>::max(); }

  // More rows with a target of this loss head in a micro-batch than this are told as
  // StepContext::many_targets, likewise.
  virtual int64_t most_targets(size_t head) const {
    (void)head;
    return std::numeric_limits<int64_t>::max();
  }

  // ---- training ----
  // Where the next micro-batch goes; valid until the MicroStep that takes it.
  virtual absl::StatusOr<const HostInputs*> NextInputs() = 0;
  // May return before it has run. Everything in `context` counts but clip_factor and skip_update.
  virtual absl::Status MicroStep(const StepContext& context) = 0;
  // After the last micro-step, with its context: reduces, decides about the update by the context's
  // clip_norm (a norm that is not finite: none) and makes it. Returns the step's f64 scalars
  // (plan.scalars); valid until the next call.
  virtual absl::StatusOr<absl::Span<const double>> FinishStep(const StepContext& context) = 0;

  // After FinishStep or OuterStep has failed: whether some of the state may be the next step's
  // already.
  virtual bool may_have_updated() const = 0;

  // ---- averages of parameters ----
  // plan.exchange: `take` puts the averages where the parameters of this rank's shards are. Then
  // false puts the parameters back, to the bit; that also after another call has failed. May return
  // before it has run.
  virtual absl::Status ExchangeAverages(bool take) = 0;
  // plan.gather, after each of them. Collective where it has ops. It has run when this returns.
  virtual absl::Status GatherExchanged() = 0;

  // ---- islands that train apart ----
  // plan.anchor: what the next outer step measures from is the parameters as they are. May return
  // before it has run.
  virtual absl::Status KeepAnchors() = 0;
  // plan.outer. Collective, of all islands. A device waits for it up to kIslandPatience, and its
  // communicators as long as they say. It has run when this returns.
  virtual absl::Status OuterStep() = 0;

  // ---- evaluation ----
  // The losses' sums become 0.
  virtual absl::Status BeginEvaluation() = 0;
  virtual absl::StatusOr<const HostInputs*> NextEvaluationInputs() = 0;
  // Of the context first_micro_step, last_micro_step and many_documents count.
  virtual absl::Status EvaluateBatch(const StepContext& context) = 0;
  // The step's scalars, of which the losses' sums are this rank's.
  virtual absl::StatusOr<absl::Span<double>> FinishEvaluation() = 0;

  // Since creation. A device times ops in some of the runs only, and `runs` are those.
  virtual StreamTimes stream_times() const = 0;
  virtual std::vector<OpKindTime> Times() const = 0;
};

// Of the step's gradients, without the loss scale.
inline optim::ClipResult ClipOf(absl::Span<const double> scalars, const StepContext& context) {
  return optim::ClipByNorm(scalars[plan::kNormScalar] / (context.loss_scale * context.loss_scale),
                           context.clip_norm);
}

struct StepEngineArguments {
  const v1::JobSpec& spec;  // normalised
  int threads = 1;          // OpenMP threads of this rank
  const data::TrainingData& data;
  comm::Communicator* communicator = nullptr;  // outlives the engine
  // Another one among the same ranks, for a device's calls, which come at other times than the
  // session's; the same. Null where world is 1, and on the CPU.
  comm::Communicator* device_communicator = nullptr;
  StageTransfers transfers = {};
  std::string state_folder = {};  // on a local disk, for state that is to lie there
  // StepEngine::choices of an earlier one of the job; rank 0's counts for all. What is of another
  // device or library is not used.
  std::string choices = {};
};

// Plans and allocates. INVALID_ARGUMENT, RESOURCE_EXHAUSTED with the figures.
using StepEngineFactory =
    std::function<absl::StatusOr<std::unique_ptr<StepEngine>>(const StepEngineArguments&)>;

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_STEP_ENGINE_H_
