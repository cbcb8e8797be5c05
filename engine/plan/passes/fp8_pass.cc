#include "engine/plan/passes/fp8_pass.h"

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/plan/scalings.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Phase;
using graph::Shape;
using graph::ValueId;
using graph::ValueKind;

bool IsLinear(OpKind kind) {
  return kind == OpKind::kLinear || kind == OpKind::kLinearBackwardInput ||
         kind == OpKind::kLinearBackwardWeight;
}

enum class Role : uint8_t { kInput, kWeight, kOutputGradient };
const char* Name(Role role) {
  return role == Role::kInput ? "input" : role == Role::kWeight ? "weight" : "output gradient";
}

class Fp8Pass {
 public:
  explicit Fp8Pass(graph::Graph& graph) : graph_(graph) {}

  void Run() && {
    FindReadLater();
    for (Op& op : std::exchange(graph_.ops, {})) {
      if (IsLinear(op.kind) && op.attributes.fp8_layer >= 0) Rewrite(op);
      ops_.push_back(std::move(op));
    }
    graph_.ops = std::move(ops_);
  }

 private:
  // What one tensor's codes are made of: whose codes are laid on each other, of which layer.
  struct Tensor {
    std::vector<ValueId> values;
    Role role;
  };

  // What the backward reads otherwise than as a layer's input.
  void FindReadLater() {
    for (const Op& op : graph_.ops) {
      if (op.phase == Phase::kForward) continue;
      const bool layer = op.kind == OpKind::kLinearBackwardWeight && op.attributes.fp8_layer >= 0;
      read_later_.insert(op.inputs.begin() + (layer ? 1 : 0), op.inputs.end());
    }
  }

  void Rewrite(Op& op) {
    const std::vector<ValueId> old = op.inputs;
    const size_t parts = static_cast<size_t>(op.attributes.parts);
    const bool stored_out_in = op.attributes.transposed;  // weights are [M,K]
    const Tensor weights{{old.begin() + 1, old.begin() + 1 + (Reads(op) ? parts : 0)},
                         Role::kWeight};
    if (op.kind == OpKind::kLinear) {
      op.inputs = Operands(op, {{old[0]}, Role::kInput}, false, weights, !stored_out_in);
      op.inputs.insert(op.inputs.end(), old.begin() + 1 + parts, old.end());  // biases
    } else if (op.kind == OpKind::kLinearBackwardInput) {
      op.inputs = Operands(op, {{old[0]}, Role::kOutputGradient}, false, weights, stored_out_in);
      op.inputs.insert(op.inputs.end(), old.begin() + 1 + parts, old.end());  // dsum
    } else {
      op.inputs =
          Operands(op, {{old[0]}, Role::kInput}, true, {{old[1]}, Role::kOutputGradient}, true);
      if (op.outputs.size() > parts) op.inputs.push_back(old[1]);  // for the biases
    }
    op.attributes.fp8 = true;
  }

  // Whether the weights are inputs.
  static bool Reads(const Op& op) { return op.kind != OpKind::kLinearBackwardWeight; }

  std::vector<ValueId> Operands(const Op& op, const Tensor& a, bool a_turned, const Tensor& b,
                                bool b_turned) {
    const ValueId first = Codes(op, a, a_turned), second = Codes(op, b, b_turned);
    return {first, second, ScalingOf(op, a.role).scaling, ScalingOf(op, b.role).scaling};
  }

  // The tensor's codes as `op` needs them: made by an op in front of it, or by an earlier one.
  ValueId Codes(const Op& op, const Tensor& tensor, bool turned) {
    const bool kept = tensor.role != Role::kWeight && !read_later_.contains(tensor.values[0]);
    const bool again = op.phase != Phase::kForward && tensor.role != Role::kOutputGradient && !kept;
    const auto [at, is_new] =
        made_.try_emplace({tensor.values[0], op.attributes.fp8_layer, again}, ops_.size());
    if (is_new) ops_.push_back(Quantize(op, tensor));
    graph::Output& output = ops_[at->second].outputs[turned ? 1 : 0];
    if (output.value == kNoValue) output.value = NewCodes(op, tensor, turned);
    return output.value;
  }

