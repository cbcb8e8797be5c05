#!/usr/bin/env python3
"""States saved through torch.distributed.checkpoint and read at other numbers of ranks.

    python3 tests/scripts/dcp_jobs.py BIN_FOLDER

Rows and columns, uneven and empty parts, grids, several dtypes, pickled objects, dcp.save and both
kinds of dcp.async_save, read as rows and as columns and through milepost.checkpoint.load(), and
exported. A save that fails on one rank must fail on all at once. Needs torch and safetensors in the
Python that runs this. Prints a line each, and exits with 1 where something misses.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(__file__).resolve().parent / "programs/dcp_reshard.py"
SPEC = """name: {name}
script:
  command: [{python}, {program}, {name}]
resources: {{ranks: {ranks}}}
restart: {{max_failures: 0}}
"""
# What a job does, its ranks, the job that saved what it begins with, and what it must print.
JOBS = (
    ("none", 2, None, ""),
    ("save0", 4, None, "committed 2"),
    *((mode, ranks, "save0", "tensors of checkpoints/")
      for mode, ranks in (("load0", 1), ("load0", 3), ("load1", 2), ("load0", 5))),
    ("plain", 1, "save0", "whole"),
    ("save1", 4, None, "committed 2"),
    *((mode, ranks, "save1", "tensors of checkpoints/")
      for mode, ranks in (("load0", 2), ("load1", 3), ("load1", 4))),
    ("cut", 1, "save1", ""),
    ("save1async", 2, None, "committed 2"),
    ("load0", 3, "save1async", "tensors of checkpoints/"),
    ("save0process", 2, None, "committed 2"),
    ("load1", 2, "save0process", "tensors of checkpoints/"),
    ("fails", 2, None, "went on"),
)


def run(binaries, folder, mode, ranks, begin):
    """Exit code and what was printed."""
    spec = folder / "spec.yaml"
    text = SPEC.format(name=mode, python=sys.executable, program=PROGRAM, ranks=ranks)
    if begin:
        text += f"checkpoint: {{resume_from: {begin}}}\n"
    spec.write_text(text)
    command = [binaries / "milepost", "run", spec, "--data-dir", folder / "data"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=300)
    return done.returncode, done.stdout


def newest(binaries, folder):
    command = [binaries / "milepost", "checkpoint", "list", "--data-dir", folder / "data",
               "-o", "json"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True, timeout=60)
    listed = json.loads(done.stdout)
    listed = listed.get("checkpoints", []) if isinstance(listed, dict) else listed
    return max((one["name"] for one in listed), key=lambda name: int(name.split("/")[1]))


def check_export(binaries, folder, name):
    import torch
    from safetensors.torch import load_file

    out = folder / "exported"
    subprocess.run([binaries / "milepost", "checkpoint", "export", name, "--data-dir",
                    folder / "data", "--out", out], check=True, timeout=60,
                   stdout=subprocess.DEVNULL)
    tensors = load_file(out / "model.safetensors")
    matrix = tensors["tensors.matrix.float32"]
    assert torch.equal(matrix, (torch.arange(70.0) + 1000).reshape(7, 10)), matrix
    assert (out / "rank0.json").is_file() and (out / "rank3.json").is_file()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--only", help="what these jobs do, with commas between")
    args = parser.parse_args()
    failed, saved = 0, {}
    with tempfile.TemporaryDirectory(prefix="milepost-") as temporary:
        folder = pathlib.Path(temporary)
        for mode, ranks, begin, expected in JOBS:
            if args.only and mode not in args.only.split(","):
                continue
            began = time.monotonic()
            code, text = run(args.bin, folder, mode, ranks, saved.get(begin, begin))
            ok = code == 0 and expected in text
            if ok and mode.startswith("save"):
                saved[mode] = newest(args.bin, folder)
            failed += not ok
            print(f"{'ok  ' if ok else 'FAIL'} {mode} at {ranks} ranks"
                  f"{', saved by ' + begin if begin else ''}: {time.monotonic() - began:.0f} s",
                  flush=True)
            if not ok:
                print(text[-4000:], flush=True)
        if "save0" in saved:
            check_export(args.bin, folder, saved["save0"])
            print("ok   exported", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
