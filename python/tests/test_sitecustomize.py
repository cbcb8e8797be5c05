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

    def run_python(self, text, paths=(), positions=True):
        path = os.pathsep.join([str(ROOT), *map(str, paths)])
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

    def test_an_exceptions_stack_is_kept(self):
        done = self.run_python("def f(): raise ValueError('no')\nf()")
        self.assertEqual(done.returncode, 1)
        self.assertIn("ValueError: no", done.stderr)
        (file,) = self.positions.iterdir()
        self.assertEqual(file.read_text(), 'Thread 0x0 (most recent call first):\n'
                         '  File "<string>", line 1 in f\n  File "<string>", line 2 in <module>\n')


if __name__ == "__main__":
    unittest.main()
