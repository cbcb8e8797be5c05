// GPT-2: pre-norm, learned positions, tied head, tanh GELU. Forward only.
//
//   MP_ASSIGN_OR_RETURN(graph::Graph graph,
//                       models::BuildGpt2(model, {.mode = Mode::kTraining, ...}));
//
// Parameters have the names and shapes of Hugging Face's GPT2LMHeadModel state dict. So a
// safetensors file with them loads with `from_pretrained` unchanged: "transformer.wte.weight"
// [V,C], "transformer.wpe.weight" [P,C], "transformer.h.0.ln_1.weight" [C],
// "transformer.h.0.attn.c_attn.weight" [C,3C] (Conv1D: input first), ... "transformer.ln_f.bias".
// The head is tied to wte and has no entry of its own. The hub's own gpt2 file is that of the bare
// GPT2Model: it has the same names without "transformer.".
//
// Initial values: normal(0, 0.02); residual projections (attn.c_proj, mlp.c_proj) normal(0, 0.02 /
// sqrt(2 layers)); biases 0; LayerNorm weights 1. Blocks: "embedding" (wte, wpe), "h.0" ...,
// "ln_f".
#ifndef MILEPOST_ENGINE_MODELS_GPT2_H_
#define MILEPOST_ENGINE_MODELS_GPT2_H_

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// INVALID_ARGUMENT names the field: sizes do not fit each other.
absl::StatusOr<graph::Graph> BuildGpt2(const v1::ModelSpec& model, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_GPT2_H_
