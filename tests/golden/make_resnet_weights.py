#!/usr/bin/env python3
"""Makes tests/golden/resnet/: a tiny ResNet as Hugging Face transformers saves it.

    python3 tests/golden/make_resnet_weights.py

Needs torch and transformers. Weights and running statistics come from the integer formula of
make_gpt2_curve.py; expected.json has the loss and the accuracy that transformers' evaluation mode
has on the images of make_resnet_curve.py.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
import transformers

from make_gpt2_curve import uniform
from make_resnet_curve import images, CLASSES, DEVIATION, MEAN

FOLDER = pathlib.Path(__file__).parent / "resnet"


def main():
    torch.set_num_threads(1)
    network = transformers.ResNetForImageClassification(transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[16, 32], depths=[1, 1], num_labels=CLASSES))
    with torch.no_grad():
        for index, (name, value) in enumerate(network.state_dict().items()):
            values = uniform(index, value.numel()).reshape(value.shape) * 0.3
            if name.endswith("num_batches_tracked"):
                value.fill_(index)
            elif "normalization" in name and name.endswith(("weight", "running_var")):
                value.copy_(values + 1)
            else:
                value.copy_(values)
    network.eval()
    pixels, labels = images()
    inputs = ((pixels / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = network(inputs).logits
    network.save_pretrained(FOLDER)
    (FOLDER / "expected.json").write_text(json.dumps({
        "torch": torch.__version__, "transformers": transformers.__version__,
        "loss": F.cross_entropy(logits, labels).item(),
        "accuracy": (logits.argmax(1) == labels).float().mean().item()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
