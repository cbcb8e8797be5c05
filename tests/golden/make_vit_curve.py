#!/usr/bin/env python3
"""Makes vit_curve.json: 20 training steps of a tiny ViT in Hugging Face transformers, fp32.

    python3 tests/golden/make_vit_curve.py > tests/golden/vit_curve.json

Needs torch and transformers. The model is ViTForImageClassification without dropout, under AdamW
with label smoothing, and under Muon and LAMB without. Initial weights come from the integer formula
of make_gpt2_curve.py, images and labels from those of make_resnet_curve.py; vit_curve_test.cc
repeats them. Names are those of the files that transformers writes. Every step trains on all
samples, so the order in which a data loader visits them does not matter.

Besides each step's loss and gradient norm: before the first step, the logits of all samples and the
norm of every parameter's gradient; after the last step, what the weights have become, and the loss
and the accuracy of the evaluation mode then.
"""
import json

import torch
import torch.nn.functional as F
import transformers

from make_gpt2_curve import final_state, lr_at, make_optimizer, uniform, OPTIMIZERS, TRAIN
from make_resnet_curve import images, CLASSES, SAMPLES, SIZE

MODEL = {"layers": 2, "width": 32, "heads": 4, "hidden": 40, "patch_size": 8, "classes": CLASSES,
         "norm_epsilon": 1e-12}
MEAN = [0.5, 0.25, 0.75]
DEVIATION = [0.5, 0.25, 0.4]
CASES = {"adamw": {"label_smoothing": 0.1}, "muon": {"label_smoothing": 0.0},
         "lamb": {"label_smoothing": 0.0}}
# With LAMB's rate of the other curves, 0.02, the gradient's norm jumps about while the loss falls
# to 0.01: this script in fp64 is then 1.5e-4 from itself in fp32. With this one, 1.4e-6.
RATES = {"lamb": {"lr": 0.005}}
FILE_NAMES = [("vit.layers.", "vit.encoder.layer."),
              (".attention.q_proj.", ".attention.attention.query."),
              (".attention.k_proj.", ".attention.attention.key."),
              (".attention.v_proj.", ".attention.attention.value."),
              (".attention.o_proj.", ".attention.output.dense."),
              (".mlp.fc1.", ".intermediate.dense."), (".mlp.fc2.", ".output.dense.")]


def in_files(name):
    """What transformers' files call a parameter that its version 5 has another name for."""
    for here, there in FILE_NAMES:
        name = name.replace(here, there)
    return name


def build():
    network = transformers.ViTForImageClassification(transformers.ViTConfig(
        num_hidden_layers=MODEL["layers"], hidden_size=MODEL["width"],
        num_attention_heads=MODEL["heads"], intermediate_size=MODEL["hidden"], image_size=SIZE,
        patch_size=MODEL["patch_size"], num_labels=CLASSES, layer_norm_eps=MODEL["norm_epsilon"],
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager"))
    with torch.no_grad():
        for index, (name, weight) in enumerate(network.named_parameters()):
            values = uniform(index, weight.numel()).reshape(weight.shape) * 0.3
            norm_weight = "layernorm" in name and name.endswith(".weight")
            weight.copy_(values + 1 if norm_weight else values)
    return network.float()


def inputs():
    pixels, labels = images()
    normal = (pixels / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    return normal.permute(0, 3, 1, 2), labels


def train(kind, case):
    TRAIN.clear()
    TRAIN.update({"steps": 20, "clip_norm": 1.0, "warmup_steps": 4, "final_lr_ratio": 0.1}
                 | OPTIMIZERS[kind] | RATES.get(kind, {}))  # for lr_at
    network = build().train()
    pixels, labels = inputs()
    weights = {in_files(name): weight for name, weight in network.named_parameters()}
    optimizer = make_optimizer(kind, weights, (".encoder.layer.",))
    result = case | {"optimizer": kind, "train": dict(TRAIN), "samples": SAMPLES,
                     "parameters": list(weights), "steps": []}
    for step in range(TRAIN["steps"]):
        logits = network(pixels).logits
        loss = F.cross_entropy(logits, labels, label_smoothing=case["label_smoothing"])
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            result["logits"] = logits.tolist()
            result["gradient_norms"] = {n: w.grad.norm().item() for n, w in weights.items()}
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        result["steps"].append({"loss": loss.item(), "grad_norm": norm.item(), "lr": lr_at(step)})
    result["final"] = final_state(weights)
    network.eval()
    with torch.no_grad():
        logits = network(pixels).logits
    result["evaluation"] = {"loss": F.cross_entropy(logits, labels).item(),
                            "accuracy": (logits.argmax(1) == labels).float().mean().item()}
    return result


def main():
    torch.set_num_threads(1)
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__,
                      "image_size": SIZE, "pixel_mean": MEAN, "pixel_deviation": DEVIATION,
                      "model": MODEL,
                      "cases": {kind: train(kind, case) for kind, case in CASES.items()}}))


if __name__ == "__main__":
    main()
