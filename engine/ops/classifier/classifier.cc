#include "engine/ops/classifier/classifier.h"

#include "absl/strings/str_cat.h"
#include "engine/ops/backward.h"
#include "engine/ops/classifier/classifier_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::Builder;
using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

// Forward and backward in one op, so it takes the forward op's place.
absl::Status ClassifierLossGradient(Backward& backward, const Op& op) {
  const ValueId logits = op.inputs[0];
  const ValueId dlogits = backward.NewGradient(logits);
  backward.Emit(op, OpKind::kClassifierLossBackward, op.inputs,
                {op.outputs[0], {.value = dlogits, .may_overwrite = logits}});
  return backward.SetGradient(op, logits, dlogits);
}

int64_t ClassifierWorkspace(const WorkspaceContext& c) {
  return kernels::ClassifierWorkspaceBytes(c.Shape(0)[0]);
}
int64_t GpuClassifierWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::ClassifierWorkspaceBytes(c.Shape(0)[0]);
}

}  // namespace

constinit const OpDefinition kClassifierLoss = {.gradient = ClassifierLossGradient,
                                                .cpu_workspace = ClassifierWorkspace,
                                                .gpu_workspace = GpuClassifierWorkspace};
constinit const OpDefinition kClassifierLossBackward = {.cpu_workspace = ClassifierWorkspace,
                                                        .gpu_workspace = GpuClassifierWorkspace};

ValueId ClassifierLoss(Builder& b, absl::string_view name, ValueId logits, ValueId targets,
                       double label_smoothing, double weight) {
  const int64_t classes = b.Dimension(name, "logits", logits, 1);
  if (!b.Expect(name, "logits", logits, b.compute_dtype(), {b.rows(), classes}) ||
      !b.Expect(name, "targets", targets, DType::kI32, {b.rows()})) {
    return kNoValue;
  }
  if (!(label_smoothing >= 0 && label_smoothing < 1)) {
    b.Fail(name, absl::StrCat("label smoothing ", label_smoothing, " is not in [0, 1)"));
  }
  Op& op = b.AddOp(OpKind::kClassifierLoss, {logits, targets});
  op.attributes.label_smoothing = label_smoothing;
  return b.AddLoss(name, targets, weight, op);
}

}  // namespace milepost::ops
