#!/usr/bin/env python3
"""Makes lora_curve.json: 20 training steps of LoRA adapters by PEFT, in fp32, and of preferences.

    python3 tests/golden/make_lora_curve.py > tests/golden/lora_curve.json

Needs torch, transformers, peft and bitsandbytes. Each case is a transformers model with PEFT's
adapters: a Llama with adapters at every layer of its blocks; a Qwen2 with rank-stabilized ones of
q and v, whose last norm is trained as well; GPT-2, whose weights are stored the other way round.
"dora" and "dora_gpt2" have magnitudes (DoRA) of layers with biases and without.
Names are Milepost's: PEFT's without "base_model.model.", "base_layer." and "default.". Of a
magnitude Milepost trains what it has changed by since it was the norm of its weights. Initial
values, also of both matrices of an adapter, come from the integer formula of make_gpt2_curve.py,
by the number of the parameter in lora_curve.json's list, which lora_curve_test.cc repeats. Every
step trains on all samples. The last cases have the loss of preferences (DPO, Rafailov et al. 2023),
written out here: in each sample two neighbouring documents that both have a target are a pair.
Those without "lora" train the whole model, against a copy of what it began with.
(At a beta of 0.5 the gradients of most pairs end near 0, and the norms of this script in fp32 and
in fp64 are 4e-4 apart; at this one 1.5e-5.) In the case "nf4" what the adapters adapt is in 4
bits, by bitsandbytes.
"""
import contextlib
import copy
import json
import warnings

import bitsandbytes
import peft
import torch
import torch.nn.functional as F
import transformers

import make_llama_curve
from make_gpt2_curve import final_state, lr_at, make_optimizer, uniform, OPTIMIZERS, TRAIN

SAMPLES = 8
LLAMA = make_llama_curve.MODEL
GPT2 = {"layers": 2, "width": 32, "heads": 4, "context": 32, "vocabulary": 64}
CASES = {
    "llama": {"model": make_llama_curve.CASES["llama"],
              "lora": {"rank": 4, "alpha": 8.0, "rank_stabilized": False, "targets": [],
                       "also_train": []},
              "peft": {"target_modules": "all-linear"}},
    "qwen2": {"model": make_llama_curve.CASES["qwen2"],
              "lora": {"rank": 3, "alpha": 5.0, "rank_stabilized": True,
                       "targets": ["q_proj", "v_proj"], "also_train": ["model.norm.weight"]},
              "peft": {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["model.norm"]}},
    "gpt2": {"model": GPT2,
             "lora": {"rank": 2, "alpha": 3.0, "rank_stabilized": False,
                      "targets": ["attn.c_attn", "mlp.c_*"], "also_train": []},
             "peft": {"target_modules": ["attn.c_attn", "mlp.c_fc", "mlp.c_proj"],
                      "fan_in_fan_out": True}},
}
CASES["dora"] = {"model": make_llama_curve.CASES["qwen2"],
                 "lora": {"rank": 4, "alpha": 8.0, "rank_stabilized": False, "targets": [],
                          "also_train": [], "dora": True},
                 "peft": {"target_modules": "all-linear", "use_dora": True}}
CASES["dora_gpt2"] = {"model": GPT2, "lora": CASES["gpt2"]["lora"] | {"dora": True},
                      "peft": CASES["gpt2"]["peft"] | {"use_dora": True}}
CASES["nf4"] = CASES["llama"] | {"quantize_base": "nf4"}
CASES["dpo"] = CASES["llama"] | {"dpo": {"beta": 0.1, "label_smoothing": 0.1, "separator": 5}}
CASES["dpo_whole"] = {"model": CASES["qwen2"]["model"], "lora": None, "dpo": CASES["dpo"]["dpo"]}
CASES["dpo_whole_gpt2"] = {"model": GPT2, "lora": None, "dpo": CASES["dpo"]["dpo"]}


