// 8-bit matrix products: of the layers of a model's blocks, all but the last, which has the heads.
// Parameters, activations and gradients stay what they are; what a product reads is rounded to 8
// bits just before (ops/fp8/fp8_contract.h): activations and weights to E4M3, gradients of
// outputs to E5M2.
//
//   MarkFp8(graph);                      // numbers the layers, before
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   AddRecompute(graph, by_block);
//   AddFp8(graph);                       // puts kQuantize ops in front of the layers' products
//
// A layer takes part where its rows, its width and the width of each of its weights are multiples
// of kFp8Multiple, which cuBLASLt wants; the others multiply 16 bits as before.
//
// Both operands of an 8-bit product have the index that is summed over innermost, so that every
// tensor is needed as it is for one product and turned for another. An input's turned codes are
// made with the forward's and kept for the backward, at half the bytes, unless the backward reads
// the input itself anyhow: then it is rounded again there. A gradient is rounded once for both its
// products; a weight is rounded in the forward and again in the backward, of every micro-step.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_FP8_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_FP8_PASS_H_

#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::plan {

inline constexpr int64_t kFp8Multiple = 16;

int MarkFp8(graph::Graph& graph);  // how many
void AddFp8(graph::Graph& graph);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_FP8_PASS_H_
