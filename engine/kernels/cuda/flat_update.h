// Fused updates over a flat shard: gradient, master, states -> master, states and the rounded
// parameter (which may itself be the master), in one pass and one launch for all of the shard's
// tensors. Bit for bit what the CPU's (engine/optim) make, random roundings included.
//
//   FlatUpdate<bf16> update{.chunks = ..., .factors = ..., .step = ..., .control = ...,
//                           .p = master, .states = {m, v}, .g = gradient, .copy = parameter};
//   MP_RETURN_IF_ERROR(AdamW(update, stream));
//
// Everything a step changes lies in device memory and is read when the kernel runs, so that a
// captured launch can be replayed: `factors` (one per segment: FactorsOf*), `step`, `control`.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_FLAT_UPDATE_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_FLAT_UPDATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/random.h"
#include "engine/kernels/cuda/stream.h"
#include "engine/ops/contract/optimizer_states.h"

namespace milepost::kernels::cuda {

// What a step's update is for one segment.
struct SegmentFactors {
  float rate = 0;    // learning rate; AdamW: over the bias correction; Muon: times its factor
  float shrink = 1;  // decoupled decay: p is multiplied by it
  float decay = 0;   // SGD, LAMB: added to the gradient or the update, times p
  int32_t norms =
      -1;  // LAMB: its tensor's pair of sums, by which the step is scaled; -1: it is not
  // Of the tensor's elements: their index in it is their place in the flat buffer plus this. Random
  // roundings are keyed by it and by the keys.
  int64_t element_offset = 0;
  RandomKey round_master = {};
  RandomKey round_states[kMaxStates] = {};
};

// What it is for all.
struct StepFactors {
  float beta1 = 0;
  float beta2 = 0;
  float beta3 = 0;
  float root1 = 1;   // 1 / (1 - beta1^t)
  float root2 = 1;   // 1 / sqrt(1 - beta2^t)
  float root3 = 1;   // 1 / sqrt(1 - beta3^t)
  float second = 0;  // of two summands of a step: beta2 (1 - beta1^t) / (1 - beta2^t)
  float past = 1;    // 0: this is the first update
  float epsilon = 0;
  float momentum = 0;
  float average_weight = 0;  // of the parameters in their average
  uint64_t step = 0;         // of random roundings
};

// T: the parameter's type. S: that of the optimizer's states, P: the master's, each float or
// (rounded at random) bf16. G: the gradient's. All device memory and 16-byte aligned; element 0 is
// the shard's first. Chunks begin at multiples of 4 elements.
template <typename T, typename S = float, typename P = float, typename G = float>
struct FlatUpdate {
  const FlatChunk* chunks = nullptr;
  int64_t chunk_count = 0;
  const SegmentFactors* factors = nullptr;
  const StepFactors* step = nullptr;
  const UpdateControl* control = nullptr;  // skip: nothing is written
  P* p = nullptr;
  S* states[kMaxStates] = {};  // as many as the optimizer has
  const G* g = nullptr;
  T* copy = nullptr;  // nullable: receives p as T
};

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_FLAT_UPDATE_H_
