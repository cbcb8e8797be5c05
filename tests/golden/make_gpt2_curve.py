#!/usr/bin/env python3
"""Makes gpt2_curve.json: 20 training steps of a tiny GPT-2 in PyTorch, fp32.

    python3 tests/golden/make_gpt2_curve.py > tests/golden/gpt2_curve.json
    python3 tests/golden/make_gpt2_curve.py sgd > tests/golden/gpt2_sgd_curve.json
    python3 tests/golden/make_gpt2_curve.py lion > tests/golden/gpt2_lion_curve.json
    python3 tests/golden/make_gpt2_curve.py lamb > tests/golden/gpt2_lamb_curve.json
    python3 tests/golden/make_gpt2_curve.py muon > tests/golden/gpt2_muon_curve.json
    python3 tests/golden/make_gpt2_curve.py adan > tests/golden/gpt2_adan_curve.json
    python3 tests/golden/make_gpt2_curve.py adamw_8bit > tests/golden/gpt2_adamw_8bit_curve.json

Needs torch only. Lion, LAMB, Adan and 8-bit AdamW, which torch does not have, follow their papers.
Muon is torch's, but for its iterations, which are done in fp32 instead of bf16. The model is
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
    "lamb": {"lr": 0.02, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.05},
    # With a smaller epsilon elements whose gradient is nothing but rounding take whole steps.
    "adan": {"lr": 5e-3, "beta1": 0.98, "beta2": 0.92, "beta3": 0.99, "epsilon": 1e-8,
             "weight_decay": 0.02},
    "muon": {"lr": 5e-3, "momentum": 0.9, "adamw_lr": 4e-3, "beta1": 0.9, "beta2": 0.95,
             "epsilon": 1e-8, "weight_decay": 0.1},
    # With a small epsilon elements with small m and v take steps as large as the others', and there
    # a code is coarse: rounding of 2e-7 in the gradients, which may turn one code into the next,
    # then moves the final weights of this script by 2e-4 of their norm. With this one, by 4e-6. Of
    # other models gradients are smaller: theirs is larger.
    "adamw_8bit": {"lr": 5e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-2,
                   "weight_decay": 0.1},
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


def trunk(weights, tokens):
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
    return norm(x, "ln_f")


def head_loss_sum(weights, features, targets):
    logits = features @ weights["transformer.wte.weight"].T
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
        ignored = [0, 0]
        if name.endswith("c_attn.bias"):
            ignored = [len(flat) // 3, 2 * len(flat) // 3]
        elif name.endswith(("self.key.bias", "attention.key.bias", "k_lin.bias")):
            ignored = [0, len(flat)]
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


class Lamb(torch.optim.Optimizer):
    """You et al., "Large Batch Optimization for Deep Learning" (2020), algorithm 2, with the
    identity for phi; tensors of one dimension take steps without the ratio, as in the authors' own
    code."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["beta1"], group["beta2"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                state["m"] = beta1 * state["m"] + (1 - beta1) * p.grad
                state["v"] = beta2 * state["v"] + (1 - beta2) * p.grad ** 2
                m = state["m"] / (1 - beta1 ** state["t"])
                v = state["v"] / (1 - beta2 ** state["t"])
                update = m / (v.sqrt() + group["epsilon"]) + group["weight_decay"] * p
                ratio = 1.0
                if p.dim() >= 2 and p.norm() > 0 and update.norm() > 0:
                    ratio = p.norm() / update.norm()
                p.sub_(group["lr"] * ratio * update)


class Adan(torch.optim.Optimizer):
    """Xie et al., "Adan: Adaptive Nesterov Momentum Algorithm" (2022), algorithm 1 without
    restarts, with the bias corrections, and 1 minus the paper's betas, of the authors' own code."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            betas = [group[f"beta{i}"] for i in (1, 2, 3)]
            for p in group["params"]:
                state, g = self.state[p], p.grad
                if not state:
                    state.update(t=0, g=g.clone(), **{k: torch.zeros_like(p) for k in "mvn"})
                state["t"] += 1
                diff = g - state["g"]
                state["m"] = betas[0] * state["m"] + (1 - betas[0]) * g
                state["v"] = betas[1] * state["v"] + (1 - betas[1]) * diff
                state["n"] = betas[2] * state["n"] + (1 - betas[2]) * (g + betas[1] * diff) ** 2
                state["g"] = g.clone()
                left = [1 - beta ** state["t"] for beta in betas]
                eta = group["lr"] / ((state["n"] / left[2]).sqrt() + group["epsilon"])
                p.sub_(eta * (state["m"] / left[0] + betas[1] * state["v"] / left[1]))
                p.div_(1 + group["lr"] * group["weight_decay"])


def newton_schulz(grad, coefficients, steps, eps):
    """torch's iterations, in fp32."""
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


