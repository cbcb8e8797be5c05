// How much scratch the kernels of an op need: told by its room, before there is a device.
//
//   int64_t QkNormWorkspace(const WorkspaceContext& c) {
//     return kernels::QkNormBackwardWorkspaceBytes(c.Shape(0)[0], ...);
//   }
//
// Pure. The formulas are those that the kernels use themselves (engine/ops/<room>/*_contract.h);
// what libraries take is empirical, and a backend that finds one to want more plans again.
#ifndef MILEPOST_ENGINE_OPS_WORKSPACE_H_
#define MILEPOST_ENGINE_OPS_WORKSPACE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "engine/dtype/dtype.h"
#include "engine/graph/graph.h"

namespace milepost::ops {

// The flat group of an op that works on one.
struct GroupSizes {
  int64_t padded_elements = 0;
  int64_t shard_elements = 0;
  int64_t slice_elements = 0;         // of the gradient, whose norm a rank takes: padded / ranks
  bool bf16_sums = false;             // sums over ranks are sent in bf16
  DType product_dtype = DType::kF32;  // Muon: of the factors of its products
  std::vector<std::array<int64_t, 2>> matrices;  // Muon: rows and columns of each parameter
  int64_t tensors = 0;
};

struct WorkspaceContext {
  const graph::Graph& graph;
  const graph::Op& op;
  const GroupSizes& group;
  int threads = 1;  // of a CPU
  // A GPU's attention (attention/library_attention.h).
  bool exact = true;
  int64_t attention_call_bytes = 0;
  // What a library was found to want, at least.
  int64_t min_convolution_bytes = 0;
  int64_t min_attention_bytes = 0;

  const graph::Value& Input(size_t i) const { return graph.values[op.inputs[i]]; }
  const graph::Shape& Shape(size_t input) const { return Input(input).shape; }
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_WORKSPACE_H_
