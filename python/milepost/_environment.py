"""Makes the Python environment that a job's script.requirements ask for, once on each host.

    python3 _environment.py --requirements requirements.txt --cache FOLDER [--wheels FOLDER]

It is a virtual environment over the packages of the Python that runs this, in CACHE. Its name is
the digest of all that it depends on: that Python and its packages, the requirements, the wheels,
and what pip is told by variables. Many processes may ask at once, and each may be killed at any
moment: an environment has its file `ready` when it is whole. What was not used for longest goes
when there are more than MOST; nothing goes that somebody uses.

pip's output goes to stderr. The last line on stdout is JSON: {"path": ...}, or {"error": ...,
"kind": ...}. The kind says who can help: "user" (trying again does not), "host" or "network".
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import site
import stat
import subprocess
import sys
import time
import venv

MOST = 8
YOUNG_SECONDS = 3600  # whoever has just asked for it may not have locked it yet
MOST_BYTES = 1 << 20
# What the file says must be all that decides about what is installed: names of packages, URLs, and
# these options.
REQUIREMENT = re.compile(
    r"(?!.*file:)([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\s*($|[\[<>=!~;@\s])"
    r"|(https?|(git|hg|svn|bzr)\+(https?|ssh))://)")
OPTION = re.compile(
    r"(-i|--index-url|--extra-index-url|--trusted-host|--no-index|--pre|--prefer-binary"
    r"|--no-binary|--only-binary|--require-hashes|--hash)($|[\s=:])")
# Variables that would have pip install elsewhere, or something else.
HARMFUL = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_DRY_RUN", "PIP_REQUIREMENT",
           "PIP_CONSTRAINT", "PIP_PYTHON", "PIP_EDITABLE", "PYTHONHOME")


class Problem(Exception):
    def __init__(self, text, kind="user"):
        super().__init__(text)
        self.kind = kind


def read_requirements(path):
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Problem("%s is no file" % path)
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except OSError as why:
        raise Problem("%s: %s" % (path, why.strerror)) from None
    except UnicodeDecodeError:
        raise Problem("%s is no text" % path) from None
    if len(data) > MOST_BYTES:
        raise Problem("%s has more than 1 MiB" % path)
    check(text)
    return text


def check(text):
    lines = text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines()
    for line in lines:
        line = re.sub(r"(^|\s)#.*$", "", line).strip()
        if line and not (OPTION if line.startswith("-") else REQUIREMENT).match(line):
            raise Problem("'%s': only packages, URLs and options for indexes may stand there, not "
                          "other files and folders" % line[:80])


def listing(folder):
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.stat(follow_symlinks=False).st_size,
                           entry.stat(follow_symlinks=False).st_mtime_ns) for entry in entries)
    except OSError as why:
        raise Problem("script.wheels: %s: %s" % (folder, why.strerror), "host") from None


def packages_below():
    """The names and versions of what is there already."""
    found = set()
    for folder in sys.path[1:]:
        if os.path.isdir(folder):
            found.update(name for name in os.listdir(folder)
                         if name.endswith((".dist-info", ".egg-info")))
    return sorted(found)


def digest(text, wheels):
    named = set(re.findall(r"\$\{([A-Z0-9_]+)\}", text))
    variables = sorted((name, value) for name, value in os.environ.items()
                       if name in named or name.startswith("PIP_") or name == "PYTHONPATH")
    facts = [os.path.realpath(sys.executable), sys.version, sys.prefix, packages_below(), text,
             wheels, listing(wheels) if wheels else None, variables]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class Maker:
    """Makes an environment, with a lock that what it starts has too: pip may outlive it."""

    def __init__(self, path, lock):
        self.path = path
        self.lock = lock
        self.python = os.path.join(path, "bin", "python")
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in HARMFUL}

    def run(self, *command, **options):
        return subprocess.Popen([self.python, *command], stdin=subprocess.DEVNULL,
                                pass_fds=[self.lock.fileno()], env=self.environment,
                                universal_newlines=True, errors="replace", **options)

    def make(self, text, wheels):
        shutil.rmtree(self.path, ignore_errors=True)
        try:
            venv.EnvBuilder(system_site_packages=True, symlinks=True).create(self.path)
            self.see_packages_below()
            self.find_pip()
            self.install(text, wheels)
            os.sync()  # before the file that says that all is there
            with open(os.path.join(self.path, "ready"), "w"):
                pass
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def see_packages_below(self):
        """Where this Python is a virtual one itself, venv leaves its packages out."""
        if sys.prefix == sys.base_prefix:
            return
        own = os.path.join(self.path, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")
        with open(os.path.join(own, "milepost_below.pth"), "w") as file:
            # Those of their own .pth files too.
            file.write("".join("import site; site.addsitedir(%r)\n" % folder
                               for folder in site.getsitepackages()))

    def find_pip(self):
        if self.run("-c", "import pip", stderr=subprocess.DEVNULL).wait() == 0:
            return
        if self.run("-m", "ensurepip", stdout=sys.stderr).wait() != 0:
            raise Problem("%s has no pip: install it on the host (python3-pip)" % sys.executable,
                          "host")

    def install(self, text, wheels):
        requirements = os.path.join(self.path, "requirements.txt")
        with open(requirements, "w", encoding="utf-8") as file:
            file.write(text)
        command = ["-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-user",
                   "--progress-bar", "off", "--requirement", requirements]
        if wheels:
            command += ["--no-index", "--find-links", wheels]
        with self.run(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as pip:
            said = ""
            errors = []
            for line in pip.stdout:
                sys.stderr.write(line)
                said = (said + line)[-MOST_BYTES:]
                if line.startswith("ERROR:"):
                    errors.append(line[len("ERROR:"):].strip())
        if pip.returncode != 0:
            last = errors[-1][:500] if errors else "its output says why"
            raise Problem("pip failed: %s" % last, kind_of(said, pip.returncode, bool(wheels)))


def kind_of(said, code, wheels):
    """Who can help where pip has failed."""
    if code < 0 or "packages due to an OSError" in said or "No space left on device" in said:
        return "host"
    known = re.search(r"\(from versions: (?!none\))", said)  # an index has answered
    if wheels or known or "Invalid requirement" in said or "subprocess-exited-with-error" in said:
        return "user"
    return "network"


def is_used(ready):
    """Whether somebody has it locked, or has just asked for it."""
    if time.time() - os.stat(ready).st_mtime < YOUNG_SECONDS:
        return True
    with open(ready) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def remove_one(cache, name):
    """Unless it is used, or somebody makes it. What is half removed is not ready any more."""
    path = os.path.join(cache, name)
    ready = os.path.join(path, "ready")
    with open(lock_path(cache, name), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(ready):
            if is_used(ready):
                return
            os.remove(ready)
        shutil.rmtree(path, ignore_errors=True)


def make_room(cache, own):
    """What nobody has finished, and what is ready and was not used for longest."""
    found, unfinished = [], []
    for name in os.listdir(cache):
        if name == own or not re.match("[0-9a-f]{64}$", name):
            continue
        try:
            found.append((os.stat(os.path.join(cache, name, "ready")).st_mtime, name))
        except OSError:
            unfinished.append(name)
    for name in unfinished + [name for _, name in sorted(found)[:max(0, len(found) + 1 - MOST)]]:
        try:
            remove_one(cache, name)
        except OSError:  # another process is at it
            pass


def lock_path(cache, name):
    """A few locks for all, so that they need not be removed."""
    return os.path.join(cache, "lock-" + name[:2])


def own_folder(cache):
    os.makedirs(cache, mode=0o700, exist_ok=True)
    facts = os.lstat(cache)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise Problem("%s is not this user's own folder: remove it" % cache, "host")


def is_ready(path):
    """And is used now."""
    try:
        os.utime(os.path.join(path, "ready"))
        return True
    except FileNotFoundError:
        return False


def environment(requirements, cache, wheels):
    """Its path."""
    text = read_requirements(requirements)
    name = digest(text, wheels)
    path = os.path.join(cache, name)
    own_folder(cache)
    if is_ready(path):
        return path
    with open(lock_path(cache, name), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("waits for another rank on this host, which installs requirements\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_ready(path):
            Maker(path, lock).make(text, wheels)
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
        answer = {"error": str(problem), "kind": problem.kind}
    except Exception as why:
        answer = {"error": "%s: %s" % (type(why).__name__, why), "kind": "host"}
    print("\n" + json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
