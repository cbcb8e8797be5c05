#include "engine/plan/cuda_workspace.h"

#include <algorithm>

#include "common/round_up.h"
#include "engine/plan/cuda_image_workspace.h"
#include "engine/plan/cuda_update_workspace.h"
#include "engine/plan/library_attention.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

constexpr int64_t kF32 = 4;

// kernels/cuda/norm_kernels.h: two partial sums of each column for each of its blocks.
int64_t NormBackwardBytes(const graph::Shape& x) {
  constexpr int64_t kMostBlocks = 528;
  return 2 * std::min(x[0], kMostBlocks) * x[1] * kF32;
}

// kernels/cuda/embedding_kernels.h: an order of the rows, and two partial sums for each 32 of them,
// whose place the two lists of 8-byte keys behind the order take first.
int64_t EmbeddingBackwardBytes(const graph::Shape& dy) {
  constexpr int64_t kRunRows = 32;
  constexpr int64_t kOrderTile = 1024;  // is sorted without keys in memory
  const int64_t runs = CeilDiv(dy[0], kRunRows);
  const int64_t keys = runs * kRunRows <= kOrderTile ? 0 : 2 * runs * kRunRows * 8;
  return runs * kRunRows * 4 + std::max(2 * runs * dy[1] * kF32, keys);
}

// kernels/cuda/qk_norm_kernels.h: two partial sums for each warp.
int64_t QkNormBackwardBytes(const graph::Shape& qkv, int64_t head_dim) {
  constexpr int64_t kWarps = 8;
  constexpr int64_t kMostBlocks = 132;
  const int64_t heads = qkv[0] * (qkv[1] / head_dim);
  return 2 * std::min(CeilDiv(heads, kWarps), kMostBlocks) * kWarps * head_dim * kF32;
}

// The same file: at most 256 blocks of at least 32 rows.
int64_t BiasGradientBytes(int64_t rows, int64_t width) {
  return CeilDiv(rows, std::max<int64_t>(32, CeilDiv(rows, 256))) * width * kF32;
}

// kernels/cuda/classifier_kernels.h: RowLoss.
int64_t CudaClassifierBytes(int64_t rows) { return rows * 16; }

int64_t HeadBytes(const graph::Graph& graph, const graph::Op& op) {
  const graph::Shape& x = graph.values[op.inputs[0]].shape;
  const int64_t vocabulary = graph.values[op.inputs[1]].shape[0];
  const int64_t element = ByteSize(graph.values[op.inputs[0]].dtype);
  if (op.kind == OpKind::kLmHeadLogits) return DeviceAligned(op.attributes.batch * x[1] * element);
  const int64_t rows =
      op.attributes.chunk_rows > 0 ? std::min(op.attributes.chunk_rows, x[0]) : x[0];
  const bool bias_gradient =
      op.kind == OpKind::kLmHeadLossBackward && op.inputs[3] != graph::kNoValue;
  const int64_t stride = CeilDiv(vocabulary * element, 16) * 16;  // bytes; rows begin at packs
  // Rows that are gathered, their targets, and the order of all.
  const bool gathers = op.kind == OpKind::kLmHeadLossBackward && op.attributes.gathers;
  const int64_t gathered = gathers ? DeviceAligned(rows * x[1] * element) +
                                         DeviceAligned(rows * 4) + DeviceAligned(x[0] * 4)
                                   : 0;
  return DeviceAligned(rows * stride) + DeviceAligned(CudaClassifierBytes(rows)) +
         (bias_gradient ? DeviceAligned(BiasGradientBytes(rows, vocabulary)) : 0) + gathered;
}

// The own kernels' row sums; where cuDNN may be taken, what its calls are known to keep
// (library_attention.h). A backend that is told more by the device plans again with
// min_attention_workspace_bytes.
int64_t CudaAttentionBytes(const graph::Graph& graph, const graph::Op& op,
                           const PlanOptions& options) {
  const graph::Value& qkv = graph.values[op.inputs[0]];
  const graph::Attributes& a = op.attributes;
  const bool backward = op.kind == OpKind::kAttentionBackward;
  const size_t documents = backward ? 4 : 1;
  const int64_t own = backward ? a.batch * a.sequence * a.heads * kF32 : 0;
  const LibraryAttention library = LibraryAttentionOf(
      {.batch = a.batch,
       .sequence = a.sequence,
       .heads = a.heads,
       .kv_heads = a.kv_heads,
       .head_dim = qkv.shape[1] / (a.heads + 2 * a.kv_heads),
       .element_bytes = ByteSize(qkv.dtype),
       .documents = documents < op.inputs.size() && op.inputs[documents] != graph::kNoValue,
       .exact = options.exact},
      options.attention_call_bytes);
  if (!library.taken) return DeviceAligned(own);
  const int64_t bytes = backward ? library.backward_bytes : library.forward_bytes;
  return DeviceAligned(std::max({own, bytes, options.min_attention_workspace_bytes}));
}

// runtime/cuda_backend/device_communicator.h: what a rounded sum sends, in bf16.
int64_t RoundedSumBytes(const FlatGroup& group, const graph::Op& op, const PlanOptions& options) {
  if (options.grad_reduce != DType::kBf16 || options.world == 1) return 0;
  const bool of_shard = op.kind == OpKind::kReduceReplicas;
  return DeviceAligned(2 * (of_shard ? group.shard_elements : group.padded_elements));
}

}  // namespace

int64_t CudaWorkspaceBytes(const graph::Graph& graph, const std::vector<FlatGroup>& groups,
                           const graph::Op& op, const PlanOptions& options) {
  const auto shape = [&](size_t input) -> const graph::Shape& {
    return graph.values[op.inputs[input]].shape;
  };
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
      return DeviceAligned(kCudaProductScratch);
    case OpKind::kLinearBackwardWeight: {
      const bool biases = static_cast<int64_t>(op.outputs.size()) > op.attributes.parts;
      const size_t dy = op.attributes.fp8 ? 4 : 1;
      return (biases ? DeviceAligned(BiasGradientBytes(shape(dy)[0], shape(dy)[1])) : 0) +
             DeviceAligned(kCudaProductScratch);
    }
    case OpKind::kLmHeadLogits:
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return HeadBytes(graph, op) + DeviceAligned(kCudaProductScratch);
    case OpKind::kEmbeddingBackward:
      return DeviceAligned(EmbeddingBackwardBytes(shape(1)));
    case OpKind::kLayerNormBackward:
    case OpKind::kResidualLayerNormBackward:
    case OpKind::kRmsNormBackward:
      return DeviceAligned(NormBackwardBytes(shape(0)));
    case OpKind::kQkNormBackward:
      return DeviceAligned(QkNormBackwardBytes(shape(0), shape(1)[0]));
    case OpKind::kAttention:
    case OpKind::kAttentionBackward:
      return CudaAttentionBytes(graph, op, options);
    case OpKind::kReduceGradients:
    case OpKind::kReduceReplicas:
      return RoundedSumBytes(groups[op.attributes.group], op, options);
    default:
      return DeviceAligned(CudaUpdateWorkspaceBytes(groups, op, options) +
                           CudaImageWorkspaceBytes(graph, op, options));
  }
}

}  // namespace milepost::plan
