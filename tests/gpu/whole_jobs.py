#!/usr/bin/env python3
"""Whole jobs on a GPU, through CLI, coordinator, worker and trainer, as users run them.

    python3 tests/gpu/whole_jobs.py BIN_FOLDER               on the first GPU
    python3 tests/gpu/whole_jobs.py BIN_FOLDER --device cpu  a look at this script, on any machine

For a small GPT-2 and a small Llama on the project's own docs: a run that nobody disturbs; the same
with its trainer killed (SIGKILL) after the first checkpoint, which must end with the same losses to
the bit; text from its last checkpoint, twice the same. Prints a line each, and exits with 1 where
something misses.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from processes import below  # noqa: E402

STEPS, EVERY = 400, 50
MODELS = {
    "gpt2": "gpt2: {layers: 4, width: 256, heads: 4, context: 256, vocabulary: 256, dropout: 0.1}",
    "llama": "llama: {layers: 4, width: 256, heads: 4, kv_heads: 2, hidden: 704, context: 256, "
    "vocabulary: 256}",
}
SPEC = """name: {name}
model:
  {model}
data: {{train: {data}, validation: {data}, sequence_length: 256}}
train:
  steps: {steps}
  seed: 1
  precision: bf16
  batch: {{global: {batch}, micro: {micro}}}
  optimizer: {{lr: 1e-3}}
  validation: {{every: {every}}}
resources: {{ranks: 1, device: {device}}}
checkpoint: {{every: {every}}}
"""


def milepost(args, *words, **options):
    return subprocess.run(
        [str(args.bin / "milepost"), *map(str, words)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        **options,
    )


def make_data(args, folder):
    text = folder / "docs.txt"
    text.write_text("".join(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))))
    done = milepost(args, "dataset", "tokenize", "--input", text, "--output", folder / "docs.npy")
    if done.returncode != 0:
        sys.exit(f"dataset tokenize: {done.stdout}")
    return folder / "docs.npy"


def run(args, spec, folder, kill_after=None):
    """The last event of `milepost run`, and how often a trainer was killed."""
    command = [
        str(args.bin / "milepost"),
        "run",
        str(spec),
        "--data-dir",
        str(folder),
        "-o",
        "json",
    ]
    kills, finished = 0, None
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "finished":
                finished = event
            if (
                kill_after
                and not kills
                and event["event"] == "progress"
                and event["step"] >= kill_after
            ):
                trainers = [pid for pid, name, _ in below(process.pid) if "milepost-train" in name]
                for pid in trainers:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        errors = process.stderr.read()
    if finished is None or process.returncode != 0:
        sys.exit(f"milepost run: exit {process.returncode}: {errors[-2000:]}")
    return finished, kills


def losses(finished):
    return finished["train_loss"], finished["validation_loss"]


def generate(args, folder):
    done = milepost(
        args,
        "generate",
        "--job",
        "jobs/1",
        "--data-dir",
        folder,
        "--prompt",
        "The coordinator",
        "--tokens",
        200,
        "--seed",
        7,
        "--device",
        args.device,
    )
    return done.returncode == 0 and done.stdout


def check(args, name, folder):
    spec = folder / f"{name}.yaml"
    spec.write_text(
        SPEC.format(
            name=name,
            model=MODELS[name],
            data=folder / "docs.npy",
            steps=args.steps,
            every=EVERY,
            device=args.device,
            batch=args.batch,
            micro=args.batch // 2,
        )
    )
    begin = time.monotonic()
    whole, _ = run(args, spec, folder / f"{name}-whole")
    seconds = time.monotonic() - begin
    killed, kills = run(args, spec, folder / f"{name}-killed", kill_after=EVERY + 20)
    same = (
        kills > 0
        and losses(killed) == losses(whole)
        and whole["state"] == killed["state"] == "SUCCEEDED"
    )
    print(
        f"{'ok  ' if same else 'FAIL'} {name}: {losses(whole)} in {seconds:.1f} s,"
        f" {whole['tokens_per_second']:.0f} tokens/s, {whole['allocated_bytes'] / 2**20:.1f} MiB of"
        f" {whole['planned_bytes'] / 2**20:.1f} planned; {kills} killed: {losses(killed)}",
        flush=True,
    )
    texts = [generate(args, folder / f"{name}-whole") for _ in range(2)]
    wrote = bool(texts[0]) and texts[0] == texts[1]
    print(f"{'ok  ' if wrote else 'FAIL'} {name}: text {texts[0]!r:.300}", flush=True)
    return same and wrote


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    args.bin = args.bin.resolve()
    with tempfile.TemporaryDirectory(prefix="milepost-") as folder:
        make_data(args, pathlib.Path(folder))
        done = [check(args, name, pathlib.Path(folder)) for name in MODELS]
    doctor = milepost(args, "doctor")
    print(doctor.stdout, flush=True)
    if args.device == "cuda":
        bench = milepost(args, "bench", "device", "--device", "cuda")
        print(bench.stdout[-3000:], flush=True)
        done.append(bench.returncode == 0)
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
