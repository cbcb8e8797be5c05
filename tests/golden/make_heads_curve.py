#!/usr/bin/env python3
"""Makes heads_curve.json: 20 training steps of tiny models with further heads, in PyTorch, fp32.

    python3 tests/golden/make_heads_curve.py > tests/golden/heads_curve.json

Needs torch and transformers. Three cases: the GPT-2 of make_gpt2_curve.py with two further heads of
different weights, the packed and padded BERT of make_bert_curve.py and the ResNet of
make_resnet_curve.py with one each. A head is a linear layer over what the trunk makes (GPT-2: the
last norm's output, BERT: the last layer's, ResNet: the pooled features); its loss is the mean cross
entropy over the labels that are there, and the loss that is trained is the weighted sum. Labels
come from `label`, which heads_curve_test.cc repeats.
"""
import json

import torch
import torch.nn.functional as F
import transformers

import make_bert_curve
import make_gpt2_curve
import make_resnet_curve
from make_gpt2_curve import OPTIMIZERS, TRAIN, final_state, lr_at, make_optimizer, uniform

HEADS = {
    "gpt2": {"head_weight": 0.5, "heads": [{"name": "kind", "classes": 7, "weight": 2.0},
                                           {"name": "next", "classes": 130, "weight": 0.25}]},
    "bert": {"head_weight": 1.0, "heads": [{"name": "tag", "classes": 9, "weight": 0.5}]},
    "resnet": {"head_weight": 0.75, "heads": [{"name": "shade", "classes": 3, "weight": 1.5}]},
}


def label(i, head):
    """Of the i-th token or image, for the head of this number; -1: none."""
    classes = head["classes"]
    return -1 if (i + len(head["name"])) % 5 == 2 else (i * i // 3 + i // 7 + classes) % classes


def labels_of(numbers, head):
    return torch.tensor([label(i, head) for i in numbers])


def add_heads(case, weights, width):
    """Behind the trunk's in the order of the formulas."""
    for head in case["heads"]:
        for name, shape in (("weight", (head["classes"], width)), ("bias", (head["classes"],))):
            count = head["classes"] * (width if name == "weight" else 1)
            values = uniform(len(weights), count).reshape(shape) * 0.3
            weights[f"heads.{head['name']}.{name}"] = values.clone().requires_grad_(True)


def head_losses(case, weights, features, labels):
    """`features`: [N, C]; `labels`: [N] of each head, -1: none."""
    losses = []
    for head, wanted in zip(case["heads"], labels):
        layer = f"heads.{head['name']}."
        logits = F.linear(features, weights[layer + "weight"], weights[layer + "bias"])
        losses.append(F.cross_entropy(logits, wanted, ignore_index=-1))
    return losses


def train(case, weights, losses_at):
    """`losses_at`: of a step, the mean losses of all heads, the family's own first."""
    optimizer = make_optimizer("adamw", weights)
    factors = [case["head_weight"]] + [head["weight"] for head in case["heads"]]
    case |= {"parameters": list(weights), "steps": []}
    for step in range(TRAIN["steps"]):
        losses = losses_at(step)
        loss = sum(factor * each for factor, each in zip(factors, losses))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        case["steps"].append({"loss": loss.item(), "heads": [each.item() for each in losses],
                              "grad_norm": norm.item(), "lr": lr_at(step)})
    case["final"] = final_state(weights)
    return case


def gpt2():
    case = HEADS["gpt2"] | {"model": make_gpt2_curve.MODEL, "samples": make_gpt2_curve.SAMPLES}
    length, samples = case["model"]["context"], case["samples"]
    stream = torch.tensor([make_gpt2_curve.token(i) for i in range(samples * length + 1)])
    tokens, targets = (s.view(samples, length) for s in (stream[:-1], stream[1:]))
    weights = make_gpt2_curve.initial_weights()
    add_heads(case, weights, case["model"]["width"])
    labels = [labels_of(range(samples * length), head) for head in case["heads"]]

    def losses(step):
        features = make_gpt2_curve.trunk(weights, tokens)
        own = make_gpt2_curve.head_loss_sum(weights, features, targets) / targets.numel()
        return [own] + head_losses(case, weights, features.flatten(0, 1), labels)

    return train(case, weights, losses)


def bert():
    data = make_bert_curve.CASES["documents"]
    case = HEADS["bert"] | {"model": make_bert_curve.MODEL, "samples": make_bert_curve.BATCH,
                            "seed": make_bert_curve.SEED,
                            "masking": make_bert_curve.MASKING, "data": data}
    length, samples = case["model"]["context"], case["samples"]
    network = make_bert_curve.build()
    weights = dict(network.named_parameters())
    add_heads(case, weights, case["model"]["width"])
    # The file holds one sample; of padding there are no labels.
    labels = [torch.where(torch.tensor([make_bert_curve.token(t) for t in range(length)])
                          == data["padding"], -1, labels_of(range(length), head)).repeat(samples)
              for head in case["heads"]]

    def losses(step):
        masked = [make_bert_curve.masked(step * samples + i, data) for i in range(samples)]
        inputs = torch.tensor([s[0] for s in masked])
        targets = torch.tensor([s[1] for s in masked])
        features = []
        hook = network.bert.register_forward_hook(
            lambda module, args, output: features.append(output.last_hidden_state))
        logits = make_bert_curve.forward(network, inputs, data)
        hook.remove()
        own = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return [own] + head_losses(case, weights, features[0].flatten(0, 1), labels)

    return train(case, weights, losses)


def resnet():
    model = make_resnet_curve.CASES["bottleneck"]["model"]
    case = HEADS["resnet"] | {"model": model, "samples": make_resnet_curve.SAMPLES,
                              "image_size": make_resnet_curve.SIZE,
                              "classes": make_resnet_curve.CLASSES}
    network = make_resnet_curve.build(model).train()
    weights = dict(network.named_parameters())
    add_heads(case, weights, network.config.hidden_sizes[-1])
    pixels, targets = make_resnet_curve.images()
    inputs = make_resnet_curve.normalised(pixels)
    labels = [labels_of(range(case["samples"]), head) for head in case["heads"]]

    def losses(step):
        features = network.resnet(inputs).pooler_output.flatten(1)
        own = F.cross_entropy(network.classifier(features), targets,
                              label_smoothing=model["label_smoothing"])
        return [own] + head_losses(case, weights, features, labels)

    return train(case, weights, losses)


def main():
    torch.set_num_threads(1)
    TRAIN.update(OPTIMIZERS["adamw"])
    cases = {"gpt2": gpt2(), "bert": bert(), "resnet": resnet()}
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                      "train": TRAIN, "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
