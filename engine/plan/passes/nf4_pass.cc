#include "engine/plan/passes/nf4_pass.h"

#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "engine/dtype/nf4.h"
#include "engine/graph/base_matrices.h"

namespace milepost::plan {
namespace {

using graph::Op;
using graph::OpKind;
using graph::ValueId;

class Nf4Packing {
 public:
  Nf4Packing(graph::Graph& graph, const std::vector<bool>& packed) : graph_(graph) {
    for (size_t i = 0; i < packed.size(); ++i) {
      if (packed[i]) dtypes_[graph.parameters[i].value] = Pack(graph.parameters[i]);
    }
  }

  void Run() && {
    std::vector<Op> ops;
    for (Op& op : std::exchange(graph_.ops, {})) {
      Op unpack = {.kind = OpKind::kUnpackNf4, .phase = op.phase, .block = op.block};
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        if (graph::IsLayerWeight(op, i) && dtypes_.contains(op.inputs[i]))
          Unpack(op.inputs[i], unpack);
      }
      if (!unpack.inputs.empty()) ops.push_back(std::move(unpack));
      ops.push_back(std::move(op));
    }
    graph_.ops = std::move(ops);
  }

 private:
  // Returns what it was.
  DType Pack(graph::Parameter& parameter) {
    graph::Value& value = graph_.values[parameter.value];
    parameter.unpacked.assign(value.shape.begin(), value.shape.end());
    shapes_[parameter.value] = value.shape;
    value.shape = {Nf4Bytes(graph::Elements(value.shape))};
    return std::exchange(value.dtype, DType::kU8);
  }

  void Unpack(ValueId& weight, Op& unpack) {
    graph::Value value = graph_.values[weight];
    value.name = absl::StrCat("unpacked ", value.name);
    value.dtype = dtypes_.at(weight);
    value.shape = shapes_.at(weight);
    value.kind = graph::ValueKind::kActivation;
    unpack.inputs.push_back(weight);
    weight = static_cast<ValueId>(graph_.values.size());
    unpack.outputs.push_back({.value = weight});
    graph_.values.push_back(std::move(value));
  }

  graph::Graph& graph_;
  // Of packed parameters, by value: what they are unpacked to.
  absl::flat_hash_map<ValueId, DType> dtypes_;
  absl::flat_hash_map<ValueId, graph::Shape> shapes_;
};

}  // namespace

void PackWeights(graph::Graph& graph, const std::vector<bool>& packed) {
  if (graph.parameters.empty()) return;
  MP_CHECK(packed.size() == graph.parameters.size());
  Nf4Packing(graph, packed).Run();
}

}  // namespace milepost::plan
