#include "engine/ops/preference/preference_binding.h"
#include "engine/ops/preference/preference_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

absl::StatusOr<BoundOp> BindPreferenceLoss(const Binding& b) {
  return [args = PreferenceArgsOf(b), head = b.attributes().head, sums = b.Output<double>(0),
          gradients = b.Output<float>(1),
          accumulation = b.OutputAccumulation(0)](const StepContext& context) {
    kernels::LossSum sum;
    kernels::PreferenceLoss(args, context.gradient_factors[head], gradients, &sum);
    const bool add = accumulation.At(context);
    const auto put = [&](int i, double value) { sums[i] = value + (add ? sums[i] : 0); };
    put(graph::kLossSum, sum.loss);
    put(graph::kLossTargets, static_cast<double>(sum.targets));
    put(graph::kLossCorrect, gradients == nullptr ? static_cast<double>(sum.correct) : 0);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kPreferenceLoss = {.bind = BindPreferenceLoss};
constinit const CpuOp kPreferenceLossBackward = {.bind = BindPreferenceLoss};

}  // namespace milepost::ops::cpu
