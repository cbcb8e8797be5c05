"""A connection whose calls are awaited, for one event loop."""

import asyncio
import time
import warnings
from typing import Any, AsyncIterator, Optional, Tuple, TypeVar

import grpc
import grpc.aio

from milepost import errors
from milepost._client import calls, status
from milepost._client.login import Login

T = TypeVar("T")


class Connection:
    """To a coordinator, or to the one of several that serves."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self._standbys = calls.Standbys(login)
        self._warnings = status.Warnings()
        self._closed = False
        self._address = ""
        self._opened: Any = None  # made in the event loop

    async def close(self) -> None:
        """Ends all calls."""
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    async def run(self, operation: calls.Operation[T]) -> T:
        """Makes an operation's calls."""
        try:
            call = next(operation)
            while True:
                try:
                    if isinstance(call, calls.Call):
                        answer = await self._unary(call)
                    else:
                        answer = await asyncio.to_thread(call, self.login)
                except errors.ClientError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def stream(
        self, feed: calls.Feed[T], deadline: Optional[float] = None
    ) -> AsyncIterator[T]:
        """A feed's items, over lost connections. `deadline`: by time.monotonic()."""
        method = calls.method_of(feed.method)
        backoff = calls.Backoff(self.login, calls.CALL_SECONDS)
        while True:
            address, channel = self._channel()
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            call = _make(channel, method)(feed.request(), timeout=timeout)
            try:
                async for message in call:
                    for item in feed.take(message):
                        yield item
                    backoff.stream_progress()
                self._tell(_metadata(await call.trailing_metadata()))
                for item in feed.rest():
                    yield item
                return
            except grpc.aio.AioRpcError as failure:
                error = self._explained(failure)
            except asyncio.CancelledError:
                self._check_open()
                raise
            finally:
                call.cancel()
            await self._pause(backoff, error, address, deadline)

    async def _unary(self, call: calls.Call) -> Any:
        method = calls.method_of(call.method)
        backoff = calls.Backoff(self.login, call.longest)
        sent_before = False
        while True:
            address, channel = self._channel()
            timeout = max(0.0, backoff.deadline - time.monotonic())
            made = _make(channel, method)(call.request, timeout=timeout)
            try:
                answer = await made
                self._tell(_metadata(await made.trailing_metadata()))
                return answer
            except grpc.aio.AioRpcError as failure:
                error = self._explained(failure)
                error.sent_before = sent_before
            except asyncio.CancelledError:
                self._check_open()
                raise
            await self._pause(backoff, error, address)
            sent_before = sent_before or calls.may_have_acted(error)

    def _check_open(self) -> None:
        """A channel that is closed cancels who awaits its calls, as if the task were cancelled."""
        if self._closed:
            raise errors.Cancelled("the client is closed") from None

    def _channel(self) -> Tuple[str, Any]:
        self._check_open()
        if self._opened is None or self._address != self._standbys.current:
            self._address = self._standbys.current
            # The one before is not closed: others may have calls on it.
            self._opened = _connect(self.login, self._address)
        return self._address, self._opened

    async def _pause(
        self,
        backoff: calls.Backoff,
        error: errors.ClientError,
        address: str,
        deadline: Optional[float] = None,
    ) -> None:
        """Waits until the next try, or raises the error."""
        delay = None if self._closed else backoff.delay(error)
        if delay is None:
            if isinstance(error, errors.Unavailable):
                fix = status.remedy(str(error), bool(self.login.authority), address)
                calls.cannot_reach(error, self.login, backoff.reach, fix)
            raise error
        if isinstance(error, errors.Unavailable) and self._standbys.several:
            self._standbys.failed(address)
        if deadline is not None:
            delay = min(delay, max(0.0, deadline - time.monotonic()))
        await asyncio.sleep(delay)

    def _explained(self, failure: Any) -> errors.ClientError:
        metadata = _metadata(failure.trailing_metadata())
        self._tell(metadata)
        name = self.login.name
        return status.error_of(failure.code().name, failure.details() or "", metadata, name)

    def _tell(self, metadata: Any) -> None:
        text = self._warnings.new(metadata)
        if text is not None:
            warnings.warn(text, stacklevel=2)


def _metadata(pairs: Any) -> Any:
    return {str(pair[0]): pair[1] for pair in (pairs or ())}


def _connect(login: Login, address: str) -> Any:
    shown = calls.credentials(grpc, login)
    options = calls.channel_options(login)
    if shown is None:
        return grpc.aio.insecure_channel(address, options)
    return grpc.aio.secure_channel(address, shown, options)


def _make(channel: Any, method: Any) -> Any:
    kind = channel.unary_stream if method.streams else channel.unary_unary
    return kind(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
