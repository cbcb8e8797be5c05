#!/usr/bin/env python3
"""Makes the images that examples/resnet-tiny.yaml and vit-tiny.yaml train on, in examples/data/.

Six kinds of shapes, 32 x 32 pixels: shapes.train.npy (6000 images) and shapes.validation.npy (1000
images) with their labels in *.labels.npy. Needs nothing but Python; the same bytes each time. Does
nothing when they are there.

    scripts/prepare_shapes.py
"""
import os
import random
import struct

SIZE = 32
SHAPES = {
    "disc": lambda x, y: x * x + y * y < 1,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.9,
    "triangle": lambda x, y: y < 0.8 and 2 * abs(x) < y + 1,
    "cross": lambda x, y: min(abs(x), abs(y)) < 0.3 and max(abs(x), abs(y)) < 1,
    "ring": lambda x, y: 0.4 < x * x + y * y < 1,
    "bars": lambda x, y: max(abs(x), abs(y)) < 1 and int((y + 1) * 2.5) % 2 == 0,
}


def write_npy(path, dtype, shape, data):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path + ".tmp", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data)
    os.rename(path + ".tmp", path)


def draw(rng, inside):
    """One shape of any place, size and colour before another colour, with noise."""
    radius = rng.uniform(6, 12)
    centre = [rng.uniform(radius, SIZE - radius) for _ in range(2)]
    front = [rng.randrange(256) for _ in range(3)]
    back = [(c + rng.randrange(80, 176)) % 256 for c in front]
    pixels = bytearray()
    for i in range(SIZE * SIZE):
        x = (i % SIZE + 0.5 - centre[0]) / radius
        y = (i // SIZE + 0.5 - centre[1]) / radius
        colour = front if inside(x, y) else back
        noise = rng.randrange(-24, 25)
        pixels += bytes(min(255, max(0, c + noise)) for c in colour)
    return pixels


def make(path, count, seed):
    if os.path.exists(path + ".npy") and os.path.exists(path + ".labels.npy"):
        print(f"shapes: {path}.npy is there")
        return
    rng = random.Random(seed)
    kinds = list(SHAPES.values())
    labels = [i % len(kinds) for i in range(count)]
    pixels = b"".join(draw(rng, kinds[label]) for label in labels)
    write_npy(path + ".npy", "|u1", (count, SIZE, SIZE, 3), pixels)
    write_npy(path + ".labels.npy", "<i4", (count,), struct.pack(f"<{count}i", *labels))
    print(f"shapes: made {path}.npy, {count} images")


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    os.makedirs("examples/data", exist_ok=True)
    make("examples/data/shapes.train", 6000, 1)
    make("examples/data/shapes.validation", 1000, 2)


if __name__ == "__main__":
    main()
