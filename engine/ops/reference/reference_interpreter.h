// Executes a graph in fp64 with plain loops: what backends and autodiff are checked against. Slow
// and simple on purpose; for tests.
//
//   ReferenceInterpreter reference(graph);
//   reference.integers(graph.Input("tokens")) = tokens;
//   reference.values(graph.parameters[0].value) = weights;
//   reference.Run({.gradient_scale = 1.0 / valid_targets});       // or RunOp, one by one
//   double loss = reference.values(graph.losses[0].sums)[0];
//
// Holds every value of the graph as its own array, whatever the value's dtype, zero at first; the
// arrays keep their contents between runs. Write modes are honoured; may_overwrite is not used.
// Flat-group ops (kReduceGradients and later) and copies are refused by MP_CHECK. Not thread-safe;
// `graph` must outlive it.
#ifndef MILEPOST_ENGINE_OPS_REFERENCE_REFERENCE_INTERPRETER_H_
#define MILEPOST_ENGINE_OPS_REFERENCE_REFERENCE_INTERPRETER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/graph/graph.h"

namespace milepost::graph {

struct ReferenceContext {
  // The factor on loss gradients, besides the head's weight: 1 / (valid targets of the global
  // batch).
  double gradient_scale = 1;
  // The first micro-step of a step: kAccumulateInStep assigns.
  bool first_micro_step = true;
  // kLmHeadLogits: which position of each sequence; -1: the last. kCachedAttention: the last row
  // that counts.
  int64_t position = -1;
  // What dropout multiplies element row * C + column of the micro-batch by: 0 or 1 / (1 - p), the
  // same in forward and backward. Must be set when an op has dropout > 0.
  std::function<double(uint32_t dropout_tag, double p, int64_t element)> dropout;
};

class ReferenceInterpreter {
 public:
  explicit ReferenceInterpreter(const Graph& graph);

  std::vector<double>& values(ValueId id) { return values_[id]; }       // all but i32
  std::vector<int32_t>& integers(ValueId id) { return integers_[id]; }  // i32

  void Run(const ReferenceContext& context);
  void RunOp(const Op& op, const ReferenceContext& context);

 private:
  const Graph& graph_;
  std::vector<std::vector<double>> values_;
  std::vector<std::vector<int32_t>> integers_;
};

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_OPS_REFERENCE_REFERENCE_INTERPRETER_H_
