#!/usr/bin/env python3
"""Prints the tables of docs/use/memory.md: bytes per rank by ZeRO stage, recomputation,
precision and optimizer.

    scripts/memory_table.py --milepost build/dev/bin/milepost > tables.md

The figures come from `milepost plan`. A trainer allocates exactly what was planned, in one piece (a
test holds it to that), so they are what a rank uses for parameters, gradients, optimizer state,
activations and buffers. Nothing is trained and no data is read.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

MODELS = {
    "GPT-2 124M": {
        "family": "gpt2",
        "model": "{layers: 12, width: 768, heads: 12, context: 1024, vocabulary: 50257}",
        "sequence": 1024,
        "micro": 4,
    },
    "Llama 3 8B": {
        "family": "llama",
        "model": "{layers: 32, width: 4096, heads: 32, kv_heads: 8, hidden: 14336,"
                 " context: 8192, vocabulary: 128256, rope_theta: 500000}",
        "sequence": 4096,
        "micro": 1,
    },
}
GIB = 1 << 30


def plan(binary, model, ranks, stage, recompute="none", precision="bf16", accumulation=4,
         extra_zero="", optimizer="adamw"):
    spec = f"""name: memory
model:
  {model["family"]}: {model["model"]}
data:
  train: data.npy
  sequence_length: {model["sequence"]}
train:
  steps: 1
  precision: {precision}
  recompute: {recompute}
  batch: {{micro: {model["micro"]}, accumulation: {accumulation}}}
  zero: {{stage: {stage}{extra_zero}}}
  optimizer: {{type: {optimizer}}}
resources:
  ranks: {ranks}
  threads_per_rank: 1
"""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "spec.yaml"
        path.write_text(spec)
        done = subprocess.run([binary, "plan", str(path), "-o", "json"], capture_output=True,
                              text=True, check=False)
    # A plan that does not fit this host is printed all the same.
    if not done.stdout.lstrip().startswith("{"):
        sys.exit(f"milepost plan failed: {done.stderr or done.stdout}\n{spec}")
    return json.loads(done.stdout)


def row(cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def gib(count):
    return f"{count / GIB:.2f}"


def header(cells):
    row(cells)
    row(["---"] + ["---:"] * (len(cells) - 1))


def describe(model, ranks, **options):
    print(f"{ranks} ranks, micro-batch {model['micro']} x {model['sequence']} tokens, "
          + ", ".join(f"{name} {value}" for name, value in options.items()) + ". GiB per rank:\n")


def stages(binary, model, ranks):
    describe(model, ranks, precision="bf16", accumulation=4, recompute="none")
    header(["stage", "parameters", "gradients", "optimizer", "in passing", "activations",
            "scratch", "total", "sent per step"])
    for stage in range(4):
        p = plan(binary, model, ranks, stage)
        b = p["per_rank"]
        row([stage, gib(b["parameters"]), gib(b["gradients"]), gib(b["optimizer"]),
             gib(b["communication"]), gib(b["activations"]),
             gib(b["workspace"] + b["slack"] + b["inputs"]), gib(b["total"]),
             gib(p["wire_bytes_per_step"])])
    print()


def formulas(binary, model, ranks):
    header(["stage", "bytes per parameter", f"at {ranks} ranks", "planned, GiB"])
    rules = ["2 + 4 + 12", "2 + 4 + 12/N", "2 + 4/N + 12/N", "2/N + 4/N + 12/N"]
    shares = [(1, 1, 1), (1, 1, ranks), (1, ranks, ranks), (ranks, ranks, ranks)]
    for stage in range(4):
        p = plan(binary, model, ranks, stage)
        b = p["per_rank"]
        held = b["parameters"] + b["gradients"] + b["optimizer"]
        expected = p["parameters"] * sum(x / y for x, y in zip((2, 4, 12), shares[stage]))
        row([stage, rules[stage], gib(expected), gib(held)])
    print()


def recompute(binary, model, ranks, stage):
    describe(model, ranks, precision="bf16", stage=stage)
    header(["recompute", "activations", "total", "arithmetic"])
    for mode in ("none", "selective", "full"):
        p = plan(binary, model, ranks, stage, recompute=mode)
        more = p["recompute_flops_per_step"] / p["flops_per_step"]
        row([f"`{mode}`", gib(p["per_rank"]["activations"]), gib(p["per_rank"]["total"]),
             f"+{more:.0%}"])
    print()


def precisions(binary, model, ranks):
    describe(model, ranks, accumulation=4, recompute="none")
    header(["precision", "stage 0", "stage 1", "stage 2", "stage 3"])
    for precision in ("fp32", "bf16"):
        row([f"`{precision}`"] + [
            gib(plan(binary, model, ranks, stage, precision=precision)["per_rank"]["total"])
            for stage in range(4)])
    print()


def optimizers(binary, model, ranks, stage):
    describe(model, ranks, precision="bf16", stage=stage, recompute="full")
    header(["optimizer", "optimizer's state", "total", "sent per step"])
    for kind in ("adamw", "lamb", "lion", "sgd", "muon", "adamw_8bit"):
        p = plan(binary, model, ranks, stage, recompute="full", optimizer=kind)
        row([f"`{kind}`", gib(p["per_rank"]["optimizer"]), gib(p["per_rank"]["total"]),
             gib(p["wire_bytes_per_step"])])
    print()


def prefetches(binary, model, ranks):
    describe(model, ranks, precision="bf16", stage=3, recompute="full")
    header(["prefetch", "in passing", "total"])
    for ahead in (0, 1, 2, 4):
        p = plan(binary, model, ranks, 3, recompute="full", extra_zero=f", prefetch: {ahead}")
        row([ahead, gib(p["per_rank"]["communication"]), gib(p["per_rank"]["total"])])
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--milepost", default="build/dev/bin/milepost", help="the CLI")
    binary = parser.parse_args().milepost
    small, large = MODELS["GPT-2 124M"], MODELS["Llama 3 8B"]
    print("### GPT-2 124M\n")
    stages(binary, small, 4)
    formulas(binary, small, 4)
    recompute(binary, small, 4, 1)
    precisions(binary, small, 4)
    print("### Llama 3 8B\n")
    stages(binary, large, 8)
    recompute(binary, large, 8, 3)
    prefetches(binary, large, 8)
    optimizers(binary, large, 8, 1)


if __name__ == "__main__":
    main()
