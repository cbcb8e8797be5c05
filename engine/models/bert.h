// BERT and DistilBERT: post-norm encoder, learned positions and segments (DistilBERT has no
// segments), masked-language-model head with a decoder tied to the token embedding; GELU by the
// error function. No pooler. Forward only.
//
//   MP_ASSIGN_OR_RETURN(graph::Graph graph,
//                       models::BuildBert(model, {.mode = Mode::kTraining, ...}));
//
// Parameters have the names and shapes of Hugging Face's BertForMaskedLM state dict. Weights of
// linear layers have the output first: "bert.embeddings.word_embeddings.weight" [V,C], ...,
// "bert.encoder.layer.0.attention.self.query.weight" [C,C], ..., "cls.predictions.bias" [V]. The
// decoder is the word embeddings and has no entry of its own. Without segments they have those of
// DistilBertForMaskedLM: "distilbert.transformer.layer.0.attention.q_lin.weight" [C,C], ...,
// "vocab_projector.bias" [V].
//
// The head makes logits only where there is a target (ops::MaskedLmHeadLoss). Generation mode gives
// the logits of one position: which token the mask there may hide.
//
// Initial values: normal(0, 0.02), biases 0, LayerNorm weights 1. Blocks: "embeddings", "layer.0"
// ..., "head".
#ifndef MILEPOST_ENGINE_MODELS_BERT_H_
#define MILEPOST_ENGINE_MODELS_BERT_H_

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// `spec` must be normalised: optional fields are set. INVALID_ARGUMENT names the field: sizes do
// not fit each other.
absl::StatusOr<graph::Graph> BuildBert(const v1::ModelSpec& model, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_BERT_H_
