"""What `watch` shows: plain lines in a terminal, a live curve in a notebook."""

import html
import sys
from typing import Any, Callable, Optional, Protocol

from milepost._client.curves import Curves
from milepost._client.progress import progress_line
from milepost._client.records import JobStatus

LINE_SECONDS = 5.0  # between two lines
DRAW_SECONDS = 1.0  # between two drawings
POINTS = 400  # of a curve that is drawn


class View(Protocol):
    """Is told of every change of a job."""

    def wants_curves(self, job: JobStatus, now: float) -> bool:
        """Whether the next `show` is to have curves."""

    def show(self, job: JobStatus, curves: Optional[Curves], now: float) -> None:
        """`now`: in seconds since 1970."""


class Lines:
    """Says every change of state, and how far the job is once in an interval."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._state = ""
        self._step = 0
        self._last = float("-inf")

    def wants_curves(self, job: JobStatus, now: float) -> bool:
        return False

    def show(self, job: JobStatus, curves: Optional[Curves], now: float) -> None:
        moved = job.step != self._step and job.state != "STARTING"
        if moved and (job.ended or now - self._last >= LINE_SECONDS):
            self._say(f"{job.name} {progress_line(job, now)}")
            self._step, self._last = job.step, now
        if str(job) != self._state:
            self._say(str(job))
            self._state = str(job)


class Notebook:
    """One output that is drawn again in its place."""

    def __init__(self, display: Any, kind: Any) -> None:
        self._display = display
        self._kind = kind
        self._handle: Any = None
        self._curves: Optional[Curves] = None
        self._step = -1
        self._last = float("-inf")

    def wants_curves(self, job: JobStatus, now: float) -> bool:
        return job.ended or (job.step != self._step and now - self._last >= DRAW_SECONDS)

    def show(self, job: JobStatus, curves: Optional[Curves], now: float) -> None:
        if curves is not None:
            self._curves, self._step, self._last = curves, job.step, now
        elif self._handle is not None and now - self._last < DRAW_SECONDS and not job.ended:
            return
        shown = self._kind(live_html(job, self._curves, now))
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        else:
            self._handle.update(shown)


def live_html(job: JobStatus, curves: Optional[Curves], now: float) -> str:
    """A job's state, progress and losses as HTML. Pure."""
    lines = [str(job)]
    if job.step > 0:
        lines.append(progress_line(job, now))
    text = "<br>".join(html.escape(line) for line in lines)
    drawn = curves.svg() if curves is not None and len(curves) > 0 else ""
    return f'<div style="font-family: monospace">{text}</div>{drawn}'


def _in_notebook() -> bool:
    """Whether output goes to a page. IPython in a terminal shows text alone."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def view_for_here() -> View:
    """A notebook's output, or lines on stdout."""
    if _in_notebook():
        from IPython.display import HTML, display

        return Notebook(display, HTML)
    return Lines(lambda line: print(line, flush=True))
