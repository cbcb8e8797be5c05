#!/usr/bin/env python3
"""Makes llama_curve.json: 20 training steps of tiny Llamas in Hugging Face transformers, fp32.

    python3 tests/golden/make_llama_curve.py > tests/golden/llama_curve.json
    python3 tests/golden/make_llama_curve.py KIND > tests/golden/llama_KIND_curve.json

Needs torch and transformers. Each case is a transformers model: LlamaForCausalLM with grouped-query
attention and Llama 3's rotary scaling, its head tied and not, and one whose MLP is gated by GELU;
Qwen2ForCausalLM, which has biases on q, k and v; Qwen3ForCausalLM, which normalises the heads of q
and k; MistralForCausalLM, whose attention has a window; GemmaForCausalLM; Gemma3ForCausalLM, with a
window in all but every third layer, rotary bases of its own there, and linear scaling;
Olmo2ForCausalLM, which normalises q and k as a whole, and what attention and the MLP give instead
of what they read; and Olmo3ForCausalLM, which beside that has windows as Gemma 3.
MixtralForCausalLM and Qwen3MoeForCausalLM have experts. The loss of their balance is trained beside
the one that is reported. Their weights are named as in the files that transformers writes, a tensor
for each expert.
Initial weights and tokens come from the integer formulas of make_gpt2_curve.py, which
llama_curve_test.cc repeats, so nothing but the figures needs to be stored. Every step trains on all
samples, so the order in which a data loader visits them does not matter.
"""
import json
import math
import sys

import torch
import torch.nn.functional as F
import transformers

from make_gpt2_curve import final_state, lr_at, make_optimizer, uniform, OPTIMIZERS, TRAIN

SAMPLES = 8
MODEL = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 80,
         "context": 32, "vocabulary": 64, "rope_theta": 1000.0, "norm_epsilon": 1e-5}
SCALING = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 31}
CASES = {
    "llama": MODEL | {"rope_scaling": SCALING, "tied": False, "qkv_bias": False},
    "llama-tied": MODEL | {"rope_scaling": SCALING, "kv_heads": 1, "tied": True, "qkv_bias": False},
    "qwen2": MODEL | {"head_dim": 8, "kv_heads": 4, "tied": True, "qkv_bias": True},
    "geglu": MODEL | {"tied": False, "qkv_bias": False, "activation": "geglu"},
    "qwen3": MODEL | {"tied": True, "qkv_bias": False, "qk_norm": True},
    "mistral": MODEL | {"tied": False, "qkv_bias": False, "window": {"positions": 7}},
    "gemma": MODEL | {"tied": True, "qkv_bias": False, "kv_heads": 1, "activation": "geglu",
                      "norm_offset": True, "scale_embedding": True},
    "gemma3": MODEL | {"layers": 4, "tied": True, "qkv_bias": False, "qk_norm": True,
                       "activation": "geglu", "norm_offset": True, "scale_embedding": True,
                       "post_norms": True, "rope_scaling": {"type": "linear", "factor": 4.0},
                       "window": {"positions": 5, "full_every": 3, "rope_theta": 100.0}},
    "olmo2": MODEL | {"tied": False, "qkv_bias": False, "wide_qk_norm": True, "pre_norms": False,
                      "post_norms": True},
    "olmo3": MODEL | {"layers": 4, "kv_heads": 1, "tied": True, "qkv_bias": False,
                      "wide_qk_norm": True, "pre_norms": False, "post_norms": True,
                      "rope_scaling": {"type": "linear", "factor": 4.0},
                      "window": {"positions": 5, "full_every": 3, "rope_theta": 100.0}},
    "mixtral": MODEL | {"tied": False, "qkv_bias": False, "hidden": 24, "window": {"positions": 7},
                        "experts": {"count": 4, "per_token": 2, "hidden": 24, "normalize": True,
                                    "balance_loss": 0.1}},
    "qwen3_moe": MODEL | {"tied": True, "qkv_bias": False, "qk_norm": True,
                          "experts": {"count": 8, "per_token": 3, "hidden": 20, "normalize": False,
                                      "balance_loss": 0.05}},
    "qwen3_moe-normalized": MODEL | {"tied": False, "qkv_bias": False, "qk_norm": True,
                                     "experts": {"count": 6, "per_token": 2, "hidden": 16,
                                                 "normalize": True, "balance_loss": 0}},
}
# Behind a norm of the heads some gradients of q's weights are nothing but rounding. With an epsilon
# of 1e-8 these elements still take whole steps: fp32 and fp64 of this script end 1e-4 of the norm
# apart. With this one, 2e-6.
EPSILON = {name: {"epsilon": 1e-6}
           for name in ("qwen3", "gemma3", "qwen3_moe", "qwen3_moe-normalized")}


def token(i):
    return (i * i + 3 * (i // 5)) % MODEL["vocabulary"]


def build_mixture(model, sizes):
    experts = model["experts"]
    sizes |= {"num_experts_per_tok": experts["per_token"], "output_router_logits": True}
    if not model.get("qk_norm"):
        config = transformers.MixtralConfig(
            **sizes | {"intermediate_size": experts["hidden"]},
            num_local_experts=experts["count"], sliding_window=model["window"]["positions"])
        return transformers.MixtralForCausalLM(config)
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
        **sizes, moe_intermediate_size=experts["hidden"], num_experts=experts["count"],
        norm_topk_prob=experts["normalize"]))


