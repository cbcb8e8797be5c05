"""Fails on a header that does not compile on its own.

A source file that includes the header before anything else proves it at every build (*.cu: at every
one with CUDA), so only headers without such a file are compiled here.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

from common import ROOT, report, tracked

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


def compile_alone(header, generated):
    done = subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", "-fopenmp", f"-I{ROOT}", f"-I{generated}",
         "-x", "c++", str(ROOT / header)], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    return f"{header}: does not compile on its own: " + "\n".join(done.stderr.splitlines()[:4])


def main():
    # *-inl.h are bodies that Highway compiles once per target; they are not headers.
    headers = [h for h in tracked("*.h") if not h.endswith("-inl.h")]
    rest = sorted(set(headers) - proven_by_a_source(headers))
    with tempfile.TemporaryDirectory() as generated:
        generate_protos(pathlib.Path(generated))
        with ThreadPoolExecutor(2) as pool:
            errors = [e for e in pool.map(lambda h: compile_alone(h, generated), rest) if e]
    report(errors)


if __name__ == "__main__":
    main()
