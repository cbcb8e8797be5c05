#!/usr/bin/env python3
"""Tests of milepost.Client.

    run.py                  what needs no program: a coordinator of the test answers
    run.py --bin BIN        against a coordinator and a worker of a build
    run.py streams.LogsTest  only these: module, class or case

Exits with 77, and says so, where grpcio, protobuf or PyYAML are not installed.
"""

import argparse
import importlib
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ALONE = ("calls", "curves_view", "login", "package", "specs", "streams", "tracker_runs")
LIVE = ("live_jobs", "live_places", "live_specs", "live_docs")


def missing():
    for name in ("grpc", "grpc.aio", "google.protobuf", "yaml"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            return str(error)
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "python"), str(HERE), str(ROOT / "tests"),
                    str(ROOT / "tests" / "procedures")]
    absent = missing()
    if absent:
        print(f"SKIPPED: {sys.executable}: {absent}; scripts/bootstrap installs what is missing")
        return 77
    if options.bin:
        import place
        place.BINARIES = options.bin.resolve()
    names = options.names or (LIVE if options.bin else ALONE)
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    passed = unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
