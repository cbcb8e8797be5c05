// Expert parallelism: shares out each layer's experts among ranks, in a graph without a backward
// (Lepikhin et al., "GShard", 2020).
//
//   MP_RETURN_IF_ERROR(DivideExperts(graph, /*ranks=*/4, /*own=*/1));
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//
// Ranks have tokens of their own, and route these as one rank does. In front of an expert's first
// layer come kExpertSegments and kRowsToExperts, behind the last one kRowsFromExperts. Between the
// two, values have the rows that all ranks send to the rank's experts, with room for whatever is
// picked. Experts' parameters are marked (Parameter::of_experts); those of other ranks' experts are
// `elsewhere`. All else is as on data ranks. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_EXPERTS_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_EXPERTS_PASS_H_

#include "absl/status/status.h"
#include "engine/graph/graph.h"

namespace milepost::plan {

// Leaves the experts of rank `own`. INVALID_ARGUMENT, with the op's name: experts that `ranks` does
// not divide, too many rows, or no experts. The graph is then in an undefined state. 1 changes
// nothing.
absl::Status DivideExperts(graph::Graph& graph, int ranks, int own);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_EXPERTS_PASS_H_
