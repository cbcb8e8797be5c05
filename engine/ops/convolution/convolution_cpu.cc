#include "common/status_macros.h"
#include "engine/ops/convolution/convolution_binding.h"
#include "engine/ops/convolution/convolution_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_op.h"

namespace milepost::ops::cpu {
namespace {

using graph::OpKind;
using kernels::ConvolutionPass;
using kernels::ConvolutionSpec;
using runtime::Binding;
using runtime::BoundOp;
using runtime::StepContext;

absl::StatusOr<int64_t> ConvolutionBytes(const graph::Graph& graph, const graph::Op& op,
                                         kernels::ConvolutionCache& convolutions) {
  MP_ASSIGN_OR_RETURN(const size_t bytes, convolutions.WorkspaceBytes(ConvolutionSpecOf(graph, op),
                                                                      ConvolutionPassOf(op.kind)));
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<BoundOp> BindConvolution(const Binding& b) {
  MP_ASSIGN_OR_RETURN(const int64_t bytes,
                      ConvolutionBytes(b.program.graph, b.planned.op, b.convolutions));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(bytes));
  const ConvolutionSpec spec = ConvolutionSpecOf(b.program.graph, b.planned.op);
  kernels::ConvolutionCache* cache = &b.convolutions;
  const char* first = b.Input<char>(0);
  const char* second = b.Input<char>(1);
  char* out = b.Output<char>(0);
  char* workspace = b.Workspace();
  switch (b.planned.op.kind) {
    case OpKind::kConvolution:
      return
          [=](const StepContext&) { return cache->Forward(spec, first, second, out, workspace); };
    case OpKind::kConvolutionBackwardData:
      return [=](const StepContext&) {
        return cache->BackwardData(spec, first, second, out, workspace);
      };
    default:
      return [=, accumulation = b.OutputAccumulation(0)](const StepContext& context) {
        return cache->BackwardWeights(spec, first, second, accumulation.At(context),
                                      reinterpret_cast<float*>(out), workspace);
      };
  }
}

}  // namespace

constinit const CpuOp kConvolution = {.bind = BindConvolution,
                                      .convolution_bytes = ConvolutionBytes};
constinit const CpuOp kConvolutionBackwardData = {.bind = BindConvolution,
                                                  .convolution_bytes = ConvolutionBytes};
constinit const CpuOp kConvolutionBackwardWeights = {.bind = BindConvolution,
                                                     .convolution_bytes = ConvolutionBytes};

}  // namespace milepost::ops::cpu
