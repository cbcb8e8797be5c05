#include "engine/plan/workspace.h"

#include <algorithm>

#include "common/round_up.h"
#include "engine/plan/cuda_workspace.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr int64_t kHostAlignment = 64;

// kernels/cpu/column_sum.h: rows are summed in blocks of at least 16, at most 64 of them, one f32
// partial of whole cache lines each.
int64_t ColumnSumBytes(int64_t rows, int64_t width) {
  const int64_t block = std::max<int64_t>(16, (rows + 63) / 64);
  return (rows + block - 1) / block * RoundUp(width, 16) * 4;
}

// kernels/cpu/classifier.h: an f64 loss per row.
int64_t ClassifierBytes(int64_t rows) { return rows * 9; }  // a loss, and whether it is right

// kernels/cpu/optimizer.h: an f64 sum per block.
int64_t SumSquaresBytes(int64_t elements) { return (elements + 4095) / 4096 * 8; }

// kernels/cpu/attention_layout.h: one thread's arrays for one head, each whole cache lines. With
// f32 elements, as which halves are packed, some arrays serve twice.
int64_t AttentionBytesPerThread(const graph::Op& op, int64_t sequence, int64_t dim, DType dtype) {
  constexpr int64_t kBlock = 64;
  constexpr int64_t kKeyTile = 256;
  const bool f32 = dtype != DType::kBf16;
  const int64_t element = f32 ? 4 : 2;
  const int64_t padded = RoundUp(sequence, kBlock);
  const int64_t padded_dim = RoundUp(dim, 16);
  const auto elements = [&](int64_t count) { return RoundUp(count * element, kHostAlignment); };
  const auto floats = [](int64_t count) { return RoundUp(count * 4, kHostAlignment); };
  if (op.kind != OpKind::kAttentionBackward) {
    return 2 * elements(padded * dim) + 2 * elements(kBlock * dim) + floats(kKeyTile * kBlock) +
           (f32 ? 0 : elements(kKeyTile * kBlock)) + 2 * floats(dim * kBlock);
  }
  const bool grouped = op.attributes.kv_heads < op.attributes.heads;
  return (f32 ? 4 : 5) * elements(padded * dim) + elements(kBlock * dim) +
         2 * elements(padded * padded_dim) + 2 * floats(padded) + floats(padded * dim) +
         2 * floats((grouped ? padded : kBlock) * padded_dim) +
         (grouped ? floats(kBlock * dim) : 0) + 2 * floats(kBlock * kBlock) +
         (f32 ? 0 : 3 * elements(kBlock * kBlock));
}

int64_t AttentionBytes(const graph::Graph& graph, const graph::Op& op, const PlanOptions& options) {
  const graph::Value& qkv = graph.values[op.inputs[0]];
  const int64_t dim = qkv.shape[1] / (op.attributes.heads + 2 * op.attributes.kv_heads);
  // kernels/cpu/cached_attention.h: one tile of keys at a time; none for a single row.
  constexpr int64_t kKeyTile = 256;
  const bool cached = op.kind == OpKind::kCachedAttention;
  if (cached && qkv.shape[0] == 1) return 0;
  const int64_t sequence = cached ? kKeyTile : op.attributes.sequence;
  return options.threads * AttentionBytesPerThread(op, sequence, dim, qkv.dtype);
}

// Several biases lie side by side in front of the product's scratch.
int64_t PackedBiasBytes(const graph::Graph& graph, const graph::Op& op) {
  const int64_t biases = static_cast<int64_t>(op.inputs.size()) - 1 - op.attributes.parts;
  const graph::Value& y = graph.values[op.outputs.back().value];
  return biases > 1 ? RoundUp(y.shape[1] * ByteSize(y.dtype), kHostAlignment) : 0;
}

// kernels/cpu/batch_norm.h: five floats per channel, and two f64 sums per channel of each block.
int64_t BatchNormBytes(const graph::Shape& images) {
  const int64_t rows = graph::Elements(images) / images[3];
  const int64_t block = std::max<int64_t>(16, (rows + 63) / 64);
  return RoundUp(images[3], 16) * (5 * 4 + (rows + block - 1) / block * 16);
}

