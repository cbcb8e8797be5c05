#!/usr/bin/env python3
"""The golden curves by PyTorch on the first GPU, for a comparison on the same device.

    python3 tests/golden/on_gpu.py FOLDER                   writes FOLDER/gpt2_curve.json, ...
    python3 tests/golden/on_gpu.py FOLDER --check BINARY    and runs gpu_golden_test against them

Runs the generators of this folder as they are, but with what they make on the GPU, and without
TF32. Prints the families whose generator ran, and why the others' did not: all but GPT-2's need
transformers. Exits with 1 where not even one did. `--device cpu` is for a look at this script.
"""
import argparse
import contextlib
import os
import pathlib
import runpy
import sys

import torch

# By family, the test of its curve that has least besides.
FAMILIES = {"gpt2": "Gpt2Curve.WholeBatchAtOnce",
            "llama": "LlamaCurve.GroupedQueriesAndScaledRotations",
            "bert": "BertCurve.OneDocument", "resnet": "ResNetCurve.BottlenecksWithLabelSmoothing",
            "vit": "VitCurve.LabelSmoothing"}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--check", metavar="BINARY")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.set_default_device(args.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    here = pathlib.Path(__file__).resolve().parent
    sys.path.insert(0, str(here))
    args.folder.mkdir(parents=True, exist_ok=True)
    made = []
    for family in FAMILIES:
        script = here / f"make_{family}_curve.py"
        target = args.folder / f"{family}_curve.json"
        sys.argv = [str(script)]
        try:
            with target.open("w") as file, contextlib.redirect_stdout(file):
                runpy.run_path(str(script), run_name="__main__")
            made.append(family)
        except ImportError as error:
            target.unlink()
            print(f"{family}: {error}", file=sys.stderr)
    print("PyTorch on this device:", ", ".join(made) or "no family", flush=True)
    if made and args.check:
        os.chdir(here.parents[1])
        os.environ["MILEPOST_GOLDEN_FOLDER"] = str(args.folder.resolve())
        tests = ":".join(FAMILIES[family] for family in made)
        os.execv(args.check, [args.check, f"--gtest_filter={tests}"])
    sys.exit(0 if made else 1)


if __name__ == "__main__":
    main()
