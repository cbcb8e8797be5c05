// Tensor parallelism: divides layers among tensor ranks, in a graph without a backward (Shoeybi et
// al., "Megatron-LM", 2019).
//
//   MP_RETURN_IF_ERROR(DivideLayers(graph, /*ranks=*/2));
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//
// A linear layer whose output goes, by heads or element by element, into other linear layers alone
// is divided with what is between them. Each rank has some columns of the first layer (whole heads
// of attention), its part of what is between, and the rows of the last layers that read it. Where
// attention has fewer heads of keys than there are ranks, neighbours have the same one
// (graph::TensorDivision::sharers), and each makes a part of its weights' gradient. The sum
// of what the ranks make of the last layers is the layer's output (kTensorReduce); the bias is
// added to the sum. In the backward the gradient of the first layer's input is such a sum too. Of
// experts each rank has such a part of every one; all ranks route all rows, alike. The vocabulary
// is divided likewise (vocabulary_pass.h). All else is the same on every tensor rank, as far as
// they do not divide its rows (rows_pass.h). Of what norms heads a rank makes a part of the
// gradient (graph::Parameter::partial).
//
// The values' shapes become those of a rank, and Parameter::division says which elements a rank
// has. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_TENSOR_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_TENSOR_PASS_H_

#include "absl/status/status.h"
#include "engine/graph/graph.h"

namespace milepost::plan {

// INVALID_ARGUMENT, with the op's name: heads or widths that `ranks` does not divide, or no layers
// that can be divided. The graph is then in an undefined state. 1 changes nothing.
absl::Status DivideLayers(graph::Graph& graph, int ranks);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_TENSOR_PASS_H_
