"""Makes the Python environment that a job's script.requirements ask for, once on each host.

    python3 _environment.py --requirements requirements.txt --cache FOLDER [--wheels FOLDER]

It is a virtual environment over the packages of the Python that runs this, in CACHE. Its name is
the digest of all that it depends on: that Python, the requirements, the wheels. Many processes may
ask at once, and each may be killed at any moment: an environment has its file `ready` when it is
whole. What was not used for longest goes when there are more than MOST; nothing goes that somebody
uses.

pip's output goes to stderr. The last line on stdout is JSON: {"path": ...}, or {"error": ...,
"for_good": true} where trying again would not help.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import time
import venv

MOST = 8
YOUNG_SECONDS = 3600  # whoever has just asked for it may not have locked it yet
MOST_BYTES = 1 << 20
# What the file says must be all that decides about what is installed.
REFUSED = re.compile(
    r"(-r|-c|-e|--requirement|--constraint|--editable)(\b|=|$)|[./]|file:|\S+\s*@\s*file:")


class Problem(Exception):
    def __init__(self, text, for_good=True):
        super().__init__(text)
        self.for_good = for_good


def read_requirements(path):
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode()
    except OSError as why:
        raise Problem("%s: %s" % (os.path.basename(path), why.strerror)) from None
    except UnicodeDecodeError:
        raise Problem("%s is no text" % os.path.basename(path)) from None
    if len(data) > MOST_BYTES:
        raise Problem("%s has more than 1 MiB" % os.path.basename(path))
    for number, line in enumerate(text.splitlines(), 1):
        if REFUSED.match(line.strip()):
            raise Problem("line %d, '%s': only names of packages, URLs and pip's options for "
                          "indexes may stand there, not other files and folders"
                          % (number, line.strip()[:80]))
    return text


def listing(folder):
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns)
                          for entry in entries)
    except OSError as why:
        raise Problem("script.wheels: %s: %s" % (folder, why.strerror)) from None


def digest(text, wheels):
    facts = [os.path.realpath(sys.executable), sys.version, sys.prefix, text, wheels,
             listing(wheels) if wheels else None]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def make(path, requirements, wheels):
    shutil.rmtree(path, ignore_errors=True)
    venv.EnvBuilder(system_site_packages=True, symlinks=True).create(path)
    python = os.path.join(path, "bin", "python")
    see_packages_below(python)
    if subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        done = subprocess.run([python, "-m", "ensurepip"], stdout=sys.stderr, check=False)
        if done.returncode != 0:
            raise Problem("%s has no pip: install it on the host (python3-pip)" % sys.executable)
    run_pip(python, requirements, wheels)
    with open(os.path.join(path, "ready"), "w") as file:
        file.flush()
        os.fsync(file.fileno())


def see_packages_below(python):
    """Where this Python is a virtual one itself, venv leaves its packages out."""
    if sys.prefix == sys.base_prefix:
        return
    own = subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"],
                         stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout.strip()
    with open(os.path.join(own, "milepost_below.pth"), "w") as file:
        # Those of their own .pth files too.
        file.write("".join("import site; site.addsitedir(%r)\n" % folder
                           for folder in site.getsitepackages()))


def run_pip(python, requirements, wheels):
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
               "--progress-bar", "off", "--requirement", requirements]
    if wheels:
        command += ["--no-index", "--find-links", wheels]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, universal_newlines=True, errors="replace")
    error = ""
    for line in process.stdout:
        sys.stderr.write(line)
        if line.startswith("ERROR:"):
            error = line[len("ERROR:"):].strip()
    if process.wait() != 0:
        raise Problem("pip failed: %s" % (error[:500] or "its output says why"),
                      for_good=bool(wheels))


def in_use(path):
    """Whether somebody has it locked, or has just asked for it."""
    try:
        if time.time() - os.stat(os.path.join(path, "ready")).st_mtime < YOUNG_SECONDS:
            return True
        with open(os.path.join(path, "ready")) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


def make_room(cache, own):
    """Those that are ready, the longest unused first; each under its own lock."""
    found = []
    for name in os.listdir(cache):
        ready = os.path.join(cache, name, "ready")
        if name != own and os.path.exists(ready):
            found.append((os.stat(ready).st_mtime, name))
    for _, name in sorted(found)[:max(0, len(found) + 1 - MOST)]:
        try:
            with open(os.path.join(cache, "lock-" + name[0]), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not in_use(os.path.join(cache, name)):
                    shutil.rmtree(os.path.join(cache, name), ignore_errors=True)
        except OSError:
            pass


def environment(requirements, cache, wheels):
    """Its path."""
    name = digest(read_requirements(requirements), wheels)
    path = os.path.join(cache, name)
    os.makedirs(cache, mode=0o700, exist_ok=True)
    facts = os.lstat(cache)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise Problem("%s is not this user's own folder: remove it" % cache, for_good=False)
    # A few locks for all: so they need not be removed.
    with open(os.path.join(cache, "lock-" + name[0]), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(os.path.join(path, "ready")):
            make(path, requirements, wheels)
        os.utime(os.path.join(path, "ready"))
    make_room(cache, name)
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requirements", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--wheels", default="")
    options = parser.parse_args()
    try:
        answer = {"path": environment(options.requirements, options.cache, options.wheels)}
    except Problem as problem:
        answer = {"error": str(problem), "for_good": problem.for_good}
    except (OSError, subprocess.CalledProcessError) as why:
        answer = {"error": str(why), "for_good": False}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
