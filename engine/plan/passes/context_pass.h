// Context parallelism by heads: lets each rank have some of the tokens, and for attention all
// tokens of some heads, in a graph without a backward (Jacobs et al., "DeepSpeed Ulysses", 2023).
// Where there are more ranks than heads can be divided among, as few neighbours as possible have
// the same heads, and each makes attention of a part of their queries over all keys.
//
//   MP_RETURN_IF_ERROR(DivideLayers(graph, tensor));           // tensor_pass.h, before it
//   MP_RETURN_IF_ERROR(DivideSequences(graph, /*ranks=*/2));   // of half as long sequences
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//
// In front of the ops by heads (norms of heads, rotary positions, attention) comes kTokensToHeads,
// behind attention kHeadsToTokens. Between the two, values have all rows of whole sequences and a
// rank's heads; so have inputs and tables that are read there. Since each head sees whole
// sequences, positions, windows and documents are as on one rank. All else is done by each rank
// with its own tokens. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_CONTEXT_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_CONTEXT_PASS_H_

#include "absl/status/status.h"
#include "engine/graph/graph.h"

namespace milepost::plan {

// `graph` was built for the tokens that one rank has. INVALID_ARGUMENT, with the op's name: too few
// learned positions, or no attention. The graph is then in an undefined state. 1 changes nothing.
absl::Status DivideSequences(graph::Graph& graph, int ranks);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_CONTEXT_PASS_H_
