"""A coordinator's jobs from programs and notebooks: pip install 'milepost[client]'.

    import milepost

    client = milepost.Client()                # the coordinator that the command line would use
    job = client.submit("gpt2.yaml", set={"train.optimizer.lr": 1e-4})
    job.watch()                               # lines in a terminal, a live curve in a notebook
    job.wait()                                # milepost.errors.JobFailed says why
    frame = job.curves().frame()              # a pandas DataFrame

Every call has a deadline, and is repeated while no coordinator answers. Errors are those of
milepost.errors. AsyncClient has the same methods. docs/use/client.md walks through all of it.
"""

import time
from typing import Any, Iterable, Iterator, List, Mapping, Optional, Sequence

from milepost._client import login, operations, planning, view
from milepost._client.asynchronous import AsyncClient, AsyncJob
from milepost._client.blocking import Connection
from milepost._client.calls import Operation
from milepost._client.curves import Curve, Curves
from milepost._client.feeds import JobFeed, LogFeed
from milepost._client.operations import Names
from milepost._client.planning import Plan
from milepost._client.records import (
    Checkpoint,
    Choice,
    Failure,
    JobArray,
    JobEvent,
    JobStatus,
    LogLine,
    Progress,
)
from milepost._client.spec import SpecLike
from milepost.errors import DeadlineExceeded

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Checkpoint",
    "Choice",
    "Client",
    "Curve",
    "Curves",
    "Failure",
    "Job",
    "JobArray",
    "JobEvent",
    "JobStatus",
    "LogLine",
    "Plan",
    "Progress",
]


