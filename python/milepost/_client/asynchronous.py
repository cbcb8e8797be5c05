"""AsyncClient: the client's methods, to be awaited in one event loop."""

import asyncio
import time
from typing import Any, AsyncIterator, Iterable, List, Mapping, Optional, Sequence

from milepost._client import login, operations, planning, view
from milepost._client.awaiting import Connection
from milepost._client.calls import Operation
from milepost._client.curves import Curves
from milepost._client.feeds import JobFeed, LogFeed
from milepost._client.operations import Names
from milepost._client.planning import Plan
from milepost._client.records import Checkpoint, JobArray, JobStatus, LogLine
from milepost._client.spec import SpecLike
from milepost.errors import DeadlineExceeded


class AsyncClient:
    """A connection to a coordinator, for one event loop. Use it in an `async with`, or close() it.

    Its methods are those of Client, which says more of each.
    """

    def __init__(
        self,
        coordinator: Optional[str] = None,
        *,
        data_dir: Optional[str] = None,
        project: Optional[str] = None,
        program: Optional[str] = None,
    ) -> None:
        """Does not wait for the coordinator to answer."""
        self._login = login.choose(coordinator, data_dir, project)
        self._connection = Connection(self._login)
        self._program = program

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self._login.coordinator!r})"

    async def close(self) -> None:
        """Ends its calls. Jobs go on."""
        await self._connection.close()

    @property
    def coordinator(self) -> str:
        """The address: "host:port", or several."""
        return self._login.coordinator

    async def submit(
        self,
        spec: Optional[SpecLike] = None,
        *,
        set: Optional[Mapping[str, Any]] = None,
        template: str = "",
        labels: Optional[Mapping[str, str]] = None,
        project: str = "",
        request_id: str = "",
    ) -> "AsyncJob":
        """Queues a job, once, however often the call has to be repeated."""
        return await self._job(
            operations.submit(
                self._program,
                spec,
                set,
                template,
                labels,
                project or self._login.project,
                False,
                request_id,
            )
        )

    async def validate(
        self,
        spec: Optional[SpecLike] = None,
        *,
        set: Optional[Mapping[str, Any]] = None,
        template: str = "",
    ) -> JobStatus:
        """What submit() checks, on the coordinator too, without queueing anything."""
        return await self._connection.run(
            operations.submit(None, spec, set, template, None, self._login.project, True, "")
        )

    async def submit_array(
        self,
        spec: Optional[SpecLike],
        array: Mapping[str, Sequence[Any]],
        *,
        max_parallel: int = 0,
        set: Optional[Mapping[str, Any]] = None,
        template: str = "",
        labels: Optional[Mapping[str, str]] = None,
        project: str = "",
        request_id: str = "",
    ) -> JobArray["AsyncJob"]:
        """Queues a job for each combination of values: {"train.seed": [1, 2]}; all, or none."""
        name, made = await self._connection.run(
            operations.submit_array(
                spec,
                array,
                max_parallel,
                set,
                template,
                labels,
                project or self._login.project,
                request_id,
            )
        )
        return JobArray(name, [AsyncJob(self, one) for one in made])

    async def fork(
        self,
        source: str,
        *,
        set: Optional[Mapping[str, Any]] = None,
        labels: Optional[Mapping[str, str]] = None,
        project: str = "",
        request_id: str = "",
    ) -> "AsyncJob":
        """Queues a new job that begins with "checkpoints/4", or with a job's newest checkpoint.

        set: fields instead of that job's, as in submit(); paths are absolute. labels: besides those
        of that job.
        """
        return await self._job(operations.fork(source, set, labels, project, False, request_id))

    async def job(self, name: str) -> "AsyncJob":
        """The job "jobs/7", "7", or the only one whose spec has that name. NotFound: none."""
        return await self._job(operations.find(name, self._login.project))

    async def jobs(
        self,
        *,
        state: Names = (),
        labels: Names = (),
        queue: str = "",
        name: str = "",
        array: str = "",
        project: str = "",
        limit: int = 100,
    ) -> List["AsyncJob"]:
        """The jobs that fit all of these, the newest first."""
        found = await self._connection.run(
            operations.jobs(
                state, labels, queue, name, array, project or self._login.project, limit
            )
        )
        return [AsyncJob(self, one) for one in found]

    async def cancel_array(self, array: str) -> int:
        """Cancels the jobs of "arrays/7" that have not ended; how many those were."""
        return await self._connection.run(operations.cancel_array(array))

    async def checkpoints(
        self, job: str = "", *, deleted: bool = False, limit: int = 1000
    ) -> List[Checkpoint]:
        """Committed checkpoints, the newest first: all, or a job's."""
        name = ""
        if job:
            name = (await self._connection.run(operations.find(job, self._login.project))).name
        return await self._connection.run(operations.checkpoints(name, deleted, limit))

    async def plan(
        self,
        spec: SpecLike,
        *,
        set: Optional[Mapping[str, Any]] = None,
        ranks: Optional[int] = None,
        device: str = "",
    ) -> Plan:
        """What a job needs in memory and time, by the `milepost` program of this host."""
        return await asyncio.to_thread(
            planning.plan, self._program, spec, set, ranks, device
        )

    async def call(self, method: str, /, **fields: Any) -> Any:
        """Any method of docs/use/api.md that does not stream: its answer as a message."""
        return await self._connection.run(operations.call(method, fields))

    async def _job(self, operation: Operation[JobStatus]) -> "AsyncJob":
        return AsyncJob(self, await self._connection.run(operation))


