#!/usr/bin/env python3
"""Makes loss_scale.json: traces of torch.amp.GradScaler on the CPU.

    python3 tests/golden/make_loss_scale.py > tests/golden/loss_scale.json

Needs torch only. Each step is a real backward of a scaled loss and a real `scaler.step`; a step
overflows where a gradient is made infinite (or a NaN) beforehand. `overflows` are the steps, from
0, where one was; `scales` the scale that each step's backward used, as [first step, scale] wherever
it changed; `skipped` the steps after which the parameter had not moved.
"""
import json

import torch

CASES = {
    # The defaults: two growths, an overflow in between, one at the step that would have grown.
    "defaults": ({}, 8200, [0, 1, 2, 3000, 5001, 5002, 7002]),
    "bursts": ({"growth_interval": 5}, 120,
               [0, 3, 4, 5, 10, 16, 17, 30, 31, 32, 33, 34, 35, 36, 50, 56, 62, 63, 64, 90]),
    "other_factors": ({"init_scale": 1000.0, "growth_factor": 1.7, "backoff_factor": 0.3,
                       "growth_interval": 3}, 80, [7, 8, 20, 21, 22, 41, 60]),
    # The scale cannot grow beyond fp32's range, and goes on.
    "at_the_top": ({"init_scale": 2.0**126, "growth_interval": 2}, 12, [9]),
    # What tests/integration makes overflow in a real training run.
    "training": ({"growth_interval": 4}, 24, [1, 6, 7, 12, 19]),
}


def trace(options, steps, overflows):
    scaler = torch.amp.GradScaler("cpu", **options)
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scales, skipped = [], []
    for step in range(steps):
        scale = scaler.get_scale()
        if not scales or scales[-1][1] != scale:
            scales.append([step, scale])
        optimizer.zero_grad()
        # The gradient does not vanish against the weight, however small the scale.
        scaler.scale((weight * 2.0**-100).sum()).backward()
        if step in overflows:
            weight.grad[step % 2] = float("nan") if step % 3 == 0 else float("inf")
        before = weight.detach().clone()
        weight.data.zero_()
        scaler.step(optimizer)
        if bool((weight == 0).all()):
            skipped.append(step)
        weight.data.copy_(before)
        scaler.update()
    return scales, skipped


def main():
    cases = []
    for name, (options, steps, overflows) in CASES.items():
        scales, skipped = trace(options, steps, set(overflows))
        defaults = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5,
                    "growth_interval": 2000}
        cases.append({"name": name, **(defaults | options), "steps": steps,
                      "overflows": overflows, "scales": scales, "skipped": skipped})
    print(json.dumps({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    main()
