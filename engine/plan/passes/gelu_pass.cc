#include "engine/plan/passes/gelu_pass.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace milepost::plan {
namespace {

using graph::Op;
using graph::OpKind;

constexpr int64_t kWidthMultiple = 8;

class GeluPass {
 public:
  explicit GeluPass(graph::Graph& graph) : graph_(graph), readers_(graph.values.size(), 0) {
    for (const Op& op : graph.ops) {
      for (graph::ValueId input : op.inputs) {
        if (input != graph::kNoValue) ++readers_[input];
      }
    }
  }

  void Run() && {
    std::vector<Op> ops;
    for (Op& op : graph_.ops) {
      if (ops.empty() || !Fuses(ops.back(), op)) {
        ops.push_back(std::move(op));
      } else if (op.kind == OpKind::kGelu) {
        FuseForward(op, ops.back());
      } else {
        FuseBackward(op, ops.back());
      }
    }
    graph_.ops = std::move(ops);
  }

 private:
  bool Fuses(const Op& product, const Op& gelu) const {
    const bool forward = product.kind == OpKind::kLinear && gelu.kind == OpKind::kGelu;
    const bool backward = product.kind == OpKind::kLinearBackwardInput &&
                          gelu.kind == OpKind::kGeluBackward && product.inputs.size() == 2;
    if (!forward && !backward) return false;
    if (product.block != gelu.block || product.phase != gelu.phase) return false;
    if (product.attributes.parts != 1 || product.attributes.gelu || product.attributes.fp8 ||
        gelu.attributes.exact) {
      return false;
    }
    const graph::ValueId between = product.outputs[0].value;
    const graph::Value& value = graph_.values[between];
    if (value.dtype == DType::kF32 || value.shape[1] % kWidthMultiple != 0) return false;
    return forward ? gelu.inputs[0] == between
                   : gelu.inputs[1] == between && readers_[between] == 1;
  }

  // Nothing may lie over the sums' place: both are written at once.
  void FuseForward(const Op& gelu, Op& product) const {
    product.attributes.gelu = true;
    graph::Output& sums = product.outputs[0];
    if (readers_[sums.value] == 1) sums = {};
    product.outputs.push_back({.value = gelu.outputs[0].value});
  }

  static void FuseBackward(const Op& gelu, Op& product) {
    product.attributes.gelu = true;
    product.inputs.push_back(gelu.inputs[0]);
    product.outputs[0] = {.value = gelu.outputs[0].value};
  }

  graph::Graph& graph_;
  std::vector<int> readers_;  // by value: how often it is an input
};

}  // namespace

void FuseGelu(graph::Graph& graph) { GeluPass(graph).Run(); }

}  // namespace milepost::plan