  Op Quantize(const Op& op, const Tensor& tensor) {
    const bool first = !scalings_.contains({op.attributes.fp8_layer, tensor.role});
    if (first) AddScaling(op, tensor);
    const graph::Scaling& scaling = ScalingOf(op, tensor.role);
    Op made = {.kind = OpKind::kQuantize,
               .phase = op.phase,
               .block = op.block,
               .inputs = tensor.values,
               .outputs = {{}, {}, {}, {}}};
    made.attributes.parts = static_cast<int64_t>(tensor.values.size());
    made.inputs.push_back(scaling.scaling);
    if (!first) return made;
    made.outputs[2] = {.value = scaling.amax, .mode = graph::WriteMode::kAccumulateInStep};
    made.outputs[3] = {.value = scaling.scaling, .mode = graph::WriteMode::kAccumulate};
    return made;
  }

  ValueId Add(std::string name, DType dtype, const Shape& shape, ValueKind kind, int block) {
    graph_.values.push_back(
        {.name = std::move(name), .dtype = dtype, .shape = shape, .kind = kind, .block = block});
    return static_cast<ValueId>(graph_.values.size()) - 1;
  }

  void AddScaling(const Op& op, const Tensor& tensor) {
    const std::string name =
        absl::StrCat("fp8 layer ", op.attributes.fp8_layer, " ", Name(tensor.role));
    scalings_[{op.attributes.fp8_layer, tensor.role}] = graph_.scalings.size();
    graph_.scalings.push_back({.scaling = Add(absl::StrCat(name, " scaling"), DType::kF32,
                                              {kScalingFloats}, ValueKind::kScaling, op.block),
                               .amax = Add(absl::StrCat(name, " amax"), DType::kF32, {kAmaxSlots},
                                           ValueKind::kAmax, op.block),
                               .dtype = DTypeOf(tensor.role)});
  }
  const graph::Scaling& ScalingOf(const Op& op, Role role) const {
    return graph_.scalings[scalings_.at({op.attributes.fp8_layer, role})];
  }
  static DType DTypeOf(Role role) {
    return role == Role::kOutputGradient ? DType::kE5M2 : DType::kE4M3;
  }

  ValueId NewCodes(const Op& op, const Tensor& tensor, bool turned) {
    Shape shape = graph_.values[tensor.values[0]].shape;
    for (size_t i = 1; i < tensor.values.size(); ++i) {
      shape[0] += graph_.values[tensor.values[i]].shape[0];
    }
    if (turned) std::swap(shape[0], shape[1]);
    const std::string& name = graph_.values[tensor.values[0]].name;
    return Add(absl::StrCat(turned ? "fp8 turned " : "fp8 ", name), DTypeOf(tensor.role), shape,
               ValueKind::kActivation, op.block);
  }

  graph::Graph& graph_;
  std::vector<Op> ops_;
  absl::flat_hash_set<ValueId> read_later_;
  // Of a tensor's first value, its layer, and whether once more in the backward: its kQuantize.
  std::map<std::tuple<ValueId, int32_t, bool>, size_t> made_;
  std::map<std::pair<int32_t, Role>, size_t> scalings_;  // by layer and role, in graph.scalings
};

}  // namespace

int MarkFp8(graph::Graph& graph) {
  int32_t layers = 0;
  for (Op& op : graph.ops) {
    if (op.kind != OpKind::kLinear || op.block + 1 == static_cast<int>(graph.blocks.size())) {
      continue;
    }
    const Shape& x = graph.values[op.inputs[0]].shape;
    bool fits = !op.attributes.never_fp8 && x[0] % kFp8Multiple == 0 && x[1] % kFp8Multiple == 0 &&
                op.attributes.parts <= kMostParts;
    for (int64_t i = 0; i < op.attributes.parts; ++i) {
      const Shape& w = graph.values[op.inputs[1 + i]].shape;
      fits &= w[0] % kFp8Multiple == 0 && w[1] % kFp8Multiple == 0;
    }
    if (fits) op.attributes.fp8_layer = layers++;
  }
  return layers;
}

void AddFp8(graph::Graph& graph) { Fp8Pass(graph).Run(); }

}  // namespace milepost::plan
