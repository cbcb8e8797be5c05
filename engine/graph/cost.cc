#include "engine/graph/cost.h"

#include <algorithm>

namespace milepost::graph {
namespace {

double Bytes(const Value& value) {
  return static_cast<double>(Elements(value.shape) * ByteSize(value.dtype));
}

// Bytes of every operand, with the first `skip` inputs left out.
double OperandBytes(const Graph& graph, const Op& op, size_t skip = 0) {
  double bytes = 0;
  for (size_t i = skip; i < op.inputs.size(); ++i) {
    if (op.inputs[i] != kNoValue) bytes += Bytes(graph.values[op.inputs[i]]);
  }
  for (const Output& output : op.outputs) {
    if (output.value == kNoValue) continue;
    const bool also_read = output.mode != WriteMode::kAssign;
    bytes += Bytes(graph.values[output.value]) * (also_read ? 2 : 1);
  }
  return bytes;
}

double Product(const Shape& a, int64_t columns) {
  return 2.0 * static_cast<double>(Elements(a)) * static_cast<double>(columns);
}

// One product of T x T scores per head, or one with them: under the causal mask half of it,
// diagonal included. Where documents end is not known before they are read: counted as if nowhere.
double AttentionProduct(const Graph& graph, const Op& op) {
  const bool forward = op.kind == OpKind::kAttention;
  const ValueId out = forward ? op.outputs[0].value : op.inputs[1];
  const double width = static_cast<double>(graph.values[out].shape[1]);
  const double sequence = static_cast<double>(op.attributes.sequence);
  return static_cast<double>(op.attributes.batch) * sequence *
         (op.attributes.causal ? sequence + 1 : 2 * sequence) * width;
}

// Logits of every row. Where only rows with a target have some, how many those are is not known
// before they are read: counted as if they were one chunk.
double HeadProduct(const Graph& graph, const Op& op) {
  const int64_t rows =
      op.attributes.gathers ? op.attributes.chunk_rows : graph.values[op.inputs[0]].shape[0];
  return Product(graph.values[op.inputs[1]].shape, rows);
}

double Flops(const Graph& graph, const Op& op) {
  const auto shape = [&](size_t input) -> const Shape& {
    return graph.values[op.inputs[input]].shape;
  };
  switch (op.kind) {
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
      return Product(shape(0), graph.values[op.outputs.back().value].shape[1]);
    case OpKind::kLinearBackwardWeight:
      return Product(shape(0), shape(1)[op.attributes.fp8 ? 0 : 1]);
    case OpKind::kConvolution:  // every element of y: a sum over the input channels of a window
      return 2 * static_cast<double>(Elements(graph.values[op.outputs[0].value].shape)) *
             static_cast<double>(Elements(shape(1)) / shape(1)[0]);
    case OpKind::kConvolutionBackwardData:  // dy, w
      return 2 * static_cast<double>(Elements(shape(0))) *
             static_cast<double>(Elements(shape(1)) / shape(1)[0]);
    case OpKind::kConvolutionBackwardWeights: {  // x, dy
      const Shape& w = graph.values[op.outputs[0].value].shape;
      return 2 * static_cast<double>(Elements(shape(1))) * static_cast<double>(Elements(w) / w[0]);
    }
    case OpKind::kAttention:  // scores; probabilities times values
      return 2 * AttentionProduct(graph, op);
    case OpKind::kCachedAttention: {  // the same, as if the cache were full
      const Shape& cache = shape(2);
      return 4 * static_cast<double>(Elements(graph.values[op.outputs[0].value].shape)) *
             static_cast<double>(cache[2]);
    }
    case OpKind::kAttentionBackward:  // scores again, dP, dV, dQ, dK
      return 5 * AttentionProduct(graph, op);
    case OpKind::kLmHeadLoss:
      return HeadProduct(graph, op);
    case OpKind::kLmHeadLossBackward:  // logits, dx, dwte
      return 3 * HeadProduct(graph, op);
    case OpKind::kLmHeadLogits:
      return 2.0 * static_cast<double>(op.attributes.batch * Elements(shape(1)));
    default:
      return 0;
  }
}

double EmbeddingBytes(const Graph& graph, const Op& op) {
  const double rows = Bytes(graph.values[op.inputs[0]]);
  if (op.kind == OpKind::kEmbedding) {  // a row of each table read, one written
    const int tables = 1 + (op.inputs[2] != kNoValue) + (op.inputs[4] != kNoValue);
    return rows + (tables + 1) * Bytes(graph.values[op.outputs[0].value]);
  }
  // An f32 row of each read and written.
  const int tables = 1 + (op.outputs[1].value != kNoValue) + (op.outputs[2].value != kNoValue);
  const Value& dx = graph.values[op.inputs[1]];
  return rows + Bytes(dx) +
         2.0 * tables * static_cast<double>(Elements(dx.shape) * ByteSize(DType::kF32));
}

}  // namespace

Cost OpCost(const Graph& graph, const Op& op) {
  switch (op.kind) {
    case OpKind::kReduceGradients:
    case OpKind::kRoundGradients:
    case OpKind::kGradNorm:
    case OpKind::kReduceScalars:
    case OpKind::kOptimizer:
    case OpKind::kGatherParameters:
    case OpKind::kReduceReplicas:
    case OpKind::kUpdateNorms:
    case OpKind::kReduceUpdateNorms:
    case OpKind::kMuonMomentum:
    case OpKind::kGatherUpdates:
    case OpKind::kOrthogonalize:
    case OpKind::kScatterUpdates:
    case OpKind::kAverageStatistics:
    case OpKind::kGradientsToHost:
    case OpKind::kScalarsToHost:
    case OpKind::kParametersToDevice:
    case OpKind::kReadState:
    case OpKind::kWriteState:
    case OpKind::kGatherAmaxes:
    case OpKind::kUpdateScalings:
      return {};
    case OpKind::kEmbedding:
    case OpKind::kEmbeddingBackward:
      return {.bytes = EmbeddingBytes(graph, op)};
    case OpKind::kLmHeadLogits:
      return {.flops = Flops(graph, op), .bytes = OperandBytes(graph, op, 1)};
    default:
      return {.flops = Flops(graph, op), .bytes = OperandBytes(graph, op)};
  }
}

}  // namespace milepost::graph
