"""The connection to the rank's own process, which talks to the worker and the coordinator."""

import http.client
import json
import os
import threading
import urllib.parse
from typing import Any, Optional, Tuple


class MilepostError(RuntimeError):
    """Milepost refused what a script asked, or could not do it. The text says why."""


class Link:
    """One connection. Thread-safe: one request at a time."""

    def __init__(self, url: str, token: str) -> None:
        parts = urllib.parse.urlsplit(url)
        # Straight to loopback: a proxy of the environment's is not for this.
        self._address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
        self._lock = threading.Lock()
        self._connection: Optional[http.client.HTTPConnection] = None

    def post(self, path: str, body: Any, timeout: Optional[float] = None) -> Tuple[int, str]:
        """The answer's status and text. Blocks for as long as the answer takes, or `timeout`.

        OSError: the rank's process does not answer.
        """
        data = json.dumps(body).encode()
        with self._lock:
            # The other end closes a connection that was silent for long: then once more.
            for fresh in (False, True):
                if fresh or self._connection is None:
                    self._connect(timeout)
                try:
                    return self._post(path, data, timeout)
                except (http.client.HTTPException, OSError) as error:
                    self._close()
                    if fresh or isinstance(error, TimeoutError):
                        raise OSError(f"Milepost does not answer: {error}") from error
        raise AssertionError("not reached")

    def ask(self, path: str, body: Any) -> Any:
        """The answer as JSON; None: there is none. Blocks.

        MilepostError: it was refused, or the rank's process does not answer.
        """
        try:
            status, text = self.post(path, body)
        except OSError as error:
            raise MilepostError(str(error)) from error
        if status == 204:
            return None
        if status != 200:
            raise MilepostError(text.strip() or f"{path}: HTTP status {status}")
        return json.loads(text)

    def _connect(self, timeout: Optional[float]) -> None:
        self._close()
        self._connection = http.client.HTTPConnection(*self._address, timeout=timeout)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _post(self, path: str, data: bytes, timeout: Optional[float]) -> Tuple[int, str]:
        connection = self._connection
        assert connection is not None
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        connection.request("POST", path, data, self._headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def open_link() -> Optional[Link]:
    """A connection of the caller's own. None outside a job."""
    url, token_file = os.environ.get("MILEPOST_URL"), os.environ.get("MILEPOST_TOKEN_FILE")
    if not url or not token_file:
        return None
    return Link(url, _read(token_file))
