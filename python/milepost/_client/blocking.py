"""A connection whose calls block. Thread-safe."""

import threading
import time
import warnings
from typing import Any, Iterator, Optional, Tuple, TypeVar

import grpc

from milepost import errors
from milepost._client import calls, status
from milepost._client.login import Login

T = TypeVar("T")


class Connection:
    """To a coordinator, or to the one of several that serves."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._standbys = calls.Standbys(login)
        self._lock = threading.Lock()
        self._warnings = status.Warnings()
        self._closed = threading.Event()
        self._address = ""
        self._opened: Any = None
        self._channel()  # what is wrong with the authority's file is told at once

    def close(self) -> None:
        """Ends all calls: Cancelled."""
        self._closed.set()
        with self._lock:
            if self._opened is not None:
                self._opened.close()
            self._opened = None

    def run(self, operation: calls.Operation[T]) -> T:
        """Makes an operation's calls."""
        try:
            call = next(operation)
            while True:
                try:
                    is_call = isinstance(call, calls.Call)
                    answer = self._unary(call) if is_call else call(self.login)
                except errors.ClientError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def stream(self, feed: calls.Feed[T], deadline: Optional[float] = None) -> Iterator[T]:
        """A feed's items, over lost connections. `deadline`: by time.monotonic().

        Closing the generator ends the call.
        """
        method = calls.method_of(feed.method)
        backoff = calls.Backoff(self.login, calls.CALL_SECONDS)
        while True:
            address, channel = self._channel()
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            call = _make(channel, method)(feed.request(), timeout=timeout)
            try:
                for message in call:
                    yield from feed.take(message)
                    backoff.stream_progress()
                self._warn(call)
                yield from feed.rest()
                return
            except grpc.RpcError as failure:
                error = self._explained(failure)
            finally:
                call.cancel()
            self._pause(backoff, error, address, deadline)

    def _unary(self, call: calls.Call) -> Any:
        method = calls.method_of(call.method)
        backoff = calls.Backoff(self.login, call.longest)
        sent_before = False
        while True:
            address, channel = self._channel()
            timeout = max(0.0, backoff.deadline - time.monotonic())
            try:
                answer, made = _make(channel, method).with_call(call.request, timeout=timeout)
                self._warn(made)
                return answer
            except grpc.RpcError as failure:
                error = self._explained(failure)
                error.sent_before = sent_before
            self._pause(backoff, error, address)
            sent_before = sent_before or calls.may_have_acted(error)

    def _channel(self) -> Tuple[str, Any]:
        with self._lock:
            if self._closed.is_set():
                raise errors.Cancelled("the client is closed")
            if self._opened is None or self._address != self._standbys.current:
                self._address = self._standbys.current
                # The one before is not closed: others may have calls on it.
                self._opened = _connect(self.login, self._address)
            return self._address, self._opened

    def _pause(
        self,
        backoff: calls.Backoff,
        error: errors.ClientError,
        address: str,
        deadline: Optional[float] = None,
    ) -> None:
        """Waits until the next try, or raises the error."""
        delay = None if self._closed.is_set() else backoff.delay(error)
        if delay is None:
            if isinstance(error, errors.Unavailable):
                fix = status.remedy(str(error), bool(self.login.authority), address)
                calls.cannot_reach(error, self.login, backoff.reach, fix)
            raise error
        if isinstance(error, errors.Unavailable) and self._standbys.several:
            self._standbys.failed(address)
        if deadline is not None:
            delay = min(delay, max(0.0, deadline - time.monotonic()))
        if not self._standbys.several and calls.not_connected(error):
            _await_connection(self._channel()[1], delay)
        else:
            self._closed.wait(delay)

    def _explained(self, failure: Any) -> errors.ClientError:
        metadata = status.trailing(failure)
        self._tell(metadata)
        name = self.login.name
        return status.error_of(failure.code().name, failure.details() or "", metadata, name)

    def _warn(self, call: Any) -> None:
        self._tell(status.trailing(call))

    def _tell(self, metadata: Any) -> None:
        text = self._warnings.new(metadata)
        if text is not None:
            warnings.warn(text, stacklevel=2)


def _await_connection(channel: Any, seconds: float) -> None:
    """gRPC gets on with connecting only while some thread waits in it: here for an answer."""
    health = channel.unary_unary("/grpc.health.v1.Health/Check")
    try:
        health(b"", timeout=seconds, wait_for_ready=True)
    except grpc.RpcError:
        pass


def _connect(login: Login, address: str) -> Any:
    shown = calls.credentials(grpc, login)
    options = calls.channel_options(login)
    if shown is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, shown, options)


def _make(channel: Any, method: Any) -> Any:
    kind = channel.unary_stream if method.streams else channel.unary_unary
    return kind(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