def build(model):
    if "kv_heads" in model:
        return make_llama_curve.build(model)
    config = transformers.GPT2Config(
        n_layer=model["layers"], n_embd=model["width"], n_head=model["heads"],
        n_positions=model["context"], vocab_size=model["vocabulary"], resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, attn_implementation="eager", use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def ours(name):
    """Milepost's name of a parameter of PEFT's; "": none."""
    if ".original_module." in name:
        return ""
    for part in ("base_model.model.", "base_layer.", "default.", "modules_to_save."):
        name = name.replace(part, "")
    return name.replace(".lora_magnitude_vector.weight", ".lora_magnitude_change")


def set_weights(named):
    with torch.no_grad():
        for index, (name, weight) in enumerate(named.items()):
            values = uniform(index, weight.numel()).reshape(weight.shape) * 0.3
            norm = ("norm" in name or "ln_" in name) and name.endswith(".weight")
            weight.copy_(values + 1 if norm else values)


def quantize(network):
    """What the adapters adapt becomes what bitsandbytes makes of it in 4 bits. As one row: if rows
    are no multiples of a block, its kernel for the CPU (0.50.2) takes another block's scale."""
    functional = bitsandbytes.functional
    for module in network.modules():
        layer = getattr(module, "base_layer", None)
        if not isinstance(layer, torch.nn.Linear):
            continue
        codes, state = functional.quantize_4bit(layer.weight.data.flatten(), blocksize=64,
                                                quant_type="nf4", compress_statistics=False)
        layer.weight.data = functional.dequantize_4bit(codes, state).reshape(layer.weight.shape)


def add_norms(network):
    """Magnitudes so far are changes: they become those of the base's weights. Returns these."""
    norms = {}
    for name, layer in network.named_modules():
        if not getattr(layer, "lora_magnitude_vector", None):
            continue
        inputs = 0 if layer.fan_in_fan_out else 1
        norm = layer.get_base_layer().weight.detach().norm(dim=inputs)
        layer.lora_magnitude_vector["default"].weight.data += norm
        norms[ours(f"{name}.lora_magnitude_vector.default.weight")] = norm
    return norms


def pairs_of(tokens, targets, separator):
    """Of each pair both documents' tokens and targets, where a document ends with a separator. So
    does each sample."""
    for x, y in zip(tokens, targets):
        ends = [i + 1 for i in range(len(x)) if x[i] == separator]
        bounds = [0] + [end for end in ends if end < len(x)] + [len(x)]
        documents = []
        for begin, end in zip(bounds, bounds[1:]):
            count = end - begin - (1 if x[end - 1] == separator else 0)  # that have a target
            documents.append((x[begin:begin + count], y[begin:begin + count]))
        first = None
        for document in documents:
            if len(document[0]) == 0:
                first = None
            elif first is None:
                first = document
            else:
                yield first, document
                first = None


def preference_loss(network, before, pairs, beta, smoothing):
    """`before`: what the network was, or None: itself without its adapters."""
    def log_prob(model, x, y):
        return -F.cross_entropy(model(input_ids=x[None]).logits[0], y, reduction="sum")

    losses = []
    for pair in pairs:
        first, second = (log_prob(network, *document) for document in pair)
        with torch.no_grad(), contextlib.nullcontext() if before else network.disable_adapter():
            first_before, second_before = (log_prob(before or network, *document)
                                           for document in pair)
        m = beta * ((first - first_before) - (second - second_before))
        losses.append(-(1 - smoothing) * F.logsigmoid(m) - smoothing * F.logsigmoid(-m))
    return torch.stack(losses).mean()


def adapted(case):
    lora = case["lora"]
    config = peft.LoraConfig(r=lora["rank"], lora_alpha=lora["alpha"],
                             use_rslora=lora["rank_stabilized"], lora_dropout=0, bias="none",
                             task_type="CAUSAL_LM", **case["peft"])
    return peft.get_peft_model(build(case["model"]).float(), config)


def train(case):
    model, lora, dpo = case["model"], case["lora"], case.get("dpo")
    network = adapted(case) if lora else build(model).float()
    named = {ours(name): weight for name, weight in network.named_parameters() if ours(name)}
    set_weights(named)
    if case.get("quantize_base"):
        quantize(network)
    norms = add_norms(network)
    before = None if lora else copy.deepcopy(network)
    trained = {name: weight for name, weight in named.items() if weight.requires_grad}
    length, vocabulary = model["context"], model["vocabulary"]
    stream = torch.tensor([(i * i + 3 * (i // 5)) % vocabulary
                           for i in range(SAMPLES * length + 1)])
    if dpo:
        stream[length - 1::length] = dpo["separator"]
    tokens, targets = stream[:-1].view(SAMPLES, length), stream[1:].view(SAMPLES, length)
    pairs = list(pairs_of(tokens, targets, dpo["separator"])) if dpo else []
    optimizer = make_optimizer("adamw", trained, (".layers.", ".h."))
    curve = []
    for step in range(TRAIN["steps"]):
        if dpo:
            loss = preference_loss(network, before, pairs, dpo["beta"], dpo["label_smoothing"])
        else:
            logits = network(input_ids=tokens).logits
            loss = F.cross_entropy(logits.reshape(-1, vocabulary), targets.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        curve.append({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr_at(step)})
    return {"model": model, "lora": lora, "dpo": dpo,
            "quantize_base": case.get("quantize_base", "none"), "parameters": list(named),
            "steps": curve, "final": final_state({name: weight.detach() - norms.get(name, 0)
                                                  for name, weight in trained.items()})}


def main():
    warnings.simplefilter("ignore")
    TRAIN.update(OPTIMIZERS["adamw"])
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                      "peft": peft.__version__, "bitsandbytes": bitsandbytes.__version__,
                      "samples": SAMPLES, "train": dict(TRAIN),
                      "cases": {name: train(case) for name, case in CASES.items()}}, indent=1))


if __name__ == "__main__":
    main()