class Client:
    """A connection to a coordinator. Thread-safe. Use it in a `with`, or close() it."""

    def __init__(
        self,
        coordinator: Optional[str] = None,
        *,
        data_dir: Optional[str] = None,
        project: Optional[str] = None,
        program: Optional[str] = None,
    ) -> None:
        """Does not wait for the coordinator to answer.

        coordinator: "HOST:PORT", or several with commas between. Without it: MILEPOST_COORDINATOR,
            that of a `milepost run` in this folder, the last one that was logged in to, or
            127.0.0.1:7070. Credentials are those of `milepost auth login` and of MILEPOST_CA and
            MILEPOST_TOKEN.
        data_dir: of a `milepost run`: its coordinator, and no other.
        project: of new jobs; only its jobs are listed. Without it: MILEPOST_PROJECT or the login's.
        program: the `milepost` program, which plan() asks, and which reads Hugging Face folders.
            Without it: the one in PATH.
        """
        self._login = login.choose(coordinator, data_dir, project)
        self._connection = Connection(self._login)
        self._program = program

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._login.coordinator!r})"

    def close(self) -> None:
        """Ends what goes on in other threads too, with Cancelled. Jobs go on."""
        self._connection.close()

    @property
    def coordinator(self) -> str:
        """The address: "host:port", or several."""
        return self._login.coordinator

    def submit(
        self,
        spec: Optional[SpecLike] = None,
        *,
        set: Optional[Mapping[str, Any]] = None,
        template: str = "",
        labels: Optional[Mapping[str, str]] = None,
        project: str = "",
        request_id: str = "",
    ) -> "Job":
        """Queues a job, once, however often the call has to be repeated.

        spec: a path; YAML text of several lines; a dict with the same fields; or a JobSpec message.
            Relative paths in a file are relative to its folder, others to the current folder.
            Files of data are not looked at here: plan() does.
        set: fields instead of the spec's: {"train.optimizer.lr": 1e-4}. A str is what YAML has
            after the colon. None takes a field out.
        template: a stored template, over which the spec is laid; it may stand alone.
        request_id: a UUID. The same one returns the same job.

        InvalidSpec: it breaks rules, or the job cannot fit.
        """
        return self._job(
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

    def validate(
        self,
        spec: Optional[SpecLike] = None,
        *,
        set: Optional[Mapping[str, Any]] = None,
        template: str = "",
    ) -> JobStatus:
        """What submit() checks, on the coordinator too, without queueing anything.

        The answer has no name. Its `spec` has all defaults, and `choices` what was `auto`.
        """
        return self._connection.run(
            operations.submit(None, spec, set, template, None, self._login.project, True, "")
        )

    def submit_array(
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
    ) -> JobArray["Job"]:
        """Queues a job for each combination of values: {"train.seed": [1, 2]}; all, or none.

        max_parallel: how many of them hold slots at a time; 0: all. The rest is as in submit().
        """
        name, made = self._connection.run(
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
        return JobArray(name, [Job(self, one) for one in made])

    def fork(
        self,
        source: str,
        *,
        set: Optional[Mapping[str, Any]] = None,
        labels: Optional[Mapping[str, str]] = None,
        project: str = "",
        request_id: str = "",
    ) -> "Job":
        """Queues a new job that begins with "checkpoints/4", or with a job's newest checkpoint.

        set: fields instead of that job's, as in submit(); paths are absolute. labels: besides those
        of that job.
        """
        return self._job(operations.fork(source, set, labels, project, False, request_id))

    def job(self, name: str) -> "Job":
        """The job "jobs/7", "7", or the only one whose spec has that name. NotFound: none."""
        return self._job(operations.find(name, self._login.project))

    def jobs(
        self,
        *,
        state: Names = (),
        labels: Names = (),
        queue: str = "",
        name: str = "",
        array: str = "",
        project: str = "",
        limit: int = 100,
    ) -> List["Job"]:
        """The jobs that fit all of these, the newest first.

        state: "running", ..., "active", "ended"; of several any. labels: "team=vision", "team!=v",
        "team", "!team"; of several all. name: how the spec's name begins.
        """
        found = self._connection.run(
            operations.jobs(
                state, labels, queue, name, array, project or self._login.project, limit
            )
        )
        return [Job(self, one) for one in found]

    def cancel_array(self, array: str) -> int:
        """Cancels the jobs of "arrays/7" that have not ended; how many those were."""
        return self._connection.run(operations.cancel_array(array))

    def checkpoints(
        self, job: str = "", *, deleted: bool = False, limit: int = 1000
    ) -> List[Checkpoint]:
        """Committed checkpoints, the newest first: all, or a job's; with `deleted` the bin's."""
        name = self._connection.run(operations.find(job, self._login.project)).name if job else ""
        return self._connection.run(operations.checkpoints(name, deleted, limit))

    def plan(
        self,
        spec: SpecLike,
        *,
        set: Optional[Mapping[str, Any]] = None,
        ranks: Optional[int] = None,
        device: str = "",
    ) -> Plan:
        """What a job needs in memory and time, by the `milepost` program of this host.

        ranks: other than the spec's. device: a built-in profile such as "h100", or a profile's
        file; without it, this host. A job that does not fit has a plan too, which says so.

        InvalidSpec: it breaks rules. FailedPrecondition: there is no such program.
        """
        return planning.plan(self._program, spec, set, ranks, device)

    def call(self, method: str, /, **fields: Any) -> Any:
        """Any method of docs/use/api.md that does not stream: its answer as a message.

        client.call("QueueService/ListQueues", page_size=10).queues
        """
        return self._connection.run(operations.call(method, fields))

    def _job(self, operation: Operation[JobStatus]) -> "Job":
        return Job(self, self._connection.run(operation))


class Job:
    """A job of a coordinator's. `last` is its state when this object last heard of it."""

    def __init__(self, client: Client, last: JobStatus) -> None:
        self._client = client
        self.last = last

    def __repr__(self) -> str:
        return f"Job({self.name} {self.last.state})"

    @property
    def name(self) -> str:
        """ "jobs/7"."""
        return self.last.name

    def status(self) -> JobStatus:
        """Its state now, with its events."""
        return self._told(operations.get(self.name))

    def updates(self) -> Iterator[JobStatus]:
        """Its state now, then at every change (at most 10 a second), until it has ended."""
        for self.last in self._client._connection.stream(JobFeed(self.name)):
            yield self.last

    def watch(self) -> JobStatus:
        """Shows how it goes, until it has ended: its state then, whatever it is.

        In a notebook that is a curve, which is drawn again in its place. Ctrl-C leaves the job
        running.
        """
        shown = view.view_for_here()
        for now in self.updates():
            wanted = shown.wants_curves(now, time.time())
            shown.show(now, self.curves(view.POINTS) if wanted else None, time.time())
        return self.last

    def wait(self, timeout: Optional[float] = None) -> JobStatus:
        """Blocks until it has succeeded. Ctrl-C leaves the job running.

        JobFailed, JobCancelled: it has ended so. DeadlineExceeded, a TimeoutError: it has not ended
        after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        feed = JobFeed(self.name)
        try:
            for self.last in self._client._connection.stream(feed, deadline):
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
    ) -> Iterator[LogLine]:
        """What its ranks have printed; no line twice, also over lost connections.

        follow: until the job has ended. rank: only this one. since: only lines of the last so many
        seconds. tail: only the last so many lines.
        """
        begin = None if since is None else time.time() - since
        return self._client._connection.stream(LogFeed(self.name, follow, rank, begin, tail))

    def curves(self, points: int = 0) -> Curves:
        """What it has reported over its steps. points: at most so many of each curve; 0: all."""
        return self._client._connection.run(operations.curves(self.name, points))

    def checkpoints(self, *, deleted: bool = False) -> List[Checkpoint]:
        """Its committed checkpoints, the newest first; with `deleted` those in the bin."""
        return self._client._connection.run(operations.checkpoints(self.name, deleted, 1000))

    def cancel(self) -> JobStatus:
        """Cancels it: it is CANCELLING until its ranks are gone. Its checkpoints stay."""
        return self._told(operations.cancel(self.name))

    def suspend(self) -> JobStatus:
        """Has its ranks save a checkpoint and leave, until resume()."""
        return self._told(operations.suspend(self.name))

    def resume(self, steps: Optional[int] = None) -> JobStatus:
        """Queues a job that has ended or is suspended again, from its newest checkpoint.

        steps: instead of train.steps, which extends a job that has succeeded.
        """
        return self._told(operations.resume(self.name, steps))

    def update(
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
        """Changes what is given.

        time_limit: seconds. depends_on: all of them; empty: none. min_ranks, max_ranks: 0 takes the
        bound away. labels: those that are added or changed; None takes one away.
        """
        others = None if depends_on is None else list(depends_on)
        return self._told(
            operations.update(
                self.name, queue, priority, time_limit, others, min_ranks, max_ranks, labels
            )
        )

    def fork(
        self,
        *,
        set: Optional[Mapping[str, Any]] = None,
        labels: Optional[Mapping[str, str]] = None,
        project: str = "",
        request_id: str = "",
    ) -> "Job":
        """Queues a new job that begins with this one's newest checkpoint: Client.fork()."""
        return self._client.fork(
            self.name, set=set, labels=labels, project=project, request_id=request_id
        )

    def delete(self) -> None:
        """Deletes a job that has ended, with its checkpoints and its log, for good."""
        self._client._connection.run(operations.delete(self.name))

    def _told(self, operation: Operation[JobStatus]) -> JobStatus:
        self.last = self._client._connection.run(operation)
        return self.last
