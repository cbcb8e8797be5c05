#include <algorithm>

#include "common/status_macros.h"
#include "engine/ops/classifier/classifier_cpu_kernel.h"
#include "engine/ops/classifier/label_smoothing_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

template <typename T>
struct Classifier {
  void Run(const StepContext& context) const {
    kernels::LossSum sum;
    if (smoothing > 0) {
      sum.loss = kernels::SmoothingLoss<T>(logits, targets, rows, classes, smoothing);
    }
    if (gradient == nullptr) {
      kernels::ClassifierForward<T>(logits, targets, rows, classes, workspace, &sum);
    } else {
      const float scale = context.gradient_factors[head];
      if (gradient != logits) std::copy_n(logits, rows * classes, gradient);
      kernels::ClassifierForwardBackward<T>(gradient, targets, rows, classes, scale, workspace,
                                            &sum);
      if (smoothing > 0) {
        kernels::SmoothGradient<T>(gradient, targets, rows, classes, smoothing, scale);
      }
    }
    if (!accumulation.At(context)) std::fill(sums, sums + graph::kLossSums, 0.0);
    sums[graph::kLossSum] += sum.loss;
    sums[graph::kLossTargets] += static_cast<double>(sum.targets);
    sums[graph::kLossCorrect] += static_cast<double>(sum.correct);
  }

  const T* logits;
  const int32_t* targets;
  int64_t rows;
  int64_t classes;
  double smoothing;
  int32_t head;
  double* sums;
  Binding::Accumulation accumulation;
  T* gradient;  // null: the loss alone
  char* workspace;
};

template <typename T>
absl::StatusOr<BoundOp> ClassifierLossOf(const Binding& b) {
  const Classifier<T> classifier{.logits = b.Input<T>(0),
                                 .targets = b.Input<int32_t>(1),
                                 .rows = b.InputShape(0)[0],
                                 .classes = b.InputShape(0)[1],
                                 .smoothing = b.attributes().label_smoothing,
                                 .head = b.attributes().head,
                                 .sums = b.Output<double>(0),
                                 .accumulation = b.OutputAccumulation(0),
                                 .gradient = b.Output<T>(1),
                                 .workspace = b.Workspace()};
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::ClassifierWorkspaceBytes(classifier.rows)));
  return [classifier](const StepContext& context) {
    classifier.Run(context);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kClassifierLoss = {.bind = MP_BY_DTYPE(ClassifierLossOf)};
constinit const CpuOp kClassifierLossBackward = {.bind = MP_BY_DTYPE(ClassifierLossOf)};

}  // namespace milepost::ops::cpu
