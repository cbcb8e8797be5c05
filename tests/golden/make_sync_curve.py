#!/usr/bin/env python3
"""Makes sync_curve.json: 20 training steps of a tiny GPT-2 by two islands that train apart and
become one model after every 5 steps (Douillard et al., "DiLoCo", 2023), fp32.

    python3 tests/golden/make_sync_curve.py > tests/golden/sync_curve.json

Needs torch. Model, data and training of an island are those of make_gpt2_curve.py, but for the
samples: each island has half of every batch. Its optimizer's moments are averaged too in an outer
step. The outer optimizer is torch.optim.SGD, whose gradient is what the islands have moved on
average. Which samples an island has in a step depends on the order in which Milepost visits them:
`order` repeats engine/data/sampler.h.
"""
import json

import torch

from make_gpt2_curve import (MODEL, OPTIMIZERS, SAMPLES, TRAIN, final_state, head_loss_sum,
                             initial_weights, lr_at, make_optimizer, token, trunk)

ISLANDS = 2
EVERY = 5
MASK = 2**64 - 1
CASES = [{"lr": 0.7, "momentum": 0.9, "nesterov": True},
         {"lr": 0.5, "momentum": 0.5, "nesterov": False},
         {"lr": 1.0, "momentum": 0.0, "nesterov": False}]


def mix(x):
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK
    return x ^ (x >> 31)


def order(count, seed, epoch):
    """The samples of an epoch, as they are visited."""
    half = ((count - 1).bit_length() + 1) // 2
    key = mix(mix((seed + 0x9e3779b97f4a7c15) & MASK) ^ ((epoch * 0xd1342543de82ef95 + 1) & MASK))
    keys = []
    for _ in range(8):
        key = (key + 0x9e3779b97f4a7c15) & MASK
        keys.append(mix(key))

    def encrypt(value):
        left, right = value >> half, value & (2**half - 1)
        for k in keys:
            left, right = right, left ^ (mix(right ^ k) & (2**half - 1))
        return left << half | right

    samples = []
    for value in range(count):
        value = encrypt(value)
        while value >= count:
            value = encrypt(value)
        samples.append(value)
    return samples


class Island:
    def __init__(self):
        self.weights = initial_weights()
        self.optimizer = make_optimizer("adamw", self.weights)

    def step(self, step, tokens, targets):
        self.optimizer.zero_grad()
        loss = head_loss_sum(self.weights, trunk(self.weights, tokens), targets) / targets.numel()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), TRAIN["clip_norm"])
        for group in self.optimizer.param_groups:
            group["lr"] = lr_at(step)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": norm.item()}


@torch.no_grad()
def outer_step(outer, anchors, islands):
    for name, anchor in anchors.items():
        moved = [anchor - island.weights[name] for island in islands]
        anchor.grad = torch.stack(moved).mean(0)
    outer.step()
    for name, anchor in anchors.items():
        states = [island.optimizer.state[island.weights[name]] for island in islands]
        for kind in ("exp_avg", "exp_avg_sq"):
            mean = torch.stack([state[kind] for state in states]).mean(0)
            for state in states:
                state[kind].copy_(mean)
        for island in islands:
            island.weights[name].copy_(anchor)


def run(case):
    length = MODEL["context"]
    stream = torch.tensor([token(i) for i in range(SAMPLES * length + 1)])
    tokens = stream[:-1].view(SAMPLES, length)
    targets = stream[1:].view(SAMPLES, length)
    islands = [Island() for _ in range(ISLANDS)]
    anchors = {name: w.detach().clone().requires_grad_(True)
               for name, w in islands[0].weights.items()}
    outer = torch.optim.SGD(anchors.values(), lr=case["lr"], momentum=case["momentum"],
                            nesterov=case["nesterov"])
    curve = []
    part = SAMPLES // ISLANDS
    for step in range(TRAIN["steps"]):
        visited = order(SAMPLES, seed=0, epoch=step)  # a batch is an epoch
        of_islands = []
        for i, island in enumerate(islands):
            own = torch.tensor(visited[i * part:(i + 1) * part])
            of_islands.append(island.step(step, tokens[own], targets[own]))
        curve.append({"islands": of_islands, "lr": lr_at(step)})
        if (step + 1) % EVERY == 0:
            outer_step(outer, anchors, islands)
    return {**case, "parameters": list(anchors), "steps": curve, "final": final_state(anchors)}


def main():
    TRAIN.update(OPTIMIZERS["adamw"])
    print(json.dumps({"torch": torch.__version__, "model": MODEL, "samples": SAMPLES,
                      "train": TRAIN, "every": EVERY, "cases": [run(case) for case in CASES]},
                     indent=1))


if __name__ == "__main__":
    main()
