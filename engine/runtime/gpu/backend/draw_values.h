// Initial values made on the device (executor/drawn_values.h).
//
//   MP_RETURN_IF_ERROR(DrawValues(plan, drawn, arena, stream));
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DRAW_VALUES_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DRAW_VALUES_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/drawn_values.h"

namespace milepost::runtime {

// `arena` is the plan's, on the device. Asynchronous on `stream`; errors are those of the launches.
absl::Status DrawValues(const plan::StepPlan& plan, absl::Span<const DrawnValues> drawn,
                        char* arena, cudaStream_t stream);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_DRAW_VALUES_H_
