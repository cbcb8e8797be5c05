#include "engine/ops/rope/rope.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/ops/backward.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::Shape;
using graph::ValueId;

absl::Status RopeGradient(Backward& backward, const Op& op) {
  const ValueId qkv = op.inputs[0];
  MP_ASSIGN_OR_RETURN(const ValueId dout, backward.RequireGradient(op, op.outputs[0].value));
  const ValueId dqkv = backward.NewGradient(qkv);
  backward.Emit(op, OpKind::kRopeBackward, {dout, op.inputs[1], op.inputs[2]},
                {{.value = dqkv, .may_overwrite = dout}});
  return backward.SetGradient(op, qkv, dqkv);
}

}  // namespace

constinit const OpDefinition kRopeTable = {.gradient = NoGradient};
constinit const OpDefinition kRope = {.gradient = RopeGradient};
constinit const OpDefinition kRopeBackward = {};

ValueId RopeTable(Builder& b, absl::string_view name, int64_t head_dim,
                  const graph::RopeAttributes& rope) {
  if (head_dim < 2 || head_dim % 2 != 0) {
    b.Fail(name, absl::StrCat("heads of width ", head_dim, " have no two halves"));
    return kNoValue;
  }
  const ValueId table = b.AddActivation(name, "", DType::kF32, {b.options().sequence, head_dim});
  Op& op = b.AddOp(OpKind::kRopeTable, {b.caches() ? b.Positions() : kNoValue});
  op.attributes.rope = rope;
  op.outputs = {{.value = table}};
  return table;
}

ValueId Rope(Builder& b, absl::string_view name, ValueId qkv, ValueId table, int64_t heads,
             int64_t kv_heads, ValueId positions) {
  const DType dtype = b.compute_dtype();
  const int64_t head_dim = b.HeadDim(name, qkv, heads, kv_heads);
  if (head_dim == 0 ||
      !b.Expect(name, "table", table, DType::kF32, {b.options().sequence, head_dim}) ||
      !b.ExpectRowsOf(name, "positions", positions)) {
    return kNoValue;
  }
  const Shape shape = b.ValueOf(qkv).shape;
  const ValueId out = b.AddActivation(name, "", dtype, shape);
  Op& op = b.AddOp(OpKind::kRope, {qkv, table, positions});
  op.attributes.heads = heads;
  op.attributes.kv_heads = kv_heads;
  op.outputs = {{.value = out, .may_overwrite = qkv}};
  return out;
}

}  // namespace milepost::ops
