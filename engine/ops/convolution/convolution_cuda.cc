#include "engine/ops/convolution/convolution_cuda.h"

#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/ops/convolution/convolution_binding.h"
#include "engine/runtime/executor/image_ops.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using kernels::ConvolutionPass;
using kernels::ConvolutionSpec;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::StepContext;

// The weights' gradient comes in the activations' type, in the workspace, and is added to the fp32
// one, or becomes it.
template <typename T>
struct WeightGradient {
  absl::Status Run(bool accumulate) const {
    MP_RETURN_IF_ERROR(graphs->Convolution(spec, ConvolutionPass::kBackwardWeights, {x, dy, part},
                                           scratch, stream));
    const int64_t n = spec.WeightElements();
    return accumulate ? cuda::Accumulate(part, n, dw, stream) : cuda::Cast(part, n, dw, stream);
  }

  cuda::NeuralGraphs* graphs;
  ConvolutionSpec spec;
  const void* x;
  const void* dy;
  T* part;
  void* scratch;
  float* dw;
  cudaStream_t stream;
};

template <typename T>
BoundOp WeightGradientOf(const CudaBinding& b, const ConvolutionSpec& spec) {
  const int64_t before = ConvolutionBytesBeforeScratch(b.program.graph, b.planned.op);
  const WeightGradient<T> gradient = {.graphs = b.services.graphs,
                                      .spec = spec,
                                      .x = b.Input<char>(0),
                                      .dy = b.Input<char>(1),
                                      .part = reinterpret_cast<T*>(b.Workspace()),
                                      .scratch = b.Workspace() + before,
                                      .dw = b.Output<float>(0),
                                      .stream = b.stream()};
  return [gradient, accumulation = b.OutputAccumulation(0)](const StepContext& context) {
    return gradient.Run(accumulation.At(context));
  };
}

template <typename T>
absl::StatusOr<BoundOp> ConvolutionOf(const CudaBinding& b) {
  const ConvolutionSpec spec = ConvolutionSpecOf(b.program.graph, b.planned.op);
  const ConvolutionPass pass = ConvolutionPassOf(b.planned.op.kind);
  MP_ASSIGN_OR_RETURN(const int64_t bytes, b.services.graphs->WorkspaceBytes(spec, pass));
  MP_RETURN_IF_ERROR(
      b.RequireWorkspace(ConvolutionBytesBeforeScratch(b.program.graph, b.planned.op) + bytes));
  if (pass == ConvolutionPass::kBackwardWeights) return WeightGradientOf<T>(b, spec);
  return [graphs = b.services.graphs, spec, pass, first = b.Input<char>(0),
          second = b.Input<char>(1), result = b.Output<char>(0), workspace = b.Workspace(),
          stream = b.stream()](const StepContext&) {
    return graphs->Convolution(spec, pass, {first, second, result}, workspace, stream);
  };
}

}  // namespace

int64_t ConvolutionBytesBeforeScratch(const graph::Graph& graph, const graph::Op& op) {
  if (op.kind != OpKind::kConvolutionBackwardWeights) return 0;
  return DeviceAligned(ConvolutionSpecOf(graph, op).WeightElements() *
                       ByteSize(graph.values[op.inputs[0]].dtype));
}

constinit const CudaOp kConvolution = {.bind = MP_F32_OR_BF16(ConvolutionOf)};
constinit const CudaOp kConvolutionBackwardData = {.bind = MP_F32_OR_BF16(ConvolutionOf)};
constinit const CudaOp kConvolutionBackwardWeights = {.bind = MP_F32_OR_BF16(ConvolutionOf)};

}  // namespace milepost::ops::gpu
