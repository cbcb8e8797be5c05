#!/usr/bin/env python3
"""Makes tests/golden/vit/: a tiny ViT as Hugging Face transformers saves it.

    python3 tests/golden/make_vit_weights.py

Needs torch and transformers. Weights come from the integer formula of make_gpt2_curve.py;
expected.json has the loss and the accuracy of the evaluation mode on the images of
make_resnet_curve.py, normalised as in make_vit_curve.py.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
import transformers

from make_gpt2_curve import uniform
from make_resnet_curve import CLASSES, SIZE
from make_vit_curve import inputs

FOLDER = pathlib.Path(__file__).parent / "vit"


def main():
    torch.set_num_threads(1)
    network = transformers.ViTForImageClassification(transformers.ViTConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24,
        image_size=SIZE, patch_size=8, num_labels=CLASSES, layer_norm_eps=1e-6))
    with torch.no_grad():
        for index, (name, value) in enumerate(network.named_parameters()):
            values = uniform(index, value.numel()).reshape(value.shape) * 0.3
            norm_weight = "layernorm" in name and name.endswith(".weight")
            value.copy_(values + 1 if norm_weight else values)
    network.eval()
    pixels, labels = inputs()
    with torch.no_grad():
        logits = network(pixels).logits
    network.save_pretrained(FOLDER)
    (FOLDER / "expected.json").write_text(json.dumps({
        "torch": torch.__version__, "transformers": transformers.__version__,
        "loss": F.cross_entropy(logits, labels).item(),
        "accuracy": (logits.argmax(1) == labels).float().mean().item()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