// kernels/cpu/convolution.h: weights, or their gradient, in oneDNN's layout, channels filled up to
// whole blocks; then its own scratch, as measured with oneDNN 2.6: at most five bytes per element
// of an image of input and of output for each thread and, for the weights' gradient, that in f32.
int64_t ConvolutionBytes(const graph::Graph& graph, const graph::Op& op,
                         const PlanOptions& options) {
  constexpr int64_t kBlock = 64;
  constexpr int64_t kFixed = 256 << 10;
  const auto shape = [&](graph::ValueId id) -> const graph::Shape& {
    return graph.values[id].shape;
  };
  const graph::ImageAttributes& image = op.attributes.image;
  const bool forward = op.kind == OpKind::kConvolution;
  const bool data = op.kind == OpKind::kConvolutionBackwardData;
  const graph::Shape& x = shape(data ? op.outputs[0].value : op.inputs[0]);
  const graph::Shape& y = shape(forward ? op.outputs[0].value : op.inputs[data ? 0 : 1]);
  const int64_t weights =
      RoundUp(x[3], kBlock) * RoundUp(y[3], kBlock) * image.kernel * image.kernel;
  const int64_t element = ByteSize(graph.values[op.inputs[0]].dtype);
  int64_t scratch = options.threads * kFixed;
  if (!forward) {
    scratch +=
        options.threads * 5 * (graph::Elements(x) / x[0] + RoundUp(y[3], kBlock) * y[1] * y[2]);
  }
  if (!forward && !data) scratch += options.threads * 4 * weights;
  // Without AVX-512 oneDNN gathers what a 1x1 kernel with a stride reads, an image for each thread.
  if (image.kernel == 1 && image.stride > 1) scratch += options.threads * 4 * y[1] * y[2] * x[3];
  int64_t packed = weights * (forward || data ? element : 4);
  if (element < 4) {  // a CPU without bf16 products widens (kernels/cpu/convolution_widened.h)
    const int64_t elements = graph::Elements(x) / x[0] + graph::Elements(y) / y[0];
    const int64_t images = std::clamp<int64_t>((2 << 20) / elements, 1, x[0]);
    packed = 4 * (weights + images * elements + x[3] * y[3] * image.kernel * image.kernel) +
             3 * kHostAlignment;
  }
  return RoundUp(std::max(packed + scratch, options.min_convolution_workspace_bytes),
                 kHostAlignment);
}

int64_t BiasGradientBytes(const graph::Shape& dy, const graph::Op& op) {
  const int64_t biases = static_cast<int64_t>(op.outputs.size()) - op.attributes.parts;
  if (biases == 0) return 0;
  const int64_t packed = biases > 1 ? RoundUp(dy[1] * 4, kHostAlignment) : 0;
  return RoundUp(ColumnSumBytes(dy[0], dy[1]), kHostAlignment) + packed;
}

// ops/linear/linear_fp8_cpu.cc: both operands in bf16, and the biases' gradients.
int64_t Fp8Bytes(const graph::Graph& graph, const graph::Op& op) {
  const auto shape = [&](size_t input) -> const graph::Shape& {
    return graph.values[op.inputs[input]].shape;
  };
  const int64_t operands = RoundUp(2 * graph::Elements(shape(0)), kHostAlignment) +
                           RoundUp(2 * graph::Elements(shape(1)), kHostAlignment);
  const bool biases = op.kind == OpKind::kLinearBackwardWeight && op.inputs.size() > 4;
  return operands + (biases ? BiasGradientBytes(shape(4), op) : 0);
}

// kernels/cpu/lamb.h: a pair of f64 sums per block of a tensor.
int64_t UpdateNormsBytes(int64_t elements) { return (elements + 4095) / 4096 * 16; }

// kernels/cpu/muon.h: two squares of the smaller side and a copy of the matrix, whose place the
// norm's sums take first; where these are rounded, a square of sums; then the products' scratch.
int64_t OrthogonalizeBytes(const FlatGroup& group) {
  int64_t most = 0;
  for (const GroupParameter& p : group.parameters) {
    const int64_t side = std::min(p.shape[0], p.shape[1]);
    const int64_t element = ByteSize(group.product_dtype);
    const int64_t copy = std::max(RoundUp(p.elements * element, kHostAlignment),
                                  RoundUp(SumSquaresBytes(p.elements), kHostAlignment));
    const int64_t sums = element == 4 ? 0 : RoundUp(side * side * 4, kHostAlignment);
    most = std::max(most, copy + 2 * RoundUp(side * side * element, kHostAlignment) + sums);
  }
  return most;
}

int64_t LmHeadBytes(const graph::Graph& graph, const graph::Op& op) {
  const graph::Shape& wte = graph.values[op.inputs[1]].shape;
  const int64_t rows = op.attributes.chunk_rows;
  const int64_t element = ByteSize(graph.values[op.inputs[1]].dtype);
  int64_t bytes = RoundUp(rows * wte[0] * element, kHostAlignment) +
                  RoundUp(ClassifierBytes(rows), kHostAlignment);
  if (op.kind == OpKind::kLmHeadLossBackward && op.outputs[3].value != graph::kNoValue) {
    bytes += RoundUp(ColumnSumBytes(rows, wte[0]), kHostAlignment);
  }
  if (op.attributes.gathers) {  // the rows, their numbers and their targets
    bytes +=
        RoundUp(rows * wte[1] * element, kHostAlignment) + 2 * RoundUp(rows * 4, kHostAlignment);
  }
  return bytes;
}

}  // namespace

