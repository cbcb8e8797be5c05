#!/usr/bin/env python3
"""Makes ema_curve.json: averages of a tiny GPT-2's weights over 20 training steps by
torch.optim.swa_utils.AveragedModel, fp32.

    python3 tests/golden/make_ema_curve.py > tests/golden/ema_curve.json

Needs torch only. Model, data and training are those of make_gpt2_curve.py. The case "constant" has
get_ema_multi_avg_fn. The case "warmup", which torch has not, hands AveragedModel the decay of
TensorFlow's ExponentialMovingAverage: min(decay, (1 + n) / (10 + n)) at update n. AveragedModel
copies the model at its first update: that is done before the first step. "loss" is that of the
averaged model on all samples after the last step.
"""
import json

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from make_gpt2_curve import (MODEL, OPTIMIZERS, SAMPLES, TRAIN, final_state, head_loss_sum,
                             initial_weights, lr_at, make_optimizer, token, trunk)

DECAY = 0.9


def warmup(average, parameter, updates):
    decay = min(DECAY, (1 + int(updates)) / (10 + int(updates)))
    return decay * average + (1 - decay) * parameter


def train(tokens, targets, **how):
    weights = initial_weights()
    names = list(weights)
    model = torch.nn.ParameterList(weights.values())
    weights = dict(zip(names, model))
    average = AveragedModel(model, **how)
    average.update_parameters(model)
    optimizer = make_optimizer("adamw", weights)
    curve = []
    for step in range(TRAIN["steps"]):
        loss = head_loss_sum(weights, trunk(weights, tokens), targets) / targets.numel()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        average.update_parameters(model)
        curve.append({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr_at(step)})
    averages = dict(zip(names, average.module))
    with torch.no_grad():
        loss = head_loss_sum(averages, trunk(averages, tokens), targets) / targets.numel()
    return {"parameters": names, "steps": curve, "final": final_state(weights),
            "averages": final_state(averages), "loss": loss.item()}


def main():
    TRAIN.update(OPTIMIZERS["adamw"])
    torch.set_num_threads(1)
    length = MODEL["context"]
    stream = torch.tensor([token(i) for i in range(SAMPLES * length + 1)])
    tokens = stream[:-1].view(SAMPLES, length)
    targets = stream[1:].view(SAMPLES, length)
    print(json.dumps({"torch": torch.__version__, "model": MODEL, "samples": SAMPLES,
                      "train": TRAIN, "decay": DECAY,
                      "constant": train(tokens, targets,
                                        multi_avg_fn=get_ema_multi_avg_fn(DECAY)),
                      "warmup": train(tokens, targets, avg_fn=warmup)}, indent=1))


if __name__ == "__main__":
    main()
