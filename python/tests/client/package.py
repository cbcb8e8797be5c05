"""What is imported when, and that everything public is explained."""

import inspect
import subprocess
import sys
import unittest

import milepost
from milepost import client, errors
from run import ROOT


def python(text):
    """What another process prints."""
    done = subprocess.run([sys.executable, "-B", "-c", text], cwd=ROOT / "python", text=True,
                          capture_output=True, check=False, timeout=60)
    return done.stdout + done.stderr


class ImportTest(unittest.TestCase):
    def test_scripts_load_no_client(self):
        self.assertEqual(python("import sys, milepost\n"
                                "print([one for one in sys.modules if one.startswith(\n"
                                "    ('grpc', 'google', 'yaml', 'milepost.client'))])"), "[]\n")

    def test_the_client_is_there_when_it_is_asked_for(self):
        self.assertEqual(python("import milepost\nprint(milepost.Client.__name__)"), "Client\n")
        self.assertEqual(python("from milepost import AsyncClient\nprint(1)"), "1\n")

    def test_what_is_missing_is_named(self):
        for name in ("grpc", "google.protobuf"):
            said = python(f"import sys\nsys.modules['{name}'] = None\nimport milepost\n"
                          "milepost.report(1)\nmilepost.Client()")
            self.assertIn("ImportError: milepost.Client needs grpcio and protobuf: pip install "
                          "'milepost[client]'", said)
        self.assertIn("has no attribute 'Klient'", python("import milepost\nmilepost.Klient"))


class PublicTest(unittest.TestCase):
    def test_everything_is_explained(self):
        shown = [client, errors, *(getattr(client, name) for name in client.__all__),
                 *(kind for _, kind in inspect.getmembers(errors, inspect.isclass))]
        for one in shown:
            self.assertTrue(inspect.getdoc(one), one)
            for name, member in inspect.getmembers(one):
                if not name.startswith("_") and (inspect.isfunction(member)
                                                 or isinstance(member, property)):
                    self.assertTrue(inspect.getdoc(member), f"{one}.{name}")

    def test_both_clients_have_the_same_methods(self):
        for blocking, awaited in ((client.Client, client.AsyncClient),
                                  (client.Job, client.AsyncJob)):
            names = [name for name in dir(blocking) if not name.startswith("_")]
            self.assertEqual(names, [name for name in dir(awaited) if not name.startswith("_")])
            for name in names:
                one, other = getattr(blocking, name), getattr(awaited, name)
                if inspect.isfunction(one):
                    self.assertEqual(list(inspect.signature(one).parameters.values()),
                                     list(inspect.signature(other).parameters.values()), name)
            self.assertTrue(len(names) > 10)

    def test_in_a_job_the_package_is_as_before(self):
        self.assertIsNone(milepost.job())
        self.assertEqual(milepost.Job.__module__, "milepost._job")
