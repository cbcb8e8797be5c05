// ResNet 18, 34, 50, 101, 152 and their like, "v1.5": the stride of a bottleneck is in its 3x3
// convolution. Forward only.
//
//   MP_ASSIGN_OR_RETURN(graph::Graph graph,
//                       models::BuildResNet(model, {.mode = Mode::kTraining, ...}));
//
// Inputs: "images" u8[B,S,S,3], S being image_size, and "targets" i32[B]. One loss head, "class":
// cross-entropy with label smoothing. Evaluation uses the running statistics.
//
// Parameters and statistics have the names and shapes of Hugging Face's
// ResNetForImageClassification state dict: "resnet.embedder.embedder.convolution.weight"
// [64,3,7,7], "resnet.embedder.embedder.normalization.weight" [64], ".running_mean",
// ".running_var", ".num_batches_tracked", "resnet.encoder.stages.0.layers.0.shortcut.convolution.
// weight", "resnet.encoder.stages.0.layers.0.layer.0.convolution.weight", ..., "classifier.1.
// weight" [classes, features].
//
// Initial values: convolutions normal(0, sqrt(2 / (out k k))), as He et al. 2015 have them; the
// classifier normal(0, sqrt(1 / (3 in))), which is the variance of torch's uniform one, and biases
// 0; norms 1 and 0, the last one of a layer 0 and 0 with zero_init_residual. Blocks: "embedder",
// "stages.0.layers.0" ..., "classifier".
#ifndef MILEPOST_ENGINE_MODELS_RESNET_H_
#define MILEPOST_ENGINE_MODELS_RESNET_H_

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// `spec` is normalised: `stages`, `bottleneck` and the other optional fields are set. In
// options.batch images; options.sequence is 1. INVALID_ARGUMENT, naming the field, when sizes do
// not fit each other; UNIMPLEMENTED for generation.
absl::StatusOr<graph::Graph> BuildResNet(const v1::ModelSpec& model, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_RESNET_H_
