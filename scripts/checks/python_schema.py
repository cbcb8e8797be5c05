"""Fails where the Python client's schema is not what the protos say; `--write` makes it anew.

The schema is protoc's FileDescriptorSet. The client makes its messages from it, so no code is
generated that a version of protobuf would be bound to. Versions of protoc may write the same
schema in other bytes: it is written anew with the protoc of `scripts/bootstrap`.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

from common import ROOT, report

SCHEMA = "python/milepost/_client/schema.binpb"
# What clients of the coordinator call, with what that needs.
FILES = ("auth", "checkpoint", "error_details", "job", "queue", "template", "worker")


def schema():
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "schema.binpb"
        subprocess.run(["protoc", "--proto_path=proto", "--include_imports",
                        f"--descriptor_set_out={made}",
                        *(f"milepost/v1/{name}.proto" for name in FILES)], cwd=ROOT, check=True)
        return made.read_bytes()


def stale(held, made):
    """What is wrong with the file's bytes; None: there is no file."""
    if held != made:
        yield f"{SCHEMA} is not what the protos say: run {sys.argv[0]} --write"


def main():
    if not shutil.which("protoc"):
        report(["there is no protoc: scripts/bootstrap installs it"])
    path = ROOT / SCHEMA
    if "--write" in sys.argv[1:]:
        path.write_bytes(schema())
    report(list(stale(path.read_bytes() if path.is_file() else None, schema())))


if __name__ == "__main__":
    main()
