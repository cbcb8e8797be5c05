// The ops of a graph once more for each of several micro-batches of one program.
//
//   MicroBatchCopies copies(graph);   // takes its ops
//   for (int micro_batch : {0, 1}) copies.AddInputs(micro_batch);
//   for (const graph::Op& op : copies.ops()) copies.Add(op, kNoPass, /*micro_batch=*/1);
//
// A micro-batch's values are its own, but for parameters, their gradients and sums of the step, to
// which all micro-batches add. What is made of no value, such as a table of angles, is made once,
// in front of all.
#ifndef MILEPOST_ENGINE_PLAN_PASSES_MICRO_BATCH_COPIES_H_
#define MILEPOST_ENGINE_PLAN_PASSES_MICRO_BATCH_COPIES_H_

#include <vector>

#include "engine/graph/graph.h"

namespace milepost::plan {

class MicroBatchCopies {
 public:
  // Leaves in the graph the ops that are made once. The graph outlives it.
  explicit MicroBatchCopies(graph::Graph& graph);

  // Of one micro-batch, in the graph's order; without those that are made once.
  const std::vector<graph::Op>& ops() const { return ops_; }

  // Also those that no op of the graph reads: every rank is given all.
  void AddInputs(int micro_batch);

  // Appends the op to the graph. `pass`: Attributes::pass. The first micro-batch has the values
  // that are there, and is the one that begins a sum.
  void Add(const graph::Op& op, int pass, int micro_batch);

 private:
  void FindShared();
  graph::ValueId Own(graph::ValueId id, int micro_batch);

  graph::Graph& graph_;
  std::vector<graph::Op> ops_;
  std::vector<graph::ValueId> inputs_;            // of one micro-batch
  std::vector<bool> shared_;                      // by value
  std::vector<std::vector<graph::ValueId>> own_;  // by micro-batch and value
};

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PASSES_MICRO_BATCH_COPIES_H_
