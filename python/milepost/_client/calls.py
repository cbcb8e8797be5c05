"""Calls and streams as the client makes them, whether it blocks or awaits.

An operation is a generator that yields calls and is sent their answers, so that Client and
AsyncClient share it. Decisions about retries are here, without time or network of their own; they
are those of client/api/call.h.
"""

import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generator, List, Optional, Protocol, Sequence, TypeVar

from milepost import errors
from milepost._client import schema
from milepost._client.login import Login

CALL_SECONDS = 60.0  # a call, with all its tries
VERIFY_SECONDS = 86400.0  # one that reads a whole checkpoint
_REACH = 5.0  # how long a coordinator that does not answer is tried
_TAKEOVER = 15.0  # the same with several: a standby takes over within ten
_REACH_AGAIN = 600.0  # the same of a stream that has said something: a coordinator's restart
_FIRST_DELAY = 0.02
_LONGEST_DELAY = 0.5

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Call:
    """One call with one answer."""

    method: str  # "JobService/GetJob"
    request: Any
    longest: float = CALL_SECONDS


# Of calls, and of commands of the program, which are callables of the login.
Operation = Generator[Any, Any, T]


class Feed(Protocol[T_co]):
    """A stream that may be opened again where it broke."""

    method: str

    def request(self) -> Any:
        """What to ask for, the first time or again."""

    def take(self, message: Any) -> Sequence[T_co]:
        """What is new in a message."""

    def rest(self) -> Sequence[T_co]:
        """What is left at the stream's end."""


class Backoff:
    """Which failed tries are repeated, and when. `several`: other coordinators stand by."""

    def __init__(
        self, login: Login, longest: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._reach = _TAKEOVER if len(login.addresses) > 1 else _REACH
        # That of a run of this host is over when it does not answer.
        self._reach_again = self._reach if login.of_run else _REACH_AGAIN
        self._longest = longest
        self.progress()

    @property
    def reach(self) -> float:
        """For how many seconds a coordinator that does not answer is tried."""
        return self._reach

    @property
    def deadline(self) -> float:
        """By the clock: of all tries of a call, or of a stream's since its last message."""
        return self._deadline

    def progress(self) -> None:
        """The coordinator has answered."""
        now = self._clock()
        self._give_up = now + self._reach
        self._deadline = now + self._longest
        self._next = _FIRST_DELAY

    def stream_progress(self) -> None:
        """A message of a stream has come: with more patience from now on."""
        self._reach = max(self._reach, self._reach_again)
        self._longest = max(self._longest, self._reach)
        self.progress()

    def delay(self, error: errors.ClientError) -> Optional[float]:
        """Seconds until the next try; None: there is none."""
        share = random.uniform(0.5, 1.0)
        now = self._clock()
        # A coordinator cuts readers that stand still: CANCELLED.
        if isinstance(error, (errors.Unavailable, errors.Cancelled)):
            left = min(self._give_up, self._deadline) - now
            if left <= 0:
                return None
            delay = min(self._next * share, left)
            self._next = min(self._next * 2, _LONGEST_DELAY)
            return delay
        if isinstance(error, errors.ResourceExhausted) and error.retry_after is not None:
            delay = max(error.retry_after, _FIRST_DELAY) * (0.5 + share)
            return delay if now + delay < self._deadline else None
        return None


class Standbys:
    """Which of several coordinators is asked: after a failure the next one. Thread-safe."""

    _serving: Dict[str, int] = {}  # by list, for all clients of the process
    _lock = threading.Lock()

    def __init__(self, login: Login) -> None:
        self._all = login.coordinator
        self._addresses: List[str] = login.addresses
        with self._lock:
            self._current = self._serving.get(self._all, 0) % len(self._addresses)

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self._addresses) > 1

    @property
    def current(self) -> str:
        """The address that is believed to serve."""
        return self._addresses[self._current]

    def failed(self, address: str) -> None:
        """Moves on to the next one, unless somebody has."""
        with self._lock:
            if self._addresses[self._current] == address:
                self._current = (self._current + 1) % len(self._addresses)
                self._serving[self._all] = self._current


def channel_options(login: Login) -> List[Any]:
    """Of common/rpc/status.cc."""
    several = len(login.addresses) > 1
    return [
        ("grpc.max_receive_message_length", 16 << 20),
        ("grpc.max_send_message_length", 16 << 20),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 1000 if login.authority else 50),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", 2000 if several else 20_000),
        ("grpc.keepalive_timeout_ms", 3000 if several else 20_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def credentials(grpc: Any, login: Login) -> Any:
    """Of TLS and the token; None: plain text."""
    if not login.authority:
        return None
    try:
        with open(login.authority, "rb") as file:
            pem = file.read(1 << 20)
    except OSError as error:
        raise errors.NotFound(f"{login.authority}: {error.strerror}") from error
    if b"-----BEGIN CERTIFICATE" not in pem:
        raise errors.InvalidArgument(f"{login.authority} holds no certificate in PEM form")
    channel = grpc.ssl_channel_credentials(root_certificates=pem)
    if not login.token:
        return channel
    token = grpc.access_token_call_credentials(login.token)
    return grpc.composite_channel_credentials(channel, token)


def method_of(name: str) -> schema.Method:
    """InvalidArgument: there is none of that name."""
    method = schema.METHODS.get(name)
    if method is None:
        raise errors.InvalidArgument(
            f"there is no method '{name}': docs/use/api.md has them, such as JobService/GetJob"
        )
    return method


def not_connected(error: errors.ClientError) -> bool:
    """Whether a call failed because there was no connection to send it over."""
    return isinstance(error, errors.Unavailable) and "ailed to connect" in str(error)


def may_have_acted(error: errors.ClientError) -> bool:
    """Whether a call that failed so may have been carried out: it was sent, and not refused."""
    return not isinstance(error, errors.ResourceExhausted) and not not_connected(error)


def cannot_reach(error: errors.ClientError, login: Login, reach: float, fix: str) -> None:
    """Says for how long it was tried, and where."""
    called = login.called or f"the coordinator at {login.coordinator}"
    text = str(error).split(": ", 1)[-1]
    error.args = (f"cannot reach {called} (tried for {reach:g} s): {text}{fix}",)
