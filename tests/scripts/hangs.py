#!/usr/bin/env python3
"""Script jobs in which a rank does not come to a collective call: whether it is named.

    python3 tests/scripts/hangs.py BIN_FOLDER

Needs a torch whose flight recorder knows Gloo (2.15 does) in the Python that runs this. Prints a
line each, and exits with 1 where something misses.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

PROGRAM = pathlib.Path(__file__).resolve().parent / "programs/hangs.py"
SPEC = """name: hangs
script:
  command: [{python}, {program}, {way}]
  environment: {{OMP_NUM_THREADS: "1"}}
resources: {{ranks: 3}}
restart: {{max_failures: 0}}
"""
# What the last rank does, and what must be said of it.
WAYS = (
    ("data", r"2 ranks waited in \S+ of Float\[\d+\] \(call \d+ of default_pg\) for rank 2 on "
             r"workers/\S+, which was at hangs\.py:15 \(load_batch\)\. Rank [01] said: "),
    ("spins", r"2 ranks waited in .* for rank 2 on workers/\S+, which was at "
              r"hangs\.py:3[01] \(main\)\. "),
    ("other", r"ranks do not agree on call \d+ of default_pg: rank 0 on workers/\S+ called "
              r"all_reduce of Float\[5\]; rank 2 on workers/\S+ called broadcast of Float\[5\]"),
    ("raises", r"exit code 1: .*ValueError: a bad batch"),
)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=pathlib.Path)
    arguments = parser.parse_args()
    failed = False
    for way, expected in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            spec = pathlib.Path(folder, "spec.yaml")
            spec.write_text(SPEC.format(python=sys.executable, program=PROGRAM, way=way))
            done = subprocess.run(
                [arguments.binaries / "milepost", "run", spec, "--data-dir", folder],
                text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        found = re.search(expected, done.stdout)
        print("ok  " if found else "FAIL", way, found.group() if found else done.stdout)
        failed |= found is None
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