class MuonAndAdamW:
    """Muon for the matrices of the layers, AdamW for all else. The learning rate that is set is
    Muon's; AdamW's is in proportion."""

    def __init__(self, weights, layers):
        torch.optim._muon._zeropower_via_newtonschulz = newton_schulz
        hidden = [w for n, w in weights.items() if w.dim() == 2 and self.within(layers, n)]
        tables = [w for n, w in weights.items() if w.dim() >= 2 and not self.within(layers, n)]
        vectors = [w for w in weights.values() if w.dim() < 2]
        self.muon = torch.optim.Muon(hidden, momentum=TRAIN["momentum"],
                                     weight_decay=TRAIN["weight_decay"],
                                     adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(
            [{"params": tables, "weight_decay": TRAIN["weight_decay"]},
             {"params": vectors, "weight_decay": 0.0}],
            betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["epsilon"])
        self.param_groups = self.muon.param_groups

    @staticmethod
    def within(layers, name):
        return any(layer in name for layer in layers)

    def zero_grad(self):
        self.muon.zero_grad()
        self.adamw.zero_grad()

    def step(self):
        for group in self.adamw.param_groups:
            group["lr"] = self.muon.param_groups[0]["lr"] * TRAIN["adamw_lr"] / TRAIN["lr"]
        self.muon.step()
        self.adamw.step()


def dynamic_codes(signed):
    """The 8-bit dynamic data type of Dettmers et al., "8-bit Optimizers via Block-wise
    Quantization" (2022): a decade of 10^-6 to 10^0 per leading zero, the fraction in what bits are
    left, linear in [0.1, 1]; and 0 and 1."""
    codes = [0.0, 1.0]
    for zeros in range(7):
        bits = 6 - zeros if signed else 7 - zeros
        edges = torch.linspace(0.1, 1, 2 ** bits + 1, dtype=torch.float64)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** -zeros
        codes += middles.tolist()
        if signed:
            codes += (-middles).tolist()
    assert len(codes) == 256
    return torch.tensor(sorted(codes), dtype=torch.float64).float()


class AdamW8Bit(torch.optim.Optimizer):
    """AdamW whose m and v go through 8 bits after each step, in blocks of 256 elements of the
    tensor. A v above 0 takes the least code above 0 at least. Tensors of one dimension are held in
    fp32."""

    CODES = {"m": dynamic_codes(True), "v": dynamic_codes(False)}

    @classmethod
    def through_8_bits(cls, x, kind):
        codes = cls.CODES[kind]
        blocks = F.pad(x.reshape(-1), (0, -x.numel() % 256)).reshape(-1, 256)
        scale = blocks.abs().amax(dim=1, keepdim=True)
        ratio = (blocks / scale.where(scale > 0, torch.ones_like(scale))).double()
        middles = (codes[:-1].double() + codes[1:].double()) / 2
        index = torch.bucketize(ratio, middles.float().double())
        if kind == "v":
            index = index.where(blocks <= 0, index.clamp(min=1))
        return (codes[index] * scale).reshape(-1)[:x.numel()].reshape(x.shape)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["beta1"], group["beta2"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["t"] += 1
                m = beta1 * state["m"] + (1 - beta1) * p.grad
                v = beta2 * state["v"] + (1 - beta2) * p.grad ** 2
                m_hat = m / (1 - beta1 ** state["t"])
                v_hat = v / (1 - beta2 ** state["t"])
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * m_hat / (v_hat.sqrt() + group["epsilon"]))
                small = p.dim() < 2
                state["m"] = m if small else self.through_8_bits(m, "m")
                state["v"] = v if small else self.through_8_bits(v, "v")


def make_optimizer(kind, weights, layers=(".h.",)):
    """`layers`: one of these is in the names of the layers' parameters, and in no others'."""
    if kind == "muon":
        return MuonAndAdamW(weights, layers)
    groups = [{"params": [w for w in weights.values() if w.dim() >= 2],
               "weight_decay": TRAIN["weight_decay"]},
              {"params": [w for w in weights.values() if w.dim() < 2], "weight_decay": 0.0}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=TRAIN["lr"], momentum=TRAIN["momentum"])
    if kind == "lion":
        return Lion(groups, {"lr": 0.0, "beta1": TRAIN["beta1"], "beta2": TRAIN["beta2"]})
    if kind == "adan":
        return Adan(groups, {"lr": 0.0, **{k: TRAIN[k] for k in
                                           ("beta1", "beta2", "beta3", "epsilon")}})
    if kind in ("lamb", "adamw_8bit"):
        return (Lamb if kind == "lamb" else AdamW8Bit)(
            groups, {"lr": 0.0, **{k: TRAIN[k] for k in ("beta1", "beta2", "epsilon")}})
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
        features = trunk(weights, tokens)
        loss = head_loss_sum(weights, features, targets) / targets.numel()
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
