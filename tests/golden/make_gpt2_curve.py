#!/usr/bin/env python3
"""Makes gpt2_curve.json: 20 training steps of a tiny GPT-2 in PyTorch, fp32.

    python3 tests/golden/make_gpt2_curve.py > tests/golden/gpt2_curve.json
    python3 tests/golden/make_gpt2_curve.py sgd > tests/golden/gpt2_sgd_curve.json
    python3 tests/golden/make_gpt2_curve.py lion > tests/golden/gpt2_lion_curve.json

Needs torch only. Lion, which torch does not have, follows algorithm 2 of its paper. The model is
written out here, independently of Milepost. Initial weights and tokens come from integer formulas
(see `uniform` and `token`) that gpt2_curve_test.cc repeats, so nothing but the figures needs to be
stored. Every step trains on all samples, so the order in which a data loader visits them does not
matter.
"""
import json
import math
import sys

import torch
import torch.nn.functional as F

MODEL = {"layers": 2, "width": 32, "heads": 4, "context": 32, "vocabulary": 64}
SAMPLES = 8
TRAIN = {"steps": 20, "clip_norm": 1.0, "warmup_steps": 4, "final_lr_ratio": 0.1}
OPTIMIZERS = {
    "adamw": {"lr": 5e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
    "sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "lion": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1},
}


def token(i):
    return (i * i + 3 * (i // 5)) % MODEL["vocabulary"]


def uniform(parameter, count):
    """Numbers in [-1, 1): element e of the parameter-th tensor."""
    e = torch.arange(count, dtype=torch.int64)
    mixed = (e * 2654435761 + parameter * 40503 + 12345) % 2**32
    mixed = (mixed ^ (mixed >> 15)) * 2246822519 % 2**32
    return (mixed.double() / 2**31 - 1).float()


def parameter_shapes():
    c, v, p = MODEL["width"], MODEL["vocabulary"], MODEL["context"]
    shapes = {"wte.weight": (v, c), "wpe.weight": (p, c)}
    for i in range(MODEL["layers"]):
        h = f"h.{i}."
        shapes |= {h + "ln_1.weight": (c,), h + "ln_1.bias": (c,),
                   h + "attn.c_attn.weight": (c, 3 * c), h + "attn.c_attn.bias": (3 * c,),
                   h + "attn.c_proj.weight": (c, c), h + "attn.c_proj.bias": (c,),
                   h + "ln_2.weight": (c,), h + "ln_2.bias": (c,),
                   h + "mlp.c_fc.weight": (c, 4 * c), h + "mlp.c_fc.bias": (4 * c,),
                   h + "mlp.c_proj.weight": (4 * c, c), h + "mlp.c_proj.bias": (c,)}
    shapes |= {"ln_f.weight": (c,), "ln_f.bias": (c,)}
    return {"transformer." + name: shape for name, shape in shapes.items()}


def initial_weights():
    weights = {}
    for index, (name, shape) in enumerate(parameter_shapes().items()):
        values = uniform(index, math.prod(shape)).reshape(shape) * 0.3
        if "ln_" in name and name.endswith(".weight"):
            values = values + 1
        weights[name] = values.clone().requires_grad_(True)
    return weights


def loss_sum(weights, tokens, targets):
    w = {name.removeprefix("transformer."): value for name, value in weights.items()}
    batch, length = tokens.shape
    c, heads = MODEL["width"], MODEL["heads"]
    causal = torch.ones(length, length, dtype=torch.bool).tril()

    def norm(x, name):
        return F.layer_norm(x, (c,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:length]
    for i in range(MODEL["layers"]):
        h = f"h.{i}."
        q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").split(c, dim=2)
        q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(c // heads)
        attention = scores.masked_fill(~causal, -math.inf).softmax(dim=3) @ v
        x = x + linear(attention.transpose(1, 2).reshape(batch, length, c), h + "attn.c_proj")
        hidden = linear(norm(x, h + "ln_2"), h + "mlp.c_fc")
        x = x + linear(F.gelu(hidden, approximate="tanh"), h + "mlp.c_proj")
    logits = norm(x, "ln_f") @ w["wte.weight"].T
    return F.cross_entropy(logits.reshape(-1, MODEL["vocabulary"]), targets.reshape(-1),
                           reduction="sum")


PROJECTIONS = 8


def final_state(weights):
    """What the weights have become, in little: of each tensor its norm and its products with a few
    vectors of pseudo-random signs. If d is the difference of two tensors, the mean of the squared
    differences of these products estimates |d|^2.

    A bias of the keys moves all scores of a query alike, so its gradient is nothing but rounding,
    which AdamW and Lion scale up to whole steps: it is left out.
    """
    state = {}
    for name, weight in weights.items():
        flat = weight.detach().double().reshape(-1).clone()
        ignored = [len(flat) // 3, 2 * len(flat) // 3] if name.endswith("c_attn.bias") else [0, 0]
        flat[ignored[0]:ignored[1]] = 0
        products = []
        for k in range(PROJECTIONS):
            signs = (uniform(1000 + k, flat.numel()) >= 0).double() * 2 - 1
            products.append((signs * flat).sum().item())
        state[name] = {"norm": flat.norm().item(), "products": products, "ignored": ignored}
    return state


def lr_at(step):
    """Linear warm-up, then cosine from the peak (step warmup - 1) to ratio * peak (the last)."""
    if step < TRAIN["warmup_steps"]:
        return TRAIN["lr"] * (step + 1) / TRAIN["warmup_steps"]
    first = TRAIN["warmup_steps"] - 1
    t = (step - first) / (TRAIN["steps"] - 1 - first)
    ratio = TRAIN["final_lr_ratio"]
    return TRAIN["lr"] * (ratio + (1 - ratio) * (1 + math.cos(math.pi * t)) / 2)


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023), algorithm 2."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = (group["beta1"] * m + (1 - group["beta1"]) * p.grad).sign()
                p.sub_(group["lr"] * (update + group["weight_decay"] * p))
                m.mul_(group["beta2"]).add_(p.grad, alpha=1 - group["beta2"])


def make_optimizer(kind, weights):
    groups = [{"params": [w for w in weights.values() if w.dim() >= 2],
               "weight_decay": TRAIN["weight_decay"]},
              {"params": [w for w in weights.values() if w.dim() < 2], "weight_decay": 0.0}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=TRAIN["lr"], momentum=TRAIN["momentum"])
    if kind == "lion":
        return Lion(groups, {"lr": 0.0, "beta1": TRAIN["beta1"], "beta2": TRAIN["beta2"]})
    return torch.optim.AdamW(groups, betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["epsilon"])


def main():
    kind = sys.argv[1] if len(sys.argv) > 1 else "adamw"
    TRAIN.update(OPTIMIZERS[kind])
    torch.set_num_threads(1)
    length = MODEL["context"]
    stream = torch.tensor([token(i) for i in range(SAMPLES * length + 1)])
    tokens = stream[:-1].view(SAMPLES, length)
    targets = stream[1:].view(SAMPLES, length)
    weights = initial_weights()
    optimizer = make_optimizer(kind, weights)
    curve = []
    for step in range(TRAIN["steps"]):
        loss = loss_sum(weights, tokens, targets) / targets.numel()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        curve.append({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr_at(step)})
    print(json.dumps({"torch": torch.__version__, "optimizer": kind, "model": MODEL,
                      "samples": SAMPLES,
                      "train": TRAIN, "parameters": list(weights), "steps": curve,
                      "final": final_state(weights)}, indent=1))


if __name__ == "__main__":
    main()
