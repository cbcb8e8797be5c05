#include "engine/ops/preference/preference.h"

#include "absl/strings/str_cat.h"
#include "engine/ops/backward.h"
#include "engine/ops/classifier/classifier_contract.h"
#include "engine/ops/op_definition.h"

namespace milepost::ops {
namespace {

using graph::kNoValue;
using graph::Op;
using graph::OpKind;
using graph::ValueId;

// Forward and backward in one op, so it takes the forward op's place.
absl::Status PreferenceLossGradient(Backward& backward, const Op& op) {
  const ValueId log_probs = op.inputs[0];
  const ValueId gradients = backward.NewGradient(log_probs);
  backward.Emit(op, OpKind::kPreferenceLossBackward, op.inputs,
                {op.outputs[0], {.value = gradients}});
  return backward.SetGradient(op, log_probs, gradients);
}

int64_t GpuPreferenceWorkspace(const WorkspaceContext& c) {
  return kernels::cuda::ClassifierWorkspaceBytes(c.op.attributes.batch);
}

}  // namespace

constinit const OpDefinition kPreferenceLoss = {.gradient = PreferenceLossGradient,
                                                .gpu_workspace = GpuPreferenceWorkspace};
constinit const OpDefinition kPreferenceLossBackward = {.gpu_workspace = GpuPreferenceWorkspace};

ValueId PreferenceLoss(graph::Builder& b, absl::string_view name, ValueId log_probs,
                       ValueId reference, ValueId documents, const PreferenceOptions& options) {
  const graph::Shape rows = {b.rows()};
  if (!b.Expect(name, "log_probs", log_probs, DType::kF32, rows) ||
      !b.Expect(name, "reference", reference, DType::kF32, rows) ||
      !b.Expect(name, "documents", documents, DType::kI32, rows)) {
    return kNoValue;
  }
  if (!(options.beta > 0)) b.Fail(name, absl::StrCat("beta ", options.beta, " is not above 0"));
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 0.5)) {
    b.Fail(name, absl::StrCat("label smoothing ", options.label_smoothing, " is not in [0, 0.5)"));
  }
  const ValueId pairs = b.Input("pairs", DType::kI32, rows);
  Op& op = b.AddOp(OpKind::kPreferenceLoss, {log_probs, reference, documents, pairs});
  op.attributes.scale = options.beta;
  op.attributes.label_smoothing = options.label_smoothing;
  return b.AddLoss(name, pairs, 1, op);
}

}  // namespace milepost::ops
