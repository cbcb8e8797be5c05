#include <algorithm>

#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/ops/contract/sums.h"
#include "engine/runtime/cpu/cpu_collective_call.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using runtime::Binding;
using runtime::BoundCall;
using runtime::BoundOp;
using runtime::StepContext;

constexpr int64_t kRowsAtOnce = 8;

template <typename T>
void AddToRows(const T* bias, int64_t rows, int64_t width, T* y) {
  kernels::ParallelFor(0, rows, kRowsAtOnce, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels::Add<T>(y + row * width, bias, width, y + row * width);
    }
  });
}

template <typename T>
absl::StatusOr<BoundOp> TensorReduceOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, runtime::CallOf(b));
  const int64_t n = graph::Elements(b.OutputShape(0)), width = b.OutputShape(0).back();
  return [call, x = b.Input<T>(0), added = b.Input<T>(1), bias = b.Input<T>(2), y = b.Output<T>(0),
          n, width](const StepContext& context) {
    if (x != y) std::copy_n(x, n, y);
    MP_RETURN_IF_ERROR(call.Run(context));
    if (added != nullptr) kernels::Add<T>(y, added, n, y);
    if (bias != nullptr) AddToRows(bias, n / width, width, y);
    return absl::OkStatus();
  };
}

// Nothing is added where `added` is null.
template <typename T>
void CopyOrAdd(const T* x, const T* added, int64_t n, T* y) {
  if (added != nullptr) return kernels::Add<T>(x, added, n, y);
  std::copy_n(x, n, y);
}

template <typename T>
absl::StatusOr<BoundOp> TensorScatterOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, runtime::CallOf(b));
  const int64_t n = graph::Elements(b.OutputShape(0)), width = b.OutputShape(0).back();
  return [call, own = b.Input<T>(0) + b.tensor_rank * n, added = b.Input<T>(1),
          bias = b.Input<T>(2), y = b.Output<T>(0), n, width](const StepContext& context) {
    MP_RETURN_IF_ERROR(call.Run(context));
    CopyOrAdd<T>(own, added, n, y);
    if (bias != nullptr) AddToRows(bias, n / width, width, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> TensorRowsOf(const Binding& b) {
  const int64_t n = graph::Elements(b.OutputShape(0));
  return [own = b.Input<T>(0) + b.tensor_rank * n, added = b.Input<T>(1), y = b.Output<T>(0),
          n](const StepContext&) {
    CopyOrAdd<T>(own, added, n, y);
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> TensorGatherOf(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const BoundCall call, runtime::CallOf(b));
  const int64_t n = graph::Elements(b.InputShape(0));
  return [call, x = b.Input<T>(0), n,
          own = b.Output<T>(0) + b.tensor_rank * n](const StepContext& context) {
    std::copy_n(x, n, own);
    return call.Run(context);
  };
}

// What is known of rows of logits is fp32, whatever the model computes in.
absl::StatusOr<BoundOp> BindTensorGather(const Binding& b) {
  const graph::Value& x = b.program.graph.values[b.planned.op.inputs[0]];
  return x.dtype == DType::kF32 ? TensorGatherOf<float>(b) : TensorGatherOf<bf16>(b);
}

template <typename T>
absl::StatusOr<BoundOp> BiasBackwardOf(const Binding& b) {
  const graph::Shape& shape = b.InputShape(0);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(kernels::BiasGradientWorkspaceBytes(shape[0], shape[1])));
  return [dy = b.Input<T>(0), rows = shape[0], width = shape[1], dbias = b.Output<float>(0),
          accumulation = b.OutputAccumulation(0),
          workspace = b.Workspace()](const StepContext& context) {
    kernels::BiasGradient<T>(dy, rows, width, accumulation.At(context), dbias, workspace);
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CpuOp kTensorReduce = {.bind = MP_F32_OR_BF16(TensorReduceOf)};
constinit const CpuOp kTensorScatter = {.bind = MP_F32_OR_BF16(TensorScatterOf)};
constinit const CpuOp kTensorRows = {.bind = MP_F32_OR_BF16(TensorRowsOf)};
constinit const CpuOp kTensorGather = {.bind = BindTensorGather};
constinit const CpuOp kBiasBackward = {.bind = MP_F32_OR_BF16(BiasBackwardOf)};

}  // namespace milepost::ops::cpu
