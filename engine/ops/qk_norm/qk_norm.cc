#include "engine/ops/qk_norm/qk_norm.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"
#include "engine/ops/qk_norm/qk_norm_contract.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::Shape;
using graph::ValueId;

absl::Status QkNormGradient(Backward& backward, const Op& op) {
  const ValueId qkv = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dqkv = backward.NewGradient(qkv);
  const Output dgamma_q = backward.ParameterGradient(op.inputs[1]);
  const Output dgamma_k = backward.ParameterGradient(op.inputs[2]);
  backward.Emit(op, OpKind::kQkNormBackward, {qkv, op.inputs[1], op.inputs[2], dout},
                {{.value = dqkv, .may_overwrite = dout}, dgamma_q, dgamma_k});
  return backward.SetGradient(op, qkv, dqkv);
}

int64_t QkNormWorkspace(const WorkspaceContext& c) {
  return kernels::QkNormBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(1)[0]);
}
int64_t GpuQkNormWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::QkNormBackwardWorkspaceBytes({.rows = c.Shape(0)[0],
                                                      .heads = c.op.attributes.heads,
                                                      .kv_heads = c.op.attributes.kv_heads,
                                                      .head_dim = c.Shape(1)[0]});
}

}  // namespace

constinit const OpDefinition kQkNorm = {.gradient = QkNormGradient, .cheap = Always};
constinit const OpDefinition kQkNormBackward = {.cpu_workspace = QkNormWorkspace,
                                                .gpu_workspace = GpuQkNormWorkspace};

ValueId QkNorm(Builder& b, absl::string_view name, ValueId qkv, ValueId gamma_q, ValueId gamma_k,
               int64_t heads, int64_t kv_heads, double epsilon, double gamma_offset) {
  const DType dtype = b.compute_dtype();
  const int64_t head_dim = b.HeadDim(name, qkv, heads, kv_heads);
  if (head_dim == 0 || !b.Expect(name, "gamma_q", gamma_q, dtype, {head_dim}) ||
      !b.Expect(name, "gamma_k", gamma_k, dtype, {head_dim})) {
    return kNoValue;
  }
  const Shape shape = b.ValueOf(qkv).shape;
  const ValueId out = b.AddActivation(name, "", dtype, shape);
  Op& op = b.AddOp(OpKind::kQkNorm, {qkv, gamma_q, gamma_k});
  op.attributes.heads = heads;
  op.attributes.kv_heads = kv_heads;
  op.attributes.epsilon = epsilon;
  op.attributes.gamma_offset = gamma_offset;
  op.outputs = {{.value = out, .may_overwrite = qkv}};
  return out;
}

}  // namespace milepost::ops
