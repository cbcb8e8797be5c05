"""Streams that go on where they broke."""

import math
from typing import Any, Dict, List, Optional, Sequence

from milepost._client import schema
from milepost._client.records import JobStatus, LogLine, read

# Every host has its own clock: that of a rank which has said nothing yet may be behind.
_MOST_SKEW = 600.0


class JobFeed:
    """A job's states: now, and at every change. A stream that is opened again begins with now."""

    method = "JobService/WatchJob"

    def __init__(self, name: str) -> None:
        self._name = name
        self.last: Optional[JobStatus] = None

    def request(self) -> Any:
        return schema.message("GetJobRequest", name=self._name)

    def take(self, message: Any) -> Sequence[JobStatus]:
        self.last = read(JobStatus, message)
        return [self.last]

    def rest(self) -> Sequence[JobStatus]:
        return []


class LogFeed:
    """A job's lines. None comes twice, and none is left out (client/api/clients.cc)."""

    method = "JobService/StreamLogs"

    def __init__(
        self, name: str, follow: bool, rank: Optional[int], since: Optional[float], tail: int
    ) -> None:
        self._request = schema.message("StreamLogsRequest", name=name, follow=follow, tail=tail)
        if rank is not None:
            self._request.rank = rank
        if since is not None:
            schema.set_time(self._request.since, since)
        self._since = -math.inf if since is None else since
        self._last = 0
        self._said: Dict[int, float] = {}  # by rank: the time of its newest line
        self._dropped: Optional[Any] = None  # told with the next line that is new

    def request(self) -> Any:
        return self._request

    def take(self, message: Any) -> Sequence[LogLine]:
        if message.dropped_lines > 0:
            self._dropped = message
            return []
        before, self._dropped = self._dropped, None
        if message.sequence != 0 and message.sequence <= self._last:
            return []
        self._last = message.sequence
        self._said[message.rank] = schema.seconds_of(message.time)
        # A stream that is opened again starts where this one broke, not N lines before the end.
        self._request.tail = 0
        again = max(self._since, min(self._said.values()) - _MOST_SKEW)
        if math.isfinite(again):
            schema.set_time(self._request.since, again)
        lines: List[Any] = [message] if before is None else [before, message]
        return [read(LogLine, one) for one in lines]

    def rest(self) -> Sequence[LogLine]:
        dropped, self._dropped = self._dropped, None
        return [] if dropped is None else [read(LogLine, dropped)]
