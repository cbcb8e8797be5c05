// ResNet 18, 34, 50, 101, 152 and similar models in form "v1.5": a bottleneck has its stride in the
// 3x3 convolution. Forward only.
//
//   MP_ASSIGN_OR_RETURN(graph::Graph graph,
//                       models::BuildResNet(model, {.mode = Mode::kTraining, ...}));
//
// Inputs: "images" u8[B,S,S,3], where S is image_size, and "targets" i32[B]. There is one loss
// head, "class": cross-entropy with label smoothing. Evaluation uses the running statistics.
//
// Parameters and statistics have the names and shapes of Hugging Face's
// ResNetForImageClassification state dict: "resnet.embedder.embedder.convolution.weight"
// [64,3,7,7], "resnet.embedder.embedder.normalization.weight" [64], ".running_mean",
// ".running_var", ".num_batches_tracked",
// "resnet.encoder.stages.0.layers.0.shortcut.convolution.weight",
// "resnet.encoder.stages.0.layers.0.layer.0.convolution.weight", ..., "classifier.1.weight"
// [classes, features].
//
// Initial values: convolutions normal(0, sqrt(2 / (out k k))), as in He et al. 2015. The classifier
// is normal(0, sqrt(1 / (3 in))), the variance of torch's uniform one, with biases 0. Norms have
// weight 1 and bias 0; with zero_init_residual the last norm of a layer has weight 0. Blocks:
// "embedder", "stages.0.layers.0" ..., "classifier".
#ifndef MILEPOST_ENGINE_MODELS_RESNET_H_
#define MILEPOST_ENGINE_MODELS_RESNET_H_

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// `spec` must be normalised: `stages`, `bottleneck` and the other optional fields are set.
// options.batch counts images; options.sequence must be 1. INVALID_ARGUMENT names the field: sizes
// do not fit each other, or the mode is generation.
absl::StatusOr<graph::Graph> BuildResNet(const v1::ModelSpec& model, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_RESNET_H_
