#include "engine/runtime/offload/offload_copy.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/runtime/executor/group_ops.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;

int64_t ShardBytes(const OpBinding& b) {
  return GroupOf(b).shard_elements * ByteSize(b.plan.options.compute_dtype);
}

// This rank's shard in the device's parameters.
char* ShardParameters(const OpBinding& b) {
  const int64_t begin = b.plan.options.ShardsParameters() ? 0 : ShardBegin(b);
  return b.BufferAt(GroupOf(b).parameter_buffer) + begin * ByteSize(b.plan.options.compute_dtype);
}

const char* ParametersOnHost(const OpBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const bool staged = group.host_parameter_buffer != plan::kNoBuffer;
  return b.BufferAt(staged ? group.host_parameter_buffer : group.master_buffer);
}

}  // namespace

bool IsOffloadCopy(OpKind kind) {
  return kind == OpKind::kGradientsToHost || kind == OpKind::kScalarsToHost ||
         kind == OpKind::kParametersToDevice || kind == OpKind::kCopyToHost ||
         kind == OpKind::kCopyToDevice;
}

OffloadCopy OffloadCopyOf(const OpBinding& b) {
  switch (b.planned.op.kind) {
    case OpKind::kGradientsToHost:
      return {.to = b.BufferAt(GroupOf(b).host_gradient_buffer),
              .from = reinterpret_cast<const char*>(ShardGradient(b)),
              .bytes = GroupOf(b).shard_elements * ByteSize(DType::kF32)};
    case OpKind::kScalarsToHost:
      return {.to = b.BufferAt(b.plan.host_scalars),
              .from = b.BufferAt(b.plan.scalars),
              .bytes = b.plan.buffers[b.plan.host_scalars].bytes};
    case OpKind::kParametersToDevice:
      return {.to = ShardParameters(b), .from = ParametersOnHost(b), .bytes = ShardBytes(b)};
    default: {
      const graph::Value& value = b.ValueOf(b.OutputId(0));
      return {.to = b.Output<char>(0),
              .from = b.Input<char>(0),
              .bytes = graph::Elements(value.shape) * ByteSize(value.dtype)};
    }
  }
}

absl::StatusOr<BoundOp> BindOffloadCopy(const OpBinding& b) {
  if (!IsOffloadCopy(b.planned.op.kind)) {
    return absl::InternalError(absl::StrCat(graph::Name(b.planned.op.kind), " is no copy"));
  }
  return [copy = OffloadCopyOf(b)](const StepContext&) {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    return absl::OkStatus();
  };
}

}  // namespace milepost::runtime
