"""Fails on a path named in a document that does not exist.

Looked at: link targets, and `code` that starts with a top-level folder of the repository.
"""

import re

from common import ROOT, report, tracked

TOP = ("proto", "common", "engine", "coordinator", "worker", "client", "deploy", "tests", "bench",
       "docs", "examples", "scripts", "cmake", ".ci")
# Made at build or run time.
MADE = re.compile(r"^(build|examples/data)/")
LINK = re.compile(r"\]\(([^)#\s]+)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"^[A-Za-z0-9_.][A-Za-z0-9_./-]*$")


def named_paths(document, text):
    """(line number, path relative to the root) of every path that the text names."""
    folder = str((ROOT / document).parent.relative_to(ROOT))
    for number, line in enumerate(text.splitlines(), 1):
        for target in LINK.findall(line):
            if not re.match(r"^[a-z]+:", target):
                yield number, str((ROOT / folder / target).resolve().relative_to(ROOT))
        for code in CODE.findall(line):
            word = code.split()[0] if code.split() else ""
            if PATH.match(word) and word.split("/")[0] in TOP and "/" in word:
                yield number, word


def missing(document, text):
    for number, path in named_paths(document, text):
        if not MADE.match(path) and not (ROOT / path).exists():
            yield f"{document}:{number}: {path} does not exist"


def main():
    errors = []
    for document in tracked("*.md"):
        errors += missing(document, (ROOT / document).read_text())
    report(errors)


if __name__ == "__main__":
    main()
