#include "engine/ops/dora/dora.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/dora/dora_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::Shape;
using graph::ValueId;

// A frozen one is left out.
Output GradientIfAny(Backward& backward, ValueId parameter) {
  if (parameter == kNoValue) return {};
  Output output = backward.ParameterGradient(parameter);
  output.optional = true;
  return output;
}

absl::Status DoraGradient(Backward& backward, const Op& op) {
  const ValueId v = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dy, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dv = backward.NewGradient(v);
  std::vector<ValueId> inputs = {dy, v};
  std::vector<Output> outputs = {{.value = dv, .may_overwrite = dy}};
  for (size_t i = 1; i < op.inputs.size(); i += 3) {
    inputs.insert(inputs.end(), {op.inputs[i], op.inputs[i + 1]});
    outputs.push_back(GradientIfAny(backward, op.inputs[i + 1]));
    outputs.push_back(GradientIfAny(backward, op.inputs[i + 2]));
  }
  backward.Emit(op, OpKind::kDoraBackward, std::move(inputs), std::move(outputs));
  return backward.SetGradient(op, v, dv);
}

Cost NormsCost(const graph::Graph& graph, const Op& op) {
  const int64_t rank = graph.values[op.inputs[1]].shape[0];
  return {.flops = ProductFlops(graph.values[op.inputs[0]].shape, rank),
          .bytes = OperandBytes(graph, op) + OperandBytes(graph, op, 1)};  // the weight twice
}

int64_t NormsWorkspace(const WorkspaceContext& c) {
  const Shape& up = c.Shape(2);
  return kernels::DoraProductBytes(up[0], up[1]).all;
}
int64_t DoraWorkspace(const WorkspaceContext& c) {
  return kernels::DoraForwardWorkspaceBytes(c.Shape(0)[1]);
}
int64_t CpuBackwardWorkspace(const WorkspaceContext& c) {
  return kernels::DoraBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(0)[1]);
}
int64_t GpuBackwardWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::DoraBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(0)[1]);
}

// Columns up to `end` are the part's: its operands have their number.
bool PartFits(graph::Builder& b, absl::string_view name, const DoraPart& part, int64_t end) {
  const DType dtype = b.compute_dtype();
  const int64_t columns = end - part.column;
  if (columns < 1) {
    b.Fail(name, absl::StrCat("a part of ", columns, " columns"));
    return false;
  }
  if ((part.norms == kNoValue) != (part.change == kNoValue)) {
    b.Fail(name, "norms and changes come together");
    return false;
  }
  const auto fits = [&](const char* operand, ValueId value, DType type, const Shape& shape) {
    return value == kNoValue || b.Expect(name, operand, value, type, shape);
  };
  return fits("norms", part.norms, DType::kF32, {2, columns}) &&
         fits("change", part.change, dtype, {columns}) && fits("bias", part.bias, dtype, {columns});
}

}  // namespace

constinit const OpDefinition kDoraNorms = {.gradient = NoGradient,
                                           .cost = NormsCost,
                                           .cpu_workspace = NormsWorkspace,
                                           .gpu_workspace = NormsWorkspace,
                                           .multiplies = true};
constinit const OpDefinition kDora = {.gradient = DoraGradient,
                                      .cpu_workspace = DoraWorkspace,
                                      .gpu_workspace = DoraWorkspace,
                                      .cheap = Always};
constinit const OpDefinition kDoraBackward = {.cpu_workspace = CpuBackwardWorkspace,
                                              .gpu_workspace = GpuBackwardWorkspace};

ValueId DoraNorms(graph::Builder& b, absl::string_view name, ValueId weight, ValueId down,
                  ValueId up, double scale, bool transposed) {
  const DType dtype = b.compute_dtype();
  const int64_t rank = b.Dimension(name, "down", down, 0);
  const int64_t in = b.Dimension(name, "down", down, 1);
  const int64_t out = b.Dimension(name, "up", up, 0);
  const Shape shape = transposed ? Shape{out, in} : Shape{in, out};
  if (!b.Expect(name, "weight", weight, dtype, shape) ||
      !b.Expect(name, "down", down, dtype, {rank, in}) ||
      !b.Expect(name, "up", up, dtype, {out, rank})) {
    return kNoValue;
  }
  const ValueId norms = b.AddActivation(name, "", DType::kF32, {2, out});
  Op& op = b.AddOp(OpKind::kDoraNorms, {weight, down, up});
  op.attributes.scale = scale;
  op.attributes.transposed = transposed;
  op.outputs = {{.value = norms}};
  return norms;
}

ValueId Dora(graph::Builder& b, absl::string_view name, ValueId v,
             absl::Span<const DoraPart> parts) {
  const DType dtype = b.compute_dtype();
  const int64_t width = b.Dimension(name, "v", v, 1);
  if (!b.Expect(name, "v", v, dtype, {b.rows(), width})) return kNoValue;
  if (parts.empty() || parts.size() > graph::kMostAdapters || parts[0].column != 0) {
    b.Fail(name, absl::StrCat(parts.size(), " parts"));
    return kNoValue;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t end = i + 1 < parts.size() ? parts[i + 1].column : width;
    if (!PartFits(b, name, parts[i], end)) return kNoValue;
  }
  const ValueId y = b.AddActivation(name, "", dtype, {b.rows(), width});
  Op& op = b.AddOp(OpKind::kDora, {v});
  op.attributes.lora.adapters = static_cast<int64_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    op.inputs.insert(op.inputs.end(), {parts[i].norms, parts[i].change, parts[i].bias});
    op.attributes.lora.columns[i] = parts[i].column;
  }
  op.outputs = {{.value = y, .may_overwrite = v}};
  return y;
}

}  // namespace milepost::ops
