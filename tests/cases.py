"""Test programs of several cases: one after the other, each in a folder of its own.

    cases = (install, upgrade)                  # functions
    add_only(parser, cases)
    options = parser.parse_args()
    sys.exit(run_cases(cases, options.only, lambda case, folder: case(folder)))
"""

import pathlib
import shutil
import tempfile
import time
import traceback

LOG_TAIL = 4000


def add_only(parser, cases):
    parser.add_argument("--only", choices=[case.__name__ for case in cases], action="append",
                        help="this case; may be given several times")


def run_cases(cases, only, call):
    """Calls `call(case, folder)` for those that `only` names, or all; prints how each ended, with
    what it returned. Returns the exit code. The folder of a case that failed stays."""
    failed = False
    for case in cases:
        if only and case.__name__ not in only:
            continue
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"milepost-{case.__name__}-"))
        began = time.monotonic()
        try:
            note = call(case, folder) or ""
            shutil.rmtree(folder)
            print(f"ok      {case.__name__}  {time.monotonic() - began:.0f} s  {note}".rstrip(),
                  flush=True)
        except Exception:  # pylint: disable=broad-except
            failed = True
            traceback.print_exc()
            for log in sorted(folder.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-LOG_TAIL:]}")
            print(f"FAILED  {case.__name__}; see {folder}", flush=True)
    return 1 if failed else 0
