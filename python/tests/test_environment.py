"""Environments of script.requirements (milepost/_environment.py), from wheels alone."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

PROGRAM = pathlib.Path(__file__).resolve().parent.parent / "milepost/_environment.py"


def has_pip():
    return subprocess.run([sys.executable, "-c", "import pip"], stderr=subprocess.DEVNULL,
                          check=False).returncode == 0


def write_wheel(folder, name, version, text):
    info = "%s-%s.dist-info" % (name, version)
    with zipfile.ZipFile(folder / ("%s-%s-py3-none-any.whl" % (name, version)), "w") as wheel:
        wheel.writestr(name + ".py", text)
        wheel.writestr(info + "/METADATA",
                       "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version))
        wheel.writestr(info + "/WHEEL",
                       "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\n"
                       "Tag: py3-none-any\n")
        wheel.writestr(info + "/RECORD", "")


@unittest.skipUnless(has_pip(), "this Python has no pip")
class EnvironmentTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "cache"
        self.wheels = self.folder / "wheels"
        self.wheels.mkdir()
        write_wheel(self.wheels, "milepost_tiny", "1.0", "VALUE = 7\n")

    def start(self, requirements, wheels=True):
        file = self.folder / "requirements.txt"
        file.write_text(requirements)
        command = [sys.executable, "-B", PROGRAM, "--requirements", file, "--cache", self.cache]
        if wheels:
            command += ["--wheels", self.wheels]
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, universal_newlines=True)

    def make(self, requirements, wheels=True):
        process = self.start(requirements, wheels)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        return json.loads(out.splitlines()[-1])

    def value(self, path):
        command = [path + "/bin/python", "-c", "import milepost_tiny as t; print(t.VALUE)"]
        return subprocess.run(command, stdout=subprocess.PIPE, universal_newlines=True,
                              check=True).stdout.strip()

    def test_it_is_made_once_for_the_same(self):
        first = self.make("milepost_tiny==1.0\n")["path"]
        self.assertEqual(self.value(first), "7")
        made = os.stat(first + "/pyvenv.cfg").st_mtime_ns
        self.assertEqual(self.make("milepost_tiny==1.0\n")["path"], first)
        self.assertEqual(os.stat(first + "/pyvenv.cfg").st_mtime_ns, made)
        write_wheel(self.wheels, "milepost_tiny", "1.1", "VALUE = 8\n")
        other = self.make("milepost_tiny\n")["path"]
        self.assertEqual((self.value(other), self.value(first)), ("8", "7"))

    def test_two_at_once_share_one(self):
        both = [self.start("milepost_tiny\n") for _ in range(2)]
        paths = {json.loads(one.communicate(timeout=120)[0])["path"] for one in both}
        self.assertEqual(len(paths), 1)

    def test_one_that_was_not_finished_is_made_anew(self):
        path = self.make("milepost_tiny\n")["path"]
        os.remove(path + "/ready")
        for name in os.listdir(path):
            if name.startswith("lib") and not os.path.islink(os.path.join(path, name)):
                os.rename(os.path.join(path, name), self.folder / name)
        self.assertEqual(self.make("milepost_tiny\n")["path"], path)
        self.assertEqual(self.value(path), "7")

    def test_what_cannot_be_had_is_said(self):
        for requirements, said in (
                ("no_such_package_of_ours\n", "No matching distribution found for no_such"),
                ("milepost_tiny==2\n", "milepost_tiny==2"), ("a b c d\n", "Invalid requirement"),
                *((line + "\n", "'%s': only packages" % line.strip()) for line in (
                    "-r other.txt", "-rother.txt", "--requirem other.txt", "-e .", "./mine",
                    "libs/x", "/root/x.whl", "mine @ file:///x", "git+file:///x", "-f dir",
                    "--find-links=./dir")),
                ("\ufeff-r x\n", "'-r x': only packages"),
                ("six\n-\\\nr x\n", "'- r x'")):
            answer = self.make(requirements)
            self.assertIn(said, answer["error"], requirements)
            self.assertEqual(answer["kind"], "user", requirements)
        # No index answers at once: trying again may help, but with what no index would know.
        os.environ["PIP_INDEX_URL"] = "http://127.0.0.1:1/"
        os.environ["PIP_RETRIES"] = "0"
        self.addCleanup(os.environ.pop, "PIP_INDEX_URL")
        self.addCleanup(os.environ.pop, "PIP_RETRIES")
        self.assertEqual(self.make("no_such_package_of_ours\n", wheels=False)["kind"], "network")
        self.assertEqual(self.make("a b c d\n", wheels=False)["kind"], "user")
        self.wheels = self.folder / "none"
        answer = self.make("milepost_tiny\n")
        self.assertIn("No such file", answer["error"])
        self.assertEqual(answer["kind"], "host")
        # What failed leaves nothing.
        self.assertEqual([name for name in os.listdir(self.cache) if len(name) == 64], [])

    def test_what_may_stand_in_requirements(self):
        sys.path.insert(0, str(PROGRAM.parent))
        self.addCleanup(sys.path.remove, str(PROGRAM.parent))
        import _environment
        _environment.check(
            "# a remark\neinops==0.8.1 # why\ntorch[cuda]>=2 ; python_version > '3.9'\n"
            "a_b.c ~= 1\nx @ https://x/y.whl\nhttps://x/y.whl\ngit+https://x/y.git@v1\n"
            "--extra-index-url https://x/simple\n--pre\nsix==1 \\\n    --hash=sha256:00\n\n")

    def test_variables_of_pip_count(self):
        first = self.make("milepost_tiny==${TINY}\n")["error"]
        self.assertIn("TINY", first)
        write_wheel(self.wheels, "milepost_tiny", "1.1", "VALUE = 8\n")
        for name in ("TINY", "PIP_TARGET", "PIP_PRE"):
            self.addCleanup(os.environ.pop, name, None)
        os.environ["PIP_TARGET"] = str(self.folder / "elsewhere")
        os.environ["TINY"] = "1.0"
        one = self.make("milepost_tiny==${TINY}\n")["path"]
        os.environ["TINY"] = "1.1"
        other = self.make("milepost_tiny==${TINY}\n")["path"]
        self.assertEqual((self.value(one), self.value(other)), ("7", "8"))
        os.environ["PIP_PRE"] = "1"
        self.assertNotEqual(self.make("milepost_tiny==${TINY}\n")["path"], other)

    def test_pip_that_outlives_its_maker_keeps_the_lock(self):
        slow = self.folder / "slow"
        slow.mkdir()
        (slow / "pip.py").write_text(
            "import os, time\nopen(%r, 'w').close()\ntime.sleep(1000)\n" % str(slow / "there"))
        os.environ["PYTHONPATH"] = str(slow)
        self.addCleanup(os.environ.pop, "PYTHONPATH")
        maker = self.start("milepost_tiny\n")
        while not (slow / "there").exists():
            time.sleep(0.01)
        maker.kill()
        maker.wait()
        maker.stdout.close()  # what it has started has both still
        maker.stderr.close()
        (lock,) = [name for name in os.listdir(self.cache) if name.startswith("lock")]
        import fcntl
        with open(self.cache / lock) as file:
            with self.assertRaises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in os.listdir("/proc"):
            try:
                environment = pathlib.Path("/proc", name, "environ")
                if name.isdigit() and str(slow) in environment.read_text():
                    os.kill(int(name), 9)
            except OSError:
                pass

    def test_the_longest_unused_go(self):
        self.make("milepost_tiny\n")
        old = time.time() - 7200
        for number in range(9):
            other = self.cache / ("%064x" % number)
            other.mkdir()
            (other / "ready").touch()
            os.utime(other / "ready", (old + number, old + number))
        (self.cache / ("f" * 64)).mkdir()
        used = (self.cache / ("%064x" % 0) / "ready").open()
        self.addCleanup(used.close)
        import fcntl
        fcntl.flock(used, fcntl.LOCK_SH)
        newest = self.make("milepost_tiny==1.0\n")["path"]
        left = sorted(name for name in os.listdir(self.cache) if not name.startswith("lock"))
        self.assertIn("%064x" % 0, left)  # it is in use
        self.assertNotIn("%064x" % 1, left)
        self.assertIn("%064x" % 8, left)
        self.assertIn(os.path.basename(newest), left)
        self.assertNotIn("f" * 64, left)  # nobody has finished it

    def test_a_cache_of_others_is_refused(self):
        self.cache.mkdir()
        self.cache.chmod(0o777)
        answer = self.make("milepost_tiny\n")
        self.assertIn("not this user's own", answer["error"])
        self.assertEqual(answer["kind"], "host")


if __name__ == "__main__":
    unittest.main()
