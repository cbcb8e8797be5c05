// What changes from one micro-step to the next, as the kernels read it: in device memory, so that a
// captured launch can be replayed with other values. The host fills a copy of all of it, which
// travels to the device on the compute stream in front of the micro-step (cuda_backend.h).
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_STEP_CONTROL_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_STEP_CONTROL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/flat_update.h"
#include "engine/kernels/cuda/libraries/attention_graph.h"
#include "engine/kernels/cuda/random.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/step_context.h"

namespace milepost::runtime {

struct StepControl {
  kernels::cuda::StepPosition position;  // of the first micro-batch that the program has
  std::array<float, graph::kMaxLosses> gradient_factors = {};
  double stop = 0;                     // 1: this rank asks to stop
  int64_t row = 0;                     // generation: the last row that counts
  kernels::cuda::ClipArgs clip;        // from which the device decides about the update
  kernels::cuda::StepFactors factors;  // of every optimizer
};

// Where the pieces of the control memory lie: a StepControl, then every group's SegmentFactors, one
// for each segment of this rank's shard (SegmentsOf, group_ops.h), then the positions of the
// micro-batches after the first, where a program has several, then the tables of packed documents
// (documents.h), for each micro-batch.
struct ControlLayout {
  std::vector<int64_t> factors;   // by group: bytes from the begin; frozen groups have none
  std::vector<int64_t> segments;  // by group: how many
  int64_t micro_batches = 1;      // that a run of the training program takes
  int64_t positions = 0;          // bytes from the begin
  // What training's attention is; none: without documents.
  std::optional<kernels::cuda::AttentionGraph> documents;
  int64_t tables = 0;       // bytes from the begin
  int64_t table_bytes = 0;  // of one micro-batch
  int64_t bytes = 0;

  // Of a micro-batch: where its StepPosition and its tables begin.
  int64_t PositionOf(int64_t micro_batch) const {
    if (micro_batch == 0) return offsetof(StepControl, position);
    return positions + (micro_batch - 1) * static_cast<int64_t>(sizeof(StepControl::position));
  }
  int64_t TablesOf(int64_t micro_batch) const { return tables + micro_batch * table_bytes; }
};
ControlLayout ControlLayoutOf(const plan::StepPlan& plan, int rank);

// Fills `memory`, of layout.bytes, for a micro-step with this context. clip_factor and skip_update
// are not read: `clip` is what the device decides them from. The documents' tables are not written.
void WriteControl(const plan::StepPlan& plan, int rank, const ControlLayout& layout,
                  const StepContext& context, const kernels::cuda::ClipArgs& clip, char* memory);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_STEP_CONTROL_H_
