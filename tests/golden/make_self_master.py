#!/usr/bin/env python3
"""Makes self_master.json: AdamW on bf16 parameters that are their own masters, by bf16 gradients.

    python3 tests/golden/make_self_master.py > tests/golden/self_master.json

Needs numpy only. The update is in fp32 from the widened numbers, with the multiply-adds fused as
the kernels fuse them; m and v stay in fp32. The new parameter is rounded at random to one of its
two bf16 neighbours: 16 random bits are added below the 16 that are kept, and what lies there is
cut off. The bits are the upper half of word e % 64 / 16 of Philox 4x32-10 at counter
(e / 64 * 16 + e % 16, step), for element e of the tensor, with a key made of the seed, the purpose
and the tensor's number. All of it is written anew here.
"""
import json

import numpy as np

SEED, TENSOR, PURPOSE = 1234567890123, 4, 6
ELEMENTS, STEPS, FIRST_STEP = 300, 4, 41
RATE, BETA1, BETA2, EPSILON, DECAY, SCALE = 3e-3, 0.9, 0.95, 1e-8, 0.1, 0.37
F = np.float32
M32, M64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def fma(a, b, c):
    """One rounding: the product of two fp32 is exact in fp64."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(F)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(F)


def to_nearest(x):
    bits = x.astype(F).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def split_mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def philox(counter, key):
    for _ in range(10):
        product0, product1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(product1 >> 32) ^ counter[1] ^ key[0], product1 & M32,
                   (product0 >> 32) ^ counter[3] ^ key[1], product0 & M32]
        key = [(key[0] + 0x9E3779B9) & M32, (key[1] + 0xBB67AE85) & M32]
    return counter


def random_bits(step):
    key = split_mix(split_mix(SEED) ^ (PURPOSE << 32 | TENSOR))
    out = []
    for e in range(ELEMENTS):
        at = e // 64 * 16 + e % 16
        words = philox([at & M32, at >> 32, step & M32, step >> 32], [key & M32, key >> 32])
        out.append(words[e % 64 // 16] >> 16)
    return np.array(out, np.uint32)


def update(p, m, v, g, count, step):
    correction1, correction2 = 1 - float(F(BETA1)) ** count, 1 - float(F(BETA2)) ** count
    grad = widen(g) * F(SCALE)
    m = fma(F(BETA1), m, (F(1) - F(BETA1)) * grad)
    v = fma(F(BETA2), v, (F(1) - F(BETA2)) * (grad * grad))
    denominator = fma(np.sqrt(v), F(1 / np.sqrt(correction2)), F(EPSILON))
    decayed = widen(p) * F(1 - float(F(RATE)) * float(F(DECAY)))
    new = fma(F(-F(float(F(RATE)) / correction1)), m / denominator, decayed)
    p = ((new.view(np.uint32) + random_bits(step)) >> 16).astype(np.uint16)
    return p, m, v


def main():
    random = np.random.default_rng(7)
    p = to_nearest(0.05 * random.standard_normal(ELEMENTS))
    gradients = [to_nearest(0.01 * random.standard_normal(ELEMENTS)) for _ in range(STEPS)]
    m, v = np.zeros(ELEMENTS, F), np.zeros(ELEMENTS, F)
    golden = {"seed": SEED, "tensor": TENSOR, "first_step": FIRST_STEP, "rate": RATE,
              "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON, "decay": DECAY, "scale": SCALE,
              "p": p.tolist(), "g": [g.tolist() for g in gradients], "after": []}
    for i, g in enumerate(gradients):
        p, m, v = update(p, m, v, g, i + 1, FIRST_STEP + i)
        golden["after"].append(p.tolist())
    golden["m"], golden["v"] = m.view(np.uint32).tolist(), v.view(np.uint32).tolist()
    print(json.dumps(golden, separators=(",", ":")))


if __name__ == "__main__":
    main()
