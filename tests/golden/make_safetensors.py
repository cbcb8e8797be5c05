"""Writes tests/golden/small.safetensors with the reference implementation.

    pip install torch safetensors
    python tests/golden/make_safetensors.py

Made with safetensors 0.8.0 and torch 2.15.0. Values are element i -> i * scale + shift, which the
test computes by itself (engine/state/safetensors_test.cc).
"""

import pathlib

import torch
from safetensors.torch import save_file


def tensor(dtype, shape, scale=1, shift=0):
    count = 1
    for dimension in shape:
        count *= dimension
    values = torch.arange(count, dtype=torch.float64) * scale + shift
    return values.to(dtype).reshape(shape)


def main():
    tensors = {
        "b.weight": tensor(torch.float32, (3, 5), 0.25, -1),
        "a.weight": tensor(torch.float32, (2, 2), 0.5),
        "scalar": tensor(torch.float32, (), 1, 7),
        "empty": tensor(torch.float32, (0, 4)),
        "half": tensor(torch.float16, (7,), 0.125, -0.25),
        "brain": tensor(torch.bfloat16, (3, 3), 1.5, -4),
        "ids": tensor(torch.int64, (4,), 3),
        "mask": tensor(torch.bool, (2,), 1),
        "bytes": tensor(torch.uint8, (3,), 9),
        "quote\" and é": tensor(torch.float32, (1,), 1, 2),
    }
    path = pathlib.Path(__file__).parent / "small.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
