"""How far a script is."""

import atexit
import os
import threading
import time
from typing import Any, Dict, Optional

from milepost._link import Link, open_link

_INTERVAL = 0.5  # seconds between reports: the coordinator hears of no more
_PATIENCE = 5.0  # seconds for one


class _Reporter:
    """Sends what was said last, from a thread of its own, so that training never waits."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._metrics: Dict[str, Any] = {}
        self._closing = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="milepost-report", daemon=True)
        self._thread.start()
        atexit.register(self._close)  # else the last report would be lost

    def say(self, metrics: Dict[str, Any]) -> None:
        with self._changed:
            self._metrics.update(metrics)
            self._changed.notify()

    def _close(self) -> None:
        if os.getpid() != self._process:
            return  # forked: the thread is the parent's, and the lock may be held for ever
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._metrics and not self._closing:
                    self._changed.wait()
                metrics, self._metrics = self._metrics, {}
                closing = self._closing
            if metrics:
                self._send(metrics)
            if closing:
                return
            with self._changed:
                if not self._closing:
                    self._changed.wait_for(lambda: self._closing, _INTERVAL)

    def _send(self, metrics: Dict[str, Any]) -> None:
        listed = []
        for name, value in metrics.items():
            try:
                listed.append({"name": name, "value": repr(float(value))})
            except Exception:  # what a value's own float() raises
                continue  # no number: nothing to draw
        try:
            self._link.post("/progress", {"trainerStatus": {"metrics": listed}}, _PATIENCE)
        except OSError:
            pass  # the next one says more


_lock = threading.Lock()
_reporter: Optional[_Reporter] = None
_looked = False


def _forget() -> None:
    """In a process that was forked: its parent's thread is not there."""
    global _reporter, _looked, _lock
    _reporter, _looked, _lock = None, False, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _find() -> Optional[_Reporter]:
    global _looked, _reporter
    with _lock:
        if not _looked:
            _looked = True
            try:
                link = open_link()
            except OSError:
                link = None
            _reporter = None if link is None else _Reporter(link)
        return _reporter


def report(step: int, total_steps: Optional[int] = None, **metrics: Any) -> None:
    """Says that `step` steps are done, of `total_steps`, and the newest values of metrics.

    `loss`, `eval_loss`, `learning_rate` and `grad_norm` are shown as those of Milepost's own
    models; other names have curves of their own, up to 64. Values are numbers, or what float()
    takes: a tensor's value is asked for when it is sent, by another thread. Call it at every step,
    on every rank or on rank 0: it takes a few microseconds, and the newest values go on twice a
    second. Nothing happens outside a job. Never raises for want of a connection.
    """
    reporter = _reporter or _find()
    if reporter is None:
        return
    metrics["current_step"] = step
    if total_steps is not None:
        metrics["total_steps"] = total_steps
    reporter.say(metrics)
