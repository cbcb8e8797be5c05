"""Whether a script is to stop: agreed by all ranks, and answered from memory."""

import mmap
import os
import time
from typing import Optional

_CALLS, _USED, _LIMIT, _DECISION = range(4)  # worker/script/stop_page.h
_PAUSE = 0.001


class _ShouldStop:
    """See should_stop()."""

    def __init__(self) -> None:
        self._words: Optional[memoryview] = None
        self._looked = False
        self._calls = 0
        self.last = False

    def _look(self) -> None:
        self._looked = True
        path = os.environ.get("MILEPOST_STOP_FILE")
        if not path:
            return
        with open(path, "r+b") as file:
            # A cast view stores a word at once, byte by byte it would be torn.
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        self._words[_USED] = 1

    def __call__(self) -> bool:
        """True once the job is to stop: preempted, suspended, cancelled, resized or out of time.

        Call it once a step, on every rank. All ranks get True at the same call, so that they can
        save a checkpoint together and end. Then it stays True. A script that calls it gets no
        SIGTERM. It takes less than a microsecond, but for the one call at which the ranks agree.
        The last answer is in `should_stop.last`. Outside a job it is False.
        """
        if not self._looked:
            self._look()
        words = self._words
        if words is None:
            return False
        self._calls += 1
        words[_CALLS] = self._calls
        if self._calls < words[_LIMIT]:
            return False
        while words[_DECISION] == 0:
            time.sleep(_PAUSE)
        self.last = self._calls >= words[_DECISION]
        return self.last


should_stop = _ShouldStop()
