// Adds the backward ops of a training graph.
//
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));  // graph: forward only, ends in a loss, or in
//                                                 // what a pipeline's stage sends to the next one
//
// Afterwards kLmHeadLoss has become kLmHeadLossBackward (loss and its gradient in one op), each
// other forward op has its backward ops after it in reverse order, and every parameter that takes
// part has `gradient` set to an f32 value of its shape. Gradients of activations are assigned
// exactly once: where a value has several consumers, the last backward op of them adds the others'
// contribution itself (dsum of the LayerNorm kinds).
//
// What an output may overwrite is declared here too; the memory pass decides.
#ifndef MILEPOST_ENGINE_OPS_BACKWARD_H_
#define MILEPOST_ENGINE_OPS_BACKWARD_H_

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/graph/graph.h"

namespace milepost::ops {

// FAILED_PRECONDITION: no loss, or a backward already there. UNIMPLEMENTED: an op kind without a
// gradient rule, or a value with several consumers none of which can add to a gradient.
absl::Status AddBackward(graph::Graph& graph);

// The backward being written, for gradient rules (op_definition.h): they read the gradients of
// their op's outputs, emit ops, and set the gradients of their op's inputs.
class Backward {
 public:
  explicit Backward(graph::Graph& graph);

  // Whether it depends on a parameter.
  bool Differentiable(graph::ValueId value) const { return differentiable_[value]; }

  // What has been added to the gradient of a forward value so far; kNoValue: nothing.
  graph::ValueId Gradient(graph::ValueId value) const { return gradients_[value]; }

  absl::StatusOr<graph::ValueId> RequireGradient(const graph::Op& op, graph::ValueId value) const;
  absl::Status SetGradient(const graph::Op& op, graph::ValueId value, graph::ValueId gradient);

  // For values whose producer's rule adds the contributions of two consumers itself:
  // RequireGradient fails for the other rules, TakeSecond gives these the second one (kNoValue:
  // there is none).
  absl::Status AddGradient(const graph::Op& op, graph::ValueId value, graph::ValueId gradient);
  graph::ValueId TakeSecond(graph::ValueId value) {
    return std::exchange(seconds_[value], graph::kNoValue);
  }

  // For rules whose op has already added Gradient(value) into `gradient`.
  void ReplaceGradient(graph::ValueId value, graph::ValueId gradient) {
    gradients_[value] = gradient;
  }

  // A new value for (what is known of) the gradient of `of`; `suffix` ends its name.
  graph::ValueId NewGradient(graph::ValueId of, absl::string_view suffix = "");
  // For a batch norm's two sums per channel.
  graph::ValueId NewSums(const graph::Op& op);
  // An output that adds to a parameter's gradient; its first writer starts the step's sum.
  graph::Output ParameterGradient(graph::ValueId parameter);

  void Emit(const graph::Op& forward, graph::OpKind kind, std::vector<graph::ValueId> inputs,
            std::vector<graph::Output> outputs);
  graph::Op& LastOp() { return graph_.ops.back(); }

 private:
  absl::Status CannotAdd(const graph::Op& op, graph::ValueId value) const;

  graph::Graph& graph_;
  std::vector<graph::ValueId> gradients_;  // by forward value
  std::vector<graph::ValueId> seconds_;    // by forward value: AddGradient
  std::vector<bool> differentiable_;
  absl::flat_hash_map<graph::ValueId, size_t> parameters_;
  int sums_ = 0;
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_BACKWARD_H_
