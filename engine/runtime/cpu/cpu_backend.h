// The CPU: every op kind bound to the kernels of engine/kernels/cpu.
//
//   CpuBackend backend(threads);
//   MP_ASSIGN_OR_RETURN(const plan::StepPlan plan, PlanOnCpu(spec, options, backend));
//   ...                                                             // allocate the arena
//   backend.Attach(arena.data(), communicator);
//   MP_ASSIGN_OR_RETURN(auto executor, Executor::Create(plan, plan.train, &backend, ...));
//
// Products use OpenMP threads of the thread that runs the executor: it must have called
// UseThreads(). Not thread-safe.
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_BACKEND_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/backend.h"
#include "engine/runtime/executor/stage_transfers.h"

namespace milepost::comm {
class Communicator;
}
namespace milepost::kernels {
class ConvolutionCache;
class MatmulCache;
}  // namespace milepost::kernels
namespace milepost::v1 {
class JobSpec;
}

namespace milepost::runtime {

class StateDisk;

class CpuBackend : public Backend {
 public:
  // `threads`: of this rank, at least 1. Calls UseThreads().
  explicit CpuBackend(int threads);
  ~CpuBackend() override;

  // Sets the calling thread's OpenMP thread count. Cheap; no system call.
  void UseThreads() const;

  struct MatmulWorkspace {
    int64_t needed = 0;       // largest scratch that a matrix product of the plan needs here
    int64_t convolution = 0;  // workspace of the largest convolution whose planned one is too small
    bool missing = false;     // some op's planned workspace is too small
  };
  // Creates the primitives (a millisecond each). UNIMPLEMENTED where this CPU cannot do a product.
  absl::StatusOr<MatmulWorkspace> CheckMatmulWorkspace(const plan::StepPlan& plan);

  // `arena`: plan.arena_bytes, 64-byte aligned; `host_arena`: plan.host_arena_bytes, null where
  // nothing is offloaded; `disk`: null where no state is on disk. `communicator` may be null where
  // world is 1. All must outlive what is bound.
  void Attach(char* arena, comm::Communicator* communicator, char* host_arena = nullptr,
              StateDisk* disk = nullptr, const StageTransfers& transfers = {});

  absl::StatusOr<BoundOp> Bind(const plan::StepPlan& plan, const plan::Program& program,
                               const plan::PlannedOp& planned) override;

 private:
  const int threads_;
  std::unique_ptr<kernels::MatmulCache> matmuls_;
  std::unique_ptr<kernels::ConvolutionCache> convolutions_;
  char* arena_ = nullptr;
  char* host_arena_ = nullptr;
  StateDisk* disk_ = nullptr;
  comm::Communicator* communicator_ = nullptr;
  StageTransfers transfers_;
};

// The plan of a training job on this CPU, with the scratch that its products need here; `options`
// as OptionsFromSpec has them. Errors are the planner's and CheckMatmulWorkspace's.
absl::StatusOr<plan::StepPlan> PlanOnCpu(const v1::JobSpec& spec, plan::PlanOptions options,
                                         CpuBackend& backend);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_BACKEND_H_
