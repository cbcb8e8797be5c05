#!/usr/bin/env python3
"""Makes resnet_curve.json: 20 training steps of tiny ResNets in Hugging Face transformers, fp32.

    python3 tests/golden/make_resnet_curve.py > tests/golden/resnet_curve.json

Needs torch and transformers. Bottleneck layers with label smoothing under AdamW, and basic
layers under each of the others but Muon, which finds no matrix to update. Initial weights come from
the integer formulas of make_gpt2_curve.py, images and labels from the ones below, which
resnet_curve_test.cc repeats. Every step trains on all samples in one micro-batch, so the order in
which a data loader visits them does not matter. Beside the curve the file has the parameters and
running statistics after the last step (base64 of little-endian floats) and the loss and the
accuracy of the evaluation mode then.
"""
import base64
import json

import torch
import torch.nn.functional as F
import transformers

from make_gpt2_curve import lr_at, make_optimizer, uniform, OPTIMIZERS, TRAIN

SAMPLES = 12
SIZE = 32
CLASSES = 5
MEAN = [0.485, 0.456, 0.406]
DEVIATION = [0.229, 0.224, 0.225]
# ReLU's kinks and 8-bit codes make jumps of roundings: with the others' rates, a change of 2e-7 in
# the gradients moved norms of gradients by up to 5e-4 (LAMB) and 2e-3 (8 bits) in one of ten tries.
# With these, by less than 1e-6 in ten of ten.
SMALLER_STEPS = {"lamb": {"lr": 5e-3}, "adamw_8bit": {"lr": 1e-3, "epsilon": 0.1}}
CASES = {
    "bottleneck": {"optimizer": "adamw", "train": TRAIN | OPTIMIZERS["adamw"],
                   "model": {"stages": [1, 2], "bottleneck": True, "width": 4,
                             "label_smoothing": 0.1}},
} | {
    f"basic-{kind}": {"optimizer": kind,
                      "train": TRAIN | OPTIMIZERS[kind] | SMALLER_STEPS.get(kind, {}),
                      "model": {"stages": [2, 1], "bottleneck": False, "width": 8,
                                "label_smoothing": 0.0}}
    for kind in ("sgd", "lion", "lamb", "adamw_8bit")
}


def images():
    n = torch.arange(SAMPLES).view(-1, 1, 1, 1)
    y = torch.arange(SIZE).view(1, -1, 1, 1)
    x = torch.arange(SIZE).view(1, 1, -1, 1)
    c = torch.arange(3).view(1, 1, 1, -1)
    pixels = (n * 97 + y * y * (31 + 2 * n) + x * x * 17 + c * 101 + x * y * (7 + n)) % 256
    return pixels.float(), torch.arange(SAMPLES) % CLASSES


def normalised(pixels):
    return ((pixels / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)).permute(0, 3, 1, 2)


def build(model):
    widths = [model["width"] * 2**i * (4 if model["bottleneck"] else 1)
              for i in range(len(model["stages"]))]
    network = transformers.ResNetForImageClassification(transformers.ResNetConfig(
        embedding_size=model["width"], hidden_sizes=widths, depths=model["stages"],
        layer_type="bottleneck" if model["bottleneck"] else "basic", num_labels=CLASSES))
    with torch.no_grad():
        for index, (name, weight) in enumerate(network.named_parameters()):
            values = uniform(index, weight.numel()).reshape(weight.shape) * 0.3
            norm_weight = "normalization" in name and name.endswith(".weight")
            weight.copy_(values + 1 if norm_weight else values)
    return network.float()


def encoded(tensor):
    return base64.b64encode(tensor.detach().float().cpu().numpy().astype("<f4").tobytes()).decode()


def train(case):
    model = case["model"]
    TRAIN.clear()
    TRAIN.update(case["train"])  # for lr_at
    network = build(model).train()
    pixels, labels = images()
    inputs = normalised(pixels)
    weights = dict(network.named_parameters())
    optimizer = make_optimizer(case["optimizer"], weights)
    curve = []
    for step in range(case["train"]["steps"]):
        loss = F.cross_entropy(network(inputs).logits, labels,
                               label_smoothing=model["label_smoothing"])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), case["train"]["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        curve.append({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr_at(step)})
    network.eval()
    with torch.no_grad():
        logits = network(inputs).logits
    return case | {
        "samples": SAMPLES, "parameters": list(weights), "steps": curve,
        "weights": {name: encoded(weight) for name, weight in weights.items()},
        "statistics": {name: encoded(value) for name, value in network.named_buffers()},
        "evaluation": {"loss": F.cross_entropy(logits, labels).item(),
                       "accuracy": (logits.argmax(1) == labels).float().mean().item()}}


def main():
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                      "image_size": SIZE, "classes": CLASSES,
                      "cases": {name: train(case) for name, case in CASES.items()}}, indent=1))


if __name__ == "__main__":
    main()
