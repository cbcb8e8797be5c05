"""Golden file of Adan's update: the algorithm of its authors' program, in torch and fp64.

    python3 engine/optim/adan/make_adan_golden.py > engine/optim/adan/adan_golden.json

Needs torch. Written from the paper (Xie et al. 2022, algorithm 1, with restart off) and the
description of the authors' program: averages corrected for their bias, the first difference 0,
weight decay by division. Its decays are 1 minus the paper's.
"""

import json

import torch

HYPER = {"lr": 3e-3, "beta1": 0.98, "beta2": 0.92, "beta3": 0.99, "epsilon": 1e-8}
DECAY = 0.02
STEPS = 5
COUNT = 37


def update(p, g, state, step):
    beta1, beta2, beta3 = HYPER["beta1"], HYPER["beta2"], HYPER["beta3"]
    before = state.get("g", g)
    diff = g - before
    state["m"] = torch.lerp(g, state.get("m", torch.zeros_like(p)), beta1)
    state["v"] = torch.lerp(diff, state.get("v", torch.zeros_like(p)), beta2)
    ahead = g + beta2 * diff
    state["n"] = torch.lerp(ahead.square(), state.get("n", torch.zeros_like(p)), beta3)
    state["g"] = g.clone()
    m = state["m"] / (1 - beta1**step)
    v = state["v"] / (1 - beta2**step)
    n = state["n"] / (1 - beta3**step)
    eta = HYPER["lr"] / (n.sqrt() + HYPER["epsilon"])
    return (p - eta * (m + beta2 * v)) / (1 + HYPER["lr"] * DECAY)


def main():
    torch.manual_seed(11)
    p = torch.randn(COUNT, dtype=torch.float32).double()
    golden = {**HYPER, "decay": DECAY, "p": p.tolist(), "steps": []}
    state = {}
    for step in range(1, STEPS + 1):
        g = torch.randn(COUNT, dtype=torch.float32).double()
        p = update(p, g, state, step)
        golden["steps"].append({"g": g.tolist(), "p": p.tolist()})
    golden["states"] = {kind: state[kind].tolist() for kind in ("m", "v", "n", "g")}
    print(json.dumps(golden))


if __name__ == "__main__":
    main()
