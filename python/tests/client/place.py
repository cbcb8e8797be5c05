"""A coordinator and a worker of a build, in a folder of the test's."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest
from unittest import mock

from cluster import Place
from waiting import PATIENCE

import milepost

BINARIES = None  # set by run.py
TINY = {
    "name": "tiny",
    "model": {"gpt2": {"layers": 1, "heads": 2, "width": 32, "vocabulary": 256, "context": 32}},
    "data": {"train": "train.npy", "validation": "train.npy", "sequence_length": 32},
    "train": {"steps": 60, "batch": {"global": 4, "micro": 2},
              "validation": {"every": 20, "samples": 8}},
    "resources": {"ranks": 2, "device": "cpu"},
    "checkpoint": {"every": 20},
}


def endless(**fields):
    """Of TINY: it goes on until it is stopped."""
    return {**TINY, "train": {**TINY["train"], "steps": 100_000_000}, **fields}


class PlaceTest(unittest.TestCase):
    """`place` is a cluster.Place, whose folder is the current one."""

    def setUp(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="milepost-client-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        before = os.getcwd()
        os.chdir(folder)
        self.addCleanup(os.chdir, before)
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("MILEPOST_", "XDG_"))}
        patch = mock.patch.dict(os.environ, {**environment, "HOME": str(folder)}, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        self.place = Place(BINARIES, folder)
        self.place.environment = dict(os.environ, OMP_NUM_THREADS="1")
        self.addCleanup(self.place.__exit__)

    def serve(self, *flags, worker=True):
        """Its address."""
        self.serving = self.place.coordinator("c", "c", "--listen", "127.0.0.1:0", *flags)
        address = self.place.address_of("c")
        self.place.login = ["--coordinator", address]
        if worker:
            self.place.worker("w", address, "--allow-scripts")
            self.place.await_ready("w")
        return address

    def client(self, *arguments, **options):
        made = milepost.Client(*arguments, program=str(BINARIES / "milepost"), **options)
        self.addCleanup(made.close)
        return made

    def told(self, *arguments):
        """What the command line prints as JSON."""
        return json.loads(self.place.cli(*arguments, "-o", "json"))


def await_step(job, step):
    """The first of a job's states that has made so many steps."""
    for now in job.updates():
        if now.step >= step:
            return now
    raise AssertionError(f"{job.last} ended at step {job.last.step}")


__all__ = ["PATIENCE", "TINY", "PlaceTest", "await_step", "endless"]