def build(model):
    rope = {"rope_type": "default", "rope_theta": model["rope_theta"]}
    s = model.get("rope_scaling", {})
    if s.get("type") == "linear":
        rope |= {"rope_type": "linear", "factor": s["factor"]}
    elif s:
        rope |= {"rope_type": "llama3", "factor": s["factor"],
                 "low_freq_factor": s["low_freq_factor"],
                 "high_freq_factor": s["high_freq_factor"],
                 "original_max_position_embeddings": s["original_context"]}
    sizes = dict(hidden_size=model["width"], num_hidden_layers=model["layers"],
                 num_attention_heads=model["heads"], num_key_value_heads=model["kv_heads"],
                 head_dim=model["head_dim"], intermediate_size=model["hidden"],
                 max_position_embeddings=model["context"], vocab_size=model["vocabulary"],
                 rms_norm_eps=model["norm_epsilon"], rope_parameters=rope,
                 pad_token_id=None,  # Gemma's default is token 0, which would get no gradient
                 hidden_act="gelu_pytorch_tanh" if model.get("activation") == "geglu" else "silu",
                 tie_word_embeddings=model["tied"], attn_implementation="eager", use_cache=False)
    if "full_every" in model.get("window", {}):
        window = model["window"]
        kinds = ["full_attention" if layer % window["full_every"] == 0 else "sliding_attention"
                 for layer in range(1, model["layers"] + 1)]
        sizes["rope_parameters"] = {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": window["rope_theta"]}}
        sizes |= {"layer_types": kinds, "sliding_window": window["positions"]}
    if "experts" in model:
        return build_mixture(model, sizes)
    if model.get("wide_qk_norm"):
        if "window" in model:
            return transformers.Olmo3ForCausalLM(transformers.Olmo3Config(**sizes))
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**sizes))
    if model.get("post_norms"):
        del sizes["hidden_act"]
        return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
            **sizes, hidden_activation="gelu_pytorch_tanh",
            query_pre_attn_scalar=model["head_dim"]))
    if model.get("norm_offset"):
        return transformers.GemmaForCausalLM(transformers.GemmaConfig(**sizes))
    if "window" in model:
        return transformers.MistralForCausalLM(transformers.MistralConfig(
            **sizes, sliding_window=model["window"]["positions"]))
    if model.get("qk_norm"):
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes))
    if model["qkv_bias"]:
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def named_weights(network, model):
    """Its parameters, or their slices, by the names that files have."""
    weights = {}
    for name, weight in network.named_parameters():
        if "experts" not in model or ".mlp." not in name:
            weights[name] = weight
            continue
        mixtral, hidden = not model.get("qk_norm"), model["experts"]["hidden"]
        block = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        if not name.endswith("_proj"):  # the router
            weights[block] = weight
            continue
        block = block.rsplit(".", 1)[0]
        gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        for e in range(model["experts"]["count"]):
            if name.endswith("gate_up_proj"):
                weights[f"{block}.{e}.{gate}.weight"] = weight[e, :hidden]
                weights[f"{block}.{e}.{up}.weight"] = weight[e, hidden:]
            else:
                weights[f"{block}.{e}.{down}.weight"] = weight[e]
    return weights


def set_weights(weights, offset):
    """The e-th element of the i-th tensor, in transformers' order, from uniform(i, e). Norms
    multiply by numbers about 1, which they may have as an offset."""
    with torch.no_grad():
        for index, (name, weight) in enumerate(weights.items()):
            values = uniform(index, weight.numel()).reshape(weight.shape) * 0.3
            weight.copy_(values + 1 if "norm" in name and not offset else values)


def train(model, kind, shared, own):
    TRAIN.update(shared | own)
    network = build(model).float()
    named = named_weights(network, model)
    set_weights(named, model.get("norm_offset", False))
    length = model["context"]
    stream = torch.tensor([token(i) for i in range(SAMPLES * length + 1)])
    tokens = stream[:-1].view(SAMPLES, length)
    targets = stream[1:].view(SAMPLES, length)
    weights = dict(network.named_parameters())
    optimizer = make_optimizer(kind, weights, (".layers.",))
    curve = []
    for step in range(TRAIN["steps"]):
        found = network(input_ids=tokens)
        loss = F.cross_entropy(found.logits.reshape(-1, model["vocabulary"]), targets.reshape(-1))
        balance = model["experts"]["balance_loss"] * found.aux_loss if "experts" in model else 0
        optimizer.zero_grad()
        (loss + balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        curve.append({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr_at(step)})
    return {"model": model, "train": own, "parameters": list(named), "steps": curve,
            "final": final_state(named)}


def main():
    kind = sys.argv[1] if len(sys.argv) > 1 else "adamw"
    TRAIN.update(OPTIMIZERS[kind])
    if kind == "adamw_8bit":
        TRAIN["epsilon"] = 3e-2  # make_gpt2_curve.py says why
    cases = CASES if kind == "adamw" else {"llama": CASES["llama"]}
    torch.set_num_threads(1)
    shared = dict(TRAIN)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                      "optimizer": kind,
                      "samples": SAMPLES, "train": shared,
                      "cases": {name: train(model, kind, shared, EPSILON.get(name, {}))
                                for name, model in cases.items()}},
                     indent=1))


if __name__ == "__main__":
    main()
