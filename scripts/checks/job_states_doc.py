"""Fails where docs/internals/job-states.md is not what the table of a job's states says, or where a
job's state is written past the table.

`--write` makes the document, of coordinator/core/job_states.h (causes) and job_states.cc (moves).
"""

import re
import sys

from common import ROOT, report, tracked

DOCUMENT = "docs/internals/job-states.md"
HEADER = "coordinator/core/job_states.h"
TABLE = "coordinator/core/job_states.cc"

CAUSE = re.compile(r"^  k(\w+),\s+// (.*)$", re.MULTILINE)
MOVE = re.compile(r"^    \{k(\w+), JobCause::k(\w+), k(\w+)\},$", re.MULTILINE)
WRITE = re.compile(r"set_state\((v1::)?JOB_STATE_|\b(job|mutable_job\(\))->set_state\(")

INTRODUCTION = """# The states of a job

Made from `coordinator/core/job_states.cc` by `scripts/checks/job_states_doc.py --write`. A cause
that is not in the table for a state cannot come in it. A job holds slots while an attempt runs or
winds up.

"""


def name(state):
    return "none" if state == "None" else state.upper()


def diagram(moves):
    """One arrow for each pair of states."""
    lines = []
    for origin, _, target in moves:
        source = "[*]" if origin == "None" else name(origin)
        line = f"  {source} --> {name(target)}"
        if line not in lines:
            lines.append(line)
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def table(causes, moves):
    """One row for each cause and the state that it leads to."""
    origins = {}
    for origin, cause, target in moves:
        origins.setdefault((cause, target), []).append(name(origin))
    rows = [f"| {causes[cause]} | {', '.join(names)} | {name(target)} |"
            for (cause, target), names in origins.items()]
    return "\n".join(["| what happens | in | then it is |", "| --- | --- | --- |", *rows, ""])


def made(header, text):
    causes = dict(CAUSE.findall(header))
    moves = MOVE.findall(text)
    return INTRODUCTION + diagram(moves) + "\n" + table(causes, moves)


def written_elsewhere(path, text):
    """Lines that write a job's state."""
    if path == TABLE or path.endswith("_test.cc"):
        return []
    return [f"{path}:{number}: a job's state is written by Move (job_states.h) alone"
            for number, line in enumerate(text.splitlines(), 1) if WRITE.search(line)]


def main():
    document = made((ROOT / HEADER).read_text(), (ROOT / TABLE).read_text())
    file = ROOT / DOCUMENT
    errors = []
    if "--write" in sys.argv[1:]:
        file.write_text(document)
    elif not file.is_file() or file.read_text() != document:
        errors.append(f"{DOCUMENT} is not what {TABLE} says; run {sys.argv[0]} --write")
    for path in tracked("coordinator/*.cc", "coordinator/*.h"):
        errors += written_elsewhere(path, (ROOT / path).read_text())
    report(errors)


if __name__ == "__main__":
    main()
