"""Shared by the checks: the repository's files and how a check reports."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def tracked(*patterns):
    """Paths (relative, sorted) that git tracks or would track, matching the patterns."""
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({line for line in out.splitlines() if (ROOT / line).is_file()})


def report(errors):
    """Prints the errors and exits: 0 when there is none."""
    for error in errors:
        print(error)
    sys.exit(1 if errors else 0)
