"""What each Python process of a rank does when it starts (sitecustomize.py)."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class SitecustomizeTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.positions = pathlib.Path(self.folder.name, "position")
        self.positions.mkdir()
        self.own = pathlib.Path(self.folder.name, "own")
        self.own.mkdir()

    def make_torch(self):
        """In place of PyTorch's: a module of that name."""
        torch = self.own / "torch/distributed"
        torch.mkdir(parents=True)
        (torch / "distributed_c10d.py").write_text("_world = 1\n")

    def run_python(self, text, paths=(), positions=True):
        path = os.pathsep.join([str(ROOT / "at_start"), *map(str, paths), str(ROOT)])
        environment = dict(os.environ, PYTHONPATH=path)
        environment.pop("MILEPOST_POSITION_FOLDER", None)
        if positions:
            environment["MILEPOST_POSITION_FOLDER"] = str(self.positions)
        return subprocess.run([sys.executable, "-B", "-c", text], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)

    def test_another_sitecustomize_runs_too(self):
        (self.own / "sitecustomize.py").write_text("import builtins\nbuiltins.there = 3\n")
        for positions in (True, False):
            done = self.run_python("print(there)", [self.own], positions)
            self.assertEqual((done.stdout, done.stderr), ("3\n", ""))
        (self.own / "sitecustomize.py").write_text("1 / 0\n")
        done = self.run_python("print('goes on')", [self.own])
        self.assertEqual(done.stdout, "goes on\n")
        self.assertIn("ZeroDivisionError", done.stderr)

    def test_it_is_quiet_where_it_can_do_nothing(self):
        self.positions.rmdir()
        done = self.run_python("print('fine')")
        self.assertEqual((done.stdout, done.stderr), ("fine\n", ""))

    def test_no_thread_and_no_module_without_torch(self):
        done = self.run_python(
            "import sys, threading\n"
            "print(threading.active_count(), 'torch' in sys.modules, 'json' in sys.modules)")
        self.assertEqual((done.stdout, done.stderr), ("1 False False\n", ""))
        self.assertEqual(list(self.positions.iterdir()), [])

    def test_a_fork_leaves_its_parents_files(self):
        done = self.run_python(
            "import os, sys\n"
            "child = os.fork()\n"
            "if child == 0: sys.exit()\n"
            "os.waitpid(child, 0)\n"
            "print(sorted(os.listdir(os.environ['MILEPOST_POSITION_FOLDER'])) =="
            " [str(os.getpid()) + '.stacks'])")
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))

    def test_another_importer_may_wrap_it(self):
        self.make_torch()
        done = self.run_python(
            "import sys\n"
            "class Wrapped:\n"
            "    def __init__(self, one): self.one = one\n"
            "    def find_spec(self, *given): return self.one.find_spec(*given)\n"
            "sys.meta_path[:] = [Wrapped(one) for one in sys.meta_path]\n"
            "import threading, torch.distributed.distributed_c10d\n"
            "print(threading.active_count())", [self.own])
        self.assertEqual((done.stdout, done.stderr), ("2\n", ""))

    def test_a_fork_that_imports_torch_does_not_answer_for_its_parent(self):
        self.make_torch()
        done = self.run_python(
            "import os, sys, threading\n"
            "child = os.fork()\n"
            "import torch.distributed.distributed_c10d\n"
            "if child == 0: os._exit(threading.active_count())\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), threading.active_count())",
            [self.own])
        self.assertEqual((done.stdout, done.stderr), ("1 2\n", ""))

    def test_a_sub_interpreter_leaves_the_files(self):
        try:
            import _xxsubinterpreters  # noqa: F401
        except ImportError:
            self.skipTest("this Python names them otherwise")
        done = self.run_python(
            "import os, _xxsubinterpreters as inner\n"
            "one = inner.create()\n"
            "inner.run_string(one, 'import os')\n"
            "inner.destroy(one)\n"
            "print(sorted(os.listdir(os.environ['MILEPOST_POSITION_FOLDER'])) =="
            " [str(os.getpid()) + '.stacks'])")
        self.assertEqual((done.stdout, done.stderr), ("True\n", ""))

    def test_an_exceptions_stack_is_kept(self):
        done = self.run_python("def f(): raise ValueError('no')\nf()")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ValueError: no", done.stderr)
        (file,) = self.positions.iterdir()
        self.assertEqual(file.read_text(), 'Thread 0x0 (most recent call first):\n'
                         '  File "<string>", line 1 in f\n  File "<string>", line 2 in <module>\n')


if __name__ == "__main__":
    unittest.main()
