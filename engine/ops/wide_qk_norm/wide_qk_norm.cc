#include "engine/ops/wide_qk_norm/wide_qk_norm.h"

#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/norm/norm_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Output;
using graph::Shape;
using graph::ValueId;

absl::Status WideQkNormGradient(Backward& backward, const Op& op) {
  const ValueId qkv = op.inputs[0], gamma_q = op.inputs[1], gamma_k = op.inputs[2];
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dqkv = backward.NewGradient(qkv);
  const Output dgamma_q = backward.ParameterGradient(gamma_q);
  const Output dgamma_k = backward.ParameterGradient(gamma_k);
  backward.Emit(op, OpKind::kWideQkNormBackward,
                {qkv, gamma_q, gamma_k, op.outputs[1].value, op.outputs[2].value, dout},
                {{.value = dqkv, .may_overwrite = dout}, dgamma_q, dgamma_k});
  return backward.SetGradient(op, qkv, dqkv);
}

// Of one norm after the other; that of q is the wider.
int64_t WideQkNormWorkspace(const WorkspaceContext& c) {
  return kernels::RmsNormBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(1)[0]);
}
int64_t GpuWideQkNormWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::NormBackwardWorkspaceBytes(c.Shape(0)[0], c.Shape(1)[0]);
}

}  // namespace

// Not made again by itself: the backward reads its statistics alone.
constinit const OpDefinition kWideQkNorm = {.gradient = WideQkNormGradient};
constinit const OpDefinition kWideQkNormBackward = {.cpu_workspace = WideQkNormWorkspace,
                                                    .gpu_workspace = GpuWideQkNormWorkspace};

ValueId WideQkNorm(Builder& b, absl::string_view name, ValueId qkv, ValueId gamma_q,
                   ValueId gamma_k, int64_t heads, int64_t kv_heads, double epsilon,
                   double gamma_offset) {
  const DType dtype = b.compute_dtype();
  const int64_t head_dim = b.HeadDim(name, qkv, heads, kv_heads);
  if (head_dim == 0 || !b.Expect(name, "gamma_q", gamma_q, dtype, {heads * head_dim}) ||
      !b.Expect(name, "gamma_k", gamma_k, dtype, {kv_heads * head_dim})) {
    return kNoValue;
  }
  const Shape shape = b.ValueOf(qkv).shape;
  const ValueId out = b.AddActivation(name, "", dtype, shape);
  const ValueId rstd_q = b.AddActivation(name, ".rstd_q", DType::kF32, {b.rows()});
  const ValueId rstd_k = b.AddActivation(name, ".rstd_k", DType::kF32, {b.rows()});
  Op& op = b.AddOp(OpKind::kWideQkNorm, {qkv, gamma_q, gamma_k});
  op.attributes.epsilon = epsilon;
  op.attributes.gamma_offset = gamma_offset;
  op.outputs = {{.value = out, .may_overwrite = qkv}, {.value = rstd_q}, {.value = rstd_k}};
  return out;
}

}  // namespace milepost::ops
