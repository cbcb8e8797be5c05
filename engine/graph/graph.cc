#include "engine/graph/graph.h"

#include "common/check.h"

namespace milepost::graph {

int64_t ByteSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return 1;
  }
  MP_CHECK(false) << "unknown dtype " << static_cast<int>(dtype);
  return 0;
}

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kF64:
      return "F64";
    case DType::kI32:
      return "I32";
    case DType::kU8:
      return "U8";
    case DType::kI64:
      return "I64";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
  }
  return "unknown";
}

int64_t Elements(const Shape& shape) {
  int64_t elements = 1;
  for (int64_t dimension : shape) elements *= dimension;
  return elements;
}

const char* Name(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbedding:
      return "embedding";
    case OpKind::kLayerNorm:
      return "layer_norm";
    case OpKind::kResidualLayerNorm:
      return "residual_layer_norm";
    case OpKind::kRmsNorm:
      return "rms_norm";
    case OpKind::kResidualRmsNorm:
      return "residual_rms_norm";
    case OpKind::kLinear:
      return "linear";
    case OpKind::kGelu:
      return "gelu";
    case OpKind::kSwiGlu:
      return "swiglu";
    case OpKind::kRopeTable:
      return "rope_table";
    case OpKind::kRope:
      return "rope";
    case OpKind::kQkNorm:
      return "qk_norm";
    case OpKind::kDropout:
      return "dropout";
    case OpKind::kAttention:
      return "attention";
    case OpKind::kCachedAttention:
      return "cached_attention";
    case OpKind::kLmHeadLoss:
      return "lm_head_loss";
    case OpKind::kLmHeadLogits:
      return "lm_head_logits";
    case OpKind::kEmbeddingBackward:
      return "embedding_backward";
    case OpKind::kLayerNormBackward:
      return "layer_norm_backward";
    case OpKind::kResidualLayerNormBackward:
      return "residual_layer_norm_backward";
    case OpKind::kRmsNormBackward:
      return "rms_norm_backward";
    case OpKind::kLinearBackwardInput:
      return "linear_backward_input";
    case OpKind::kLinearBackwardWeight:
      return "linear_backward_weight";
    case OpKind::kGeluBackward:
      return "gelu_backward";
    case OpKind::kSwiGluBackward:
      return "swiglu_backward";
    case OpKind::kRopeBackward:
      return "rope_backward";
    case OpKind::kQkNormBackward:
      return "qk_norm_backward";
    case OpKind::kAttentionBackward:
      return "attention_backward";
    case OpKind::kLmHeadLossBackward:
      return "lm_head_loss_backward";
    case OpKind::kNormalizeImages:
      return "normalize_images";
    case OpKind::kConvolution:
      return "convolution";
    case OpKind::kBatchNormSums:
      return "batch_norm_sums";
    case OpKind::kReduceStatistics:
      return "reduce_statistics";
    case OpKind::kBatchNormStatistics:
      return "batch_norm_statistics";
    case OpKind::kBatchNormRunning:
      return "batch_norm_running";
    case OpKind::kBatchNorm:
      return "batch_norm";
    case OpKind::kMaxPool:
      return "max_pool";
    case OpKind::kAveragePool:
      return "average_pool";
    case OpKind::kClassifierLoss:
      return "classifier_loss";
    case OpKind::kClassifierLossBackward:
      return "classifier_loss_backward";
    case OpKind::kConvolutionBackwardData:
      return "convolution_backward_data";
    case OpKind::kConvolutionBackwardWeights:
      return "convolution_backward_weights";
    case OpKind::kBatchNormBackwardSums:
      return "batch_norm_backward_sums";
    case OpKind::kBatchNormBackward:
      return "batch_norm_backward";
    case OpKind::kMaxPoolBackward:
      return "max_pool_backward";
    case OpKind::kAveragePoolBackward:
      return "average_pool_backward";
    case OpKind::kQuantize:
      return "quantize";
    case OpKind::kGatherAmaxes:
      return "gather_amaxes";
    case OpKind::kUpdateScalings:
      return "update_scalings";
    case OpKind::kAverageStatistics:
      return "average_statistics";
    case OpKind::kReduceGradients:
      return "reduce_gradients";
    case OpKind::kRoundGradients:
      return "round_gradients";
    case OpKind::kGradNorm:
      return "grad_norm";
    case OpKind::kReduceScalars:
      return "reduce_scalars";
    case OpKind::kOptimizer:
      return "optimizer";
    case OpKind::kUpdateNorms:
      return "update_norms";
    case OpKind::kReduceUpdateNorms:
      return "reduce_update_norms";
    case OpKind::kMuonMomentum:
      return "muon_momentum";
    case OpKind::kGatherUpdates:
      return "gather_updates";
    case OpKind::kOrthogonalize:
      return "orthogonalize";
    case OpKind::kScatterUpdates:
      return "scatter_updates";
    case OpKind::kReduceReplicas:
      return "reduce_replicas";
    case OpKind::kGatherParameters:
      return "gather_parameters";
    case OpKind::kGradientsToHost:
      return "gradients_to_host";
    case OpKind::kScalarsToHost:
      return "scalars_to_host";
    case OpKind::kParametersToDevice:
      return "parameters_to_device";
    case OpKind::kReadState:
      return "read_state";
    case OpKind::kWriteState:
      return "write_state";
    case OpKind::kCopyToHost:
      return "copy_to_host";
    case OpKind::kCopyToDevice:
      return "copy_to_device";
  }
  return "unknown";
}

ValueId Graph::Input(absl::string_view name) const {
  for (const ValueId input : inputs) {
    if (values[input].name == name) return input;
  }
  return kNoValue;
}

}  // namespace milepost::graph
