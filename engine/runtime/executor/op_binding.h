// Internal to backends: a planned op's values, shapes and addresses, as a binder needs them.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_OP_BINDING_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_OP_BINDING_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "engine/dtype/half.h"
#include "engine/plan/step_plan.h"
#include "engine/plan/workspace.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::runtime {

class StateDisk;

// How many samples of the step lie between this rank's first micro-batch in a run of a program and
// another one of the run.
inline int64_t SamplesBefore(const plan::StepPlan& plan, int64_t micro_batch) {
  return micro_batch * plan.options.micro_batch * plan.options.SampleRanks();
}

// Lives only while binding.
struct OpBinding {
  const plan::StepPlan& plan;
  const plan::Program& program;
  const plan::PlannedOp& planned;
  char* arena;                 // where the plan's buffers lie
  int rank;                    // among the data ranks
  char* host_arena = nullptr;  // where those in host memory lie; null where nothing is offloaded
  StateDisk* disk = nullptr;   // null where no state is on disk
  int tensor_rank = 0;
  int island = 0;

  int RankOfJob() const { return PeerOfStage(plan.options.stage); }
  // Of a sequence's tokens: how many lie before this rank's, where context ranks divide them.
  int64_t TokensBefore() const { return rank % plan.options.context * plan.options.OwnSequence(); }
  // The elements of all samples' rows that the op's are, where it has some of the rows: those of
  // some tokens of each sample, or of some samples, or of some tokens of one.
  struct OwnElements {
    int64_t first = 0;
    int64_t run = 0;  // how many lie side by side; 0: all
    int64_t gap = 0;  // between two runs, which are of samples one after the other
  };
  OwnElements ElementsOfRows(int64_t rows, int64_t width) const {
    const int64_t tokens = attributes().sequence, all = tokens * plan.options.context;
    const int64_t before = attributes().divides_rows ? tensor_rank * rows : 0;
    const int64_t at = before / tokens * all + TokensBefore() + before % tokens;
    if (plan.options.context == 1) return {.first = at * width};
    const int64_t run = std::min(rows, tokens);  // rows_pass.h: one divides the other
    return {.first = at * width, .run = run * width, .gap = (all - run) * width};
  }
  // The rank of the job that has this one's island, data and tensor ranks.
  int PeerOfStage(int stage) const {
    const int data_rank = island * plan.options.world + rank;
    return (data_rank * plan.options.pipeline + stage) * plan.options.tensor + tensor_rank;
  }

  const graph::Attributes& attributes() const { return planned.op.attributes; }
  int64_t SamplesBefore() const { return runtime::SamplesBefore(plan, attributes().micro_batch); }
  const graph::Value& ValueOf(graph::ValueId id) const { return program.graph.values[id]; }
  const graph::Shape& InputShape(int i) const { return ValueOf(planned.op.inputs[i]).shape; }
  graph::ValueId OutputId(int i) const {
    return i < static_cast<int>(planned.op.outputs.size()) ? planned.op.outputs[i].value
                                                           : graph::kNoValue;
  }
  const graph::Shape& OutputShape(int i) const { return ValueOf(OutputId(i)).shape; }

  // Addresses; null for a buffer, input or output that is not there.
  char* BufferAt(plan::BufferId id) const {
    if (id == plan::kNoBuffer) return nullptr;
    const plan::Buffer& buffer = plan.buffers[id];
    return (buffer.memory == plan::Memory::kHost ? host_arena : arena) + buffer.offset;
  }
  char* ValueAt(graph::ValueId id) const {
    if (id == graph::kNoValue) return nullptr;
    const plan::Place& place = program.places[id];
    return BufferAt(place.buffer) + place.offset;
  }
  template <typename T>
  const T* Input(int i) const {
    const auto& inputs = planned.op.inputs;
    return i < static_cast<int>(inputs.size()) ? reinterpret_cast<const T*>(ValueAt(inputs[i]))
                                               : nullptr;
  }
  template <typename T>
  T* Output(int i) const {
    return reinterpret_cast<T*>(ValueAt(OutputId(i)));
  }
  // Of the workspace: what lies in front of the products' scratch.
  int64_t BytesBeforeScratch() const {
    return plan::BytesBeforeScratch(program.graph, plan.groups, planned.op, plan.options);
  }
  char* Workspace() const { return BufferAt(planned.workspace); }

  // Whether output i adds to what is there; constant, or by the micro-step.
  struct Accumulation {
    graph::WriteMode mode = graph::WriteMode::kAssign;
    bool At(const StepContext& context) const {
      return mode == graph::WriteMode::kAccumulate ||
             (mode == graph::WriteMode::kAccumulateInStep && !context.first_micro_step);
    }
  };
  Accumulation OutputAccumulation(int i) const { return {planned.op.outputs[i].mode}; }

  // INTERNAL when the plan gave the op less than its kernels need.
  absl::Status RequireWorkspace(int64_t bytes) const {
    if (bytes <= planned.workspace_bytes) return absl::OkStatus();
    return absl::InternalError(absl::StrFormat("needs %d bytes of workspace, the plan gives it %d",
                                               bytes, planned.workspace_bytes));
  }
};

inline absl::Status NoKernel(const OpBinding& b) {
  return absl::UnimplementedError(absl::StrFormat("%s: there is no kernel for %s",
                                                  graph::Name(b.planned.op.kind),
                                                  Name(b.plan.options.compute_dtype)));
}

}  // namespace milepost::runtime

// Calls binder<T>(b) with the plan's compute dtype.
#define MP_BIND_BY_DTYPE(binder, b)                                                          \
  ((b).plan.options.compute_dtype == ::milepost::DType::kBf16  ? binder<::milepost::bf16>(b) \
   : (b).plan.options.compute_dtype == ::milepost::DType::kF16 ? binder<::milepost::f16>(b)  \
                                                               : binder<float>(b))

// The same as a binder: {.bind = MP_BY_DTYPE(GeluOf)}.
#define MP_BY_DTYPE(binder) [](const auto& b) { return MP_BIND_BY_DTYPE(binder, b); }

// The same of ops that have no kernels on f16: images', and those of tensor ranks. A spec that asks
// for them is refused.
#define MP_BIND_F32_OR_BF16(binder, b)                                                       \
  ((b).plan.options.compute_dtype == ::milepost::DType::kBf16  ? binder<::milepost::bf16>(b) \
   : (b).plan.options.compute_dtype == ::milepost::DType::kF32 ? binder<float>(b)            \
                                                               : ::milepost::runtime::NoKernel(b))

// The same as a binder: {.bind = MP_F32_OR_BF16(MaxPoolOf)}.
#define MP_F32_OR_BF16(binder) [](const auto& b) { return MP_BIND_F32_OR_BF16(binder, b); }

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_OP_BINDING_H_
