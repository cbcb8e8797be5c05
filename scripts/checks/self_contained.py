"""Fails on a header, or a source file that changed lately, that does not compile on its own.

A build puts several source files into one (milepost_unity in cmake/MilepostTargets.cmake), so that
it does not show what one of them fails to include. Compiled alone here are
- the headers that no source file includes before anything else,
- what the last commits changed, the newest first, as many files as RECENT.
With --all: every header and source file, some 40 minutes.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from common import ROOT, report, tracked

COMMITS = 20
PROJECT = ("bench/", "client/", "common/", "coordinator/", "engine/", "milepost/", "tests/",
           "worker/")
RECENT = 40  # files
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)


def proven_by_a_source(headers):
    """Headers that some source includes first."""
    proven = set()
    for path in tracked("*.cc") + tracked("*.cu"):
        first = INCLUDE.search((ROOT / path).read_text())
        if first:
            proven.add(first.group(1))
    return proven & set(headers)


def generate_protos(folder):
    protos = [str(ROOT / p) for p in tracked("proto/*.proto")]
    plugin = shutil.which("grpc_cpp_plugin")
    subprocess.run(["protoc", f"-I{ROOT}/proto", f"--cpp_out={folder}", f"--grpc_out={folder}",
                    f"--plugin=protoc-gen-grpc={plugin}", *protos], check=True)


def changed_lately():
    """What differs from the last commit, then what the last commits changed, newest first."""
    def names(*command):
        return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.split("\n")
    paths = names("diff", "--name-only", "HEAD")
    paths += names("log", f"--max-count={COMMITS}", "--name-only", "--format=")
    return list(dict.fromkeys(p for p in paths if p.endswith((".h", ".cc"))))


def compile_alone(path, generated):
    done = subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", "-fopenmp", f"-I{ROOT}", f"-I{generated}",
         "-x", "c++", str(ROOT / path)], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    missing = re.search(r"fatal error: (\S+): No such file", done.stderr)
    if missing and not missing.group(1).startswith(PROJECT):
        return None  # NVIDIA's, where there is no toolkit
    return f"{path}: does not compile on its own: " + "\n".join(done.stderr.splitlines()[:4])


def main():
    # *-inl.h are bodies that Highway compiles once per target; they are not headers.
    headers = [h for h in tracked("*.h") if not h.endswith("-inl.h")]
    sources = tracked("*.cc")
    if "--all" in sys.argv[1:]:
        rest = headers + sources
    else:
        known = set(headers) | set(sources)
        lately = [p for p in changed_lately() if p in known][:RECENT]
        rest = sorted((set(headers) - proven_by_a_source(headers)) | set(lately))
    with tempfile.TemporaryDirectory() as generated:
        generate_protos(pathlib.Path(generated))
        with ThreadPoolExecutor(2) as pool:
            errors = [e for e in pool.map(lambda h: compile_alone(h, generated), rest) if e]
    report(errors)


if __name__ == "__main__":
    main()
