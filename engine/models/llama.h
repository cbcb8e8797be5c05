// Llama 3, Mistral, Qwen2, Qwen3, Gemma, OLMo 2 and similar models: norms are RMSNorm, rotary
// positions, SwiGLU, grouped query attention, over a window or over all before, the head tied or
// not, one MLP or experts. Forward only.
//
//   MP_ASSIGN_OR_RETURN(graph::Graph graph,
//                       models::BuildLlama(model, {.mode = Mode::kTraining, ...}));
//
// Parameters have the names and shapes of Hugging Face's LlamaForCausalLM state dict. Weights of
// linear layers have the output first: "model.embed_tokens.weight" [V,C],
// "model.layers.0.input_layernorm.weight" [C], "model.layers.0.self_attn.q_proj.weight" [HD,C],
// ..., "model.norm.weight" [C]. "lm_head.weight" [V,C] exists when the head is not tied. With
// qk_norm there are "...self_attn.q_norm.weight" and "...k_norm.weight" [D], with wide_qk_norm
// these are [HD] and [GD]. With post_norms "...post_attention_layernorm.weight" is of what
// attention gives, and the MLP's norms are "...pre_feedforward_layernorm.weight" and
// "...post_feedforward_layernorm.weight". Without pre_norms there is neither the last but one nor
// "...input_layernorm.weight". With experts a layer has Mixtral's names, or with qk_norm those of
// Qwen3's mixtures: the router "...block_sparse_moe.gate.weight" [E,C] and expert e's
// "...experts.e.w1.weight", w3 (gate and up) and w2 (down), or "...mlp.gate.weight" and
// "...experts.e.gate_proj.weight", up_proj and down_proj. When several layers read one input (q, k
// and v; gate and up), their weights follow each other in the block, so that one product serves
// them.
//
// Initial values: normal(0, 0.02); residual projections (o_proj, down_proj) normal(0,
// 0.02 / sqrt(2 layers)); biases 0; norm weights 1, or 0 with norm_offset. Blocks:
// "embedding", "layers.0" ..., "norm" (the last norm and the untied head).
#ifndef MILEPOST_ENGINE_MODELS_LLAMA_H_
#define MILEPOST_ENGINE_MODELS_LLAMA_H_

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// `spec` must be normalised: optional fields are set. INVALID_ARGUMENT names the field: sizes do
// not fit each other.
absl::StatusOr<graph::Graph> BuildLlama(const v1::ModelSpec& model, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_LLAMA_H_
