// Initial values that a device makes itself: which elements of which buffer have which numbers.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_DRAWN_VALUES_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_DRAWN_VALUES_H_

#include <cstdint>

#include "engine/dtype/dtype.h"
#include "engine/graph/graph.h"
#include "engine/plan/step_plan.h"

namespace milepost::runtime {

// Elements [begin, begin + count) of a buffer of f32, bf16 or f16: `first` and what follows it, of
// (seed, stream), as kernels::NormalInit and UniformInit have them, rounded to the nearest.
struct DrawnValues {
  plan::BufferId buffer = plan::kNoBuffer;
  DType dtype = DType::kF32;
  int64_t begin = 0;
  int64_t count = 0;
  graph::Initializer initializer = graph::Initializer::kZeros;  // no kZeros
  float scale = 0;  // kNormal: the standard deviation; kUniform: the bound; kOnes: not read
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t first = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_DRAWN_VALUES_H_