class AsyncJob:
    """A job of a coordinator's. `last` is its state when this object last heard of it."""

    def __init__(self, client: AsyncClient, last: JobStatus) -> None:
        self._client = client
        self.last = last

    def __repr__(self) -> str:
        return f"AsyncJob({self.name} {self.last.state})"

    @property
    def name(self) -> str:
        """ "jobs/7"."""
        return self.last.name

    async def status(self) -> JobStatus:
        """Its state now, with its events."""
        return await self._told(operations.get(self.name))

    async def updates(self) -> AsyncIterator[JobStatus]:
        """Its state now, then at every change (at most 10 a second), until it has ended."""
        async for self.last in self._client._connection.stream(JobFeed(self.name)):
            yield self.last

    async def watch(self) -> JobStatus:
        """Shows how it goes, until it has ended: its state then, whatever it is."""
        shown = view.view_for_here()
        async for now in self.updates():
            wanted = shown.wants_curves(now, time.time())
            shown.show(now, await self.curves(view.POINTS) if wanted else None, time.time())
        return self.last

    async def wait(self, timeout: Optional[float] = None) -> JobStatus:
        """Blocks until it has succeeded. Ctrl-C leaves the job running."""
        deadline = None if timeout is None else time.monotonic() + timeout
        feed = JobFeed(self.name)
        try:
            async for self.last in self._client._connection.stream(feed, deadline):
                pass
        except DeadlineExceeded:
            if timeout is None:
                raise
            raise operations.not_ended(self.last, timeout) from None
        return operations.ended(self.name, feed.last)

    def logs(
        self,
        follow: bool = False,
        *,
        rank: Optional[int] = None,
        since: Optional[float] = None,
        tail: int = 0,
    ) -> AsyncIterator[LogLine]:
        """What its ranks have printed; no line twice, also over lost connections."""
        begin = None if since is None else time.time() - since
        return self._client._connection.stream(LogFeed(self.name, follow, rank, begin, tail))

    async def curves(self, points: int = 0) -> Curves:
        """What it has reported over its steps. points: at most so many of each curve; 0: all."""
        return await self._client._connection.run(operations.curves(self.name, points))

    async def checkpoints(self, *, deleted: bool = False) -> List[Checkpoint]:
        """Its committed checkpoints, the newest first; with `deleted` those in the bin."""
        return await self._client._connection.run(operations.checkpoints(self.name, deleted, 1000))

    async def cancel(self) -> JobStatus:
        """Cancels it: it is CANCELLING until its ranks are gone. Its checkpoints stay."""
        return await self._told(operations.cancel(self.name))

    async def suspend(self) -> JobStatus:
        """Has its ranks save a checkpoint and leave, until resume()."""
        return await self._told(operations.suspend(self.name))

    async def resume(self, steps: Optional[int] = None) -> JobStatus:
        """Queues a job that has ended or is suspended again, from its newest checkpoint."""
        return await self._told(operations.resume(self.name, steps))

    async def update(
        self,
        *,
        queue: Optional[str] = None,
        priority: Optional[int] = None,
        time_limit: Optional[float] = None,
        depends_on: Optional[Iterable[str]] = None,
        min_ranks: Optional[int] = None,
        max_ranks: Optional[int] = None,
        labels: Optional[Mapping[str, Optional[str]]] = None,
    ) -> JobStatus:
        """Changes what is given."""
        others = None if depends_on is None else list(depends_on)
        return await self._told(
            operations.update(
                self.name, queue, priority, time_limit, others, min_ranks, max_ranks, labels
            )
        )

    async def fork(
        self,
        *,
        set: Optional[Mapping[str, Any]] = None,
        labels: Optional[Mapping[str, str]] = None,
        project: str = "",
        request_id: str = "",
    ) -> "AsyncJob":
        """Queues a new job that begins with this one's newest checkpoint: Client.fork()."""
        return await self._client.fork(
            self.name, set=set, labels=labels, project=project, request_id=request_id
        )

    async def delete(self) -> None:
        """Deletes a job that has ended, with its checkpoints and its log, for good."""
        await self._client._connection.run(operations.delete(self.name))

    async def _told(self, operation: Operation[JobStatus]) -> JobStatus:
        self.last = await self._client._connection.run(operation)
        return self.last
