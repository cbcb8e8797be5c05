// Sequence parallelism: between the layers that tensor ranks divide, each has some of the rows
// (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022).
//
//   MP_RETURN_IF_ERROR(DivideLayers(graph, tensor));                       // tensor_pass.h, before
//   DivideRows(graph, tensor, {.sequence = 1024, .context = 1});
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));
//   JoinSumsAndRows(graph);
//
// What is made of a row alone is made by the rank that has it: norms, sums with the residual
// stream, dropout. Behind a divided layer a rank gets its own rows of the sum (kTensorScatter), and
// in front of the next one the rows of all are gathered (kTensorGather): together as many bytes as
// the whole sum takes. So the residual stream, what norms keep, and what pipeline stages hand on
// take 1/T of the bytes. Each rank makes a part of the gradients of norms and of those layers'
// biases (graph::Parameter::partial).
//
// Ops that read rows of others, as embeddings and heads do, have all rows as before. Pure.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_ROWS_PASS_H_
#define MILEPOST_ENGINE_PLAN_PASSES_ROWS_PASS_H_

#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::plan {

struct RowsOfSamples {
  int64_t sequence = 1;  // rows of each sample
  int context = 1;       // ranks that have other rows of the same samples
};

// A graph without a backward, behind the passes over layers and sequences. It stays as it is where
// `ranks` does not divide the rows, or where a context rank would get parts of several samples.
void DivideRows(graph::Graph& graph, int64_t ranks, const RowsOfSamples& rows);

// Of a graph with a backward: makes one op of a sum and of what takes some rows of it alone.
void JoinSumsAndRows(graph::Graph& graph);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_ROWS_PASS_H_
