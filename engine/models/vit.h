// Vision Transformers (Dosovitskiy et al. 2021), such as ViT-B/16: patches of an image as tokens
// behind a class token, learned positions, pre-norm encoder, GELU by the error function; the class
// token's final state is classified. No pooler. Forward only.
//
//   MP_ASSIGN_OR_RETURN(graph::Graph graph,
//                       models::BuildVit(model, {.mode = Mode::kTraining, ...}));
//
// Inputs: "images" u8[B,S,S,3], where S is image_size, and "targets" i32[B]. There is one loss
// head, "class": cross-entropy with label smoothing.
//
// Parameters have the names and shapes of files of Hugging Face's ViTForImageClassification:
// "vit.embeddings.cls_token" [1,1,C], "vit.embeddings.position_embeddings" [1,1+patches,C],
// "vit.embeddings.patch_embeddings.projection.weight" [C,3,p,p],
// "vit.encoder.layer.0.attention.attention.query.weight" [C,C], ..., "vit.layernorm.weight" [C],
// "classifier.weight" [classes,C].
//
// Initial values: normal(0, 0.02), biases 0, LayerNorm weights 1. Blocks: "embeddings", "layer.0"
// ..., "head".
#ifndef MILEPOST_ENGINE_MODELS_VIT_H_
#define MILEPOST_ENGINE_MODELS_VIT_H_

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// `spec` must be normalised: optional fields are set. options.batch counts images;
// options.sequence must be 1. INVALID_ARGUMENT names the field: sizes do not fit each other, or the
// mode is generation.
absl::StatusOr<graph::Graph> BuildVit(const v1::ModelSpec& model, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_VIT_H_