int64_t WorkspaceBytes(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                       const graph::Op& op, const PlanOptions& options) {
  if (options.device == DeviceKind::kCuda) return CudaWorkspaceBytes(graph, groups, op, options);
  const auto shape = [&](size_t input) -> const graph::Shape& {
    return graph.values[op.inputs[input]].shape;
  };
  const int64_t product = RoundUp(options.min_matmul_workspace_bytes, kHostAlignment);
  if (op.attributes.fp8) return Fp8Bytes(graph, op) + product;
  switch (op.kind) {
    case OpKind::kLinear:
      return PackedBiasBytes(graph, op) + product;
    case OpKind::kLinearBackwardInput:
    case OpKind::kLmHeadLogits:
      return product;
    case OpKind::kLinearBackwardWeight:
      return BiasGradientBytes(shape(1), op) + product;
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return LmHeadBytes(graph, op) + product;
    case OpKind::kLayerNormBackward:
    case OpKind::kResidualLayerNormBackward:  // dgamma and dbeta
      return RoundUp(2 * ColumnSumBytes(shape(0)[0], shape(0)[1]), kHostAlignment);
    case OpKind::kRmsNormBackward:  // dgamma
      return RoundUp(ColumnSumBytes(shape(0)[0], shape(0)[1]), kHostAlignment);
    case OpKind::kQkNormBackward:  // dgamma_q and dgamma_k
      return RoundUp(2 * ColumnSumBytes(shape(0)[0], shape(1)[0]), kHostAlignment);
    case OpKind::kConvolution:
    case OpKind::kConvolutionBackwardData:
    case OpKind::kConvolutionBackwardWeights:
      return ConvolutionBytes(graph, op, options);
    case OpKind::kBatchNormSums:
    case OpKind::kBatchNorm:
    case OpKind::kBatchNormBackwardSums:
    case OpKind::kBatchNormBackward:
      return RoundUp(BatchNormBytes(shape(0)), kHostAlignment);
    case OpKind::kClassifierLoss:
    case OpKind::kClassifierLossBackward:
      return RoundUp(ClassifierBytes(shape(0)[0]), kHostAlignment);
    case OpKind::kAttention:
    case OpKind::kCachedAttention:
    case OpKind::kAttentionBackward:
      return RoundUp(AttentionBytes(graph, op, options), kHostAlignment);
    case OpKind::kUpdateNorms:
      return RoundUp(UpdateNormsBytes(groups[op.attributes.group].shard_elements), kHostAlignment);
    case OpKind::kOrthogonalize:
      return OrthogonalizeBytes(groups[op.attributes.group]) + product;
    case OpKind::kGradNorm: {
      const int64_t slice = groups[op.attributes.group].padded_elements / options.world;
      return RoundUp(SumSquaresBytes(slice), kHostAlignment);
    }
    default:
      return 0;
  }
}

int64_t MatmulWorkspaceReserve(int threads, DType dtype, int64_t chunk_rows, int64_t width,
                               int64_t vocabulary) {
  constexpr int64_t kBytesPerThread = 2 << 20;
  constexpr int64_t kLongInner = 16384;  // bf16 products this deep are summed in fp32 pieces
  const bool partial = dtype == DType::kBf16 && vocabulary > kLongInner;
  // With the above, what kernels/cpu/matmul_widened.h takes; which CPU will run it is unknown here.
  constexpr int64_t kPieceElements = 512 * 1024 + 1024 * 1024 + 1024 + 512 * 1024;
  const int64_t pieces = dtype == DType::kF32 ? 0 : 4 * kPieceElements;
  return threads * kBytesPerThread + pieces +
         (partial ? RoundUp(chunk_rows * width * 4, kHostAlignment) : 0);
}

int64_t LmHeadChunkRows(int64_t rows, int64_t vocabulary, DType dtype, int64_t chunk_bytes) {
  const int64_t fitting =
      std::max<int64_t>(16, chunk_bytes / (vocabulary * ByteSize(dtype)) / 16 * 16);
  const int64_t chunks = (rows + fitting - 1) / fitting;
  return std::min(rows, RoundUp((rows + chunks - 1) / chunks, 16));
}

}  // namespace milepost::plan
