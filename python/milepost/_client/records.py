"""What the client tells of jobs and checkpoints. Fields have the names of the API's messages.

Values are as `milepost ... -o json` has them: states are texts such as "RUNNING". Times are
datetimes in UTC, or None. The message itself is `proto`.
"""

import dataclasses
import datetime
from dataclasses import dataclass, field
from typing import Any, Dict, Generic, Iterator, List, Optional, Tuple, Type, TypeVar

from milepost._client import schema

T = TypeVar("T")
_Time = Optional[datetime.datetime]
TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED")


def _value(kind: Any, value: Any, record: Optional[type]) -> Any:
    """`kind`: the field's descriptor."""
    if kind.message_type is not None:
        if kind.message_type.full_name == "google.protobuf.Timestamp":
            return schema.time_of(value)
        return read(record, value) if record is not None else schema.to_json(value, True)
    return schema.enum_name(kind.enum_type, value) if kind.enum_type is not None else value


def _may_lack(descriptor: Any, field: Any) -> bool:
    return descriptor.message_type is not None or bool(field.metadata.get("optional"))


def read(kind: Type[T], proto: Any) -> T:
    """A record of a message. What a record's field is of is its metadata's "record"."""
    values: Dict[str, Any] = {"proto": proto}
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]
        if one.name == "proto":
            continue
        name = one.metadata.get("name", one.name)
        record = one.metadata.get("record")
        descriptor = proto.DESCRIPTOR.fields_by_name[name]
        value = getattr(proto, name)
        if schema.is_map(descriptor):
            values[one.name] = dict(value)
        elif schema.is_repeated(descriptor):
            values[one.name] = tuple(_value(descriptor, item, record) for item in value)
        elif _may_lack(descriptor, one) and not proto.HasField(name):
            values[one.name] = None
        else:
            values[one.name] = _value(descriptor, value, record)
    return kind(**values)


class Record:
    """What all of these have."""

    proto: Any

    def to_dict(self) -> Dict[str, Any]:
        """As `milepost ... -o json` prints it."""
        made: Dict[str, Any] = schema.to_json(self.proto, defaults=True)
        return made


def _proto() -> Any:
    return field(repr=False, compare=False)


@dataclass(frozen=True)
class Progress(Record):
    """What a job's rank 0 last reported. Losses are NaN, and counts 0, while they are not known."""

    step: int  # optimizer steps done
    train_loss: float
    validation_loss: float  # the latest
    validation_step: int
    lr: float
    grad_norm: float
    skipped_steps: int
    tokens_per_second: float
    step_seconds: float
    mfu: float
    planned_bytes: int  # arena bytes per rank
    allocated_bytes: int
    checkpoint_problem: str  # why the newest checkpoint is not saved (yet); empty: it is
    restored_from: str  # "memory", or a checkpoint's name; empty: it began anew
    total_steps: int  # of a script, as it says itself
    remaining_seconds: float  # the same
    metrics: Dict[str, float]  # the same
    proto: Any = _proto()


@dataclass(frozen=True)
class Failure(Record):
    """The first rank that failed in an attempt."""

    failure_class: str = field(metadata={"name": "class"})  # "USER", "OUT_OF_MEMORY", ...
    rank: int
    worker: str
    message: str
    last_lines: Tuple[str, ...]  # the end of that rank's log
    time: _Time
    generation: int
    proto: Any = _proto()


@dataclass(frozen=True)
class JobEvent(Record):
    """A change of a job's state, or of the reason for it."""

    time: _Time
    state: str
    reason: str
    detail: str
    generation: int
    ranks: int
    proto: Any = _proto()


@dataclass(frozen=True)
class Choice(Record):
    """What the planner chose for a field that was `auto`."""

    field: str  # "train.batch.micro"
    value: str  # as in YAML
    reason: str
    proto: Any = _proto()


@dataclass(frozen=True)
class JobStatus(Record):
    """A job as it was when the coordinator answered."""

    name: str  # "jobs/7"; empty: it was only validated
    uid: str
    state: str  # "QUEUED", "RUNNING", "SUCCEEDED", ...
    reason: str  # why it is in its state: "WAITING_FOR_SLOTS", ...; "UNSPECIFIED"
    reason_detail: str  # one line: why it waits or failed, and what would help
    project: str
    labels: Dict[str, str]
    create_time: _Time
    start_time: _Time
    end_time: _Time
    generation: int
    attempts: int
    failures: int
    preemptions: int
    queue_position: int  # 0: it does not wait
    latest_checkpoint: str
    progress: Optional[Progress] = field(metadata={"record": Progress})
    first_failure: Optional[Failure] = field(metadata={"record": Failure})
    choices: Tuple[Choice, ...] = field(metadata={"record": Choice})
    events: Tuple[JobEvent, ...] = field(metadata={"record": JobEvent})
    array: Optional[Dict[str, Any]]  # which array it belongs to, and what was set for it
    forked_from: Optional[Dict[str, Any]]
    etag: str
    proto: Any = _proto()

    @property
    def ended(self) -> bool:
        """Whether it is SUCCEEDED, FAILED or CANCELLED."""
        return self.state in TERMINAL

    @property
    def spec(self) -> Dict[str, Any]:
        """The spec with every default filled in, as a spec's file has it."""
        made: Dict[str, Any] = schema.to_json(self.proto.spec)
        return made

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.progress.step if self.progress is not None else 0

    def __str__(self) -> str:
        detail = f": {self.reason_detail}" if self.reason_detail else ""
        return f"{self.name} {self.state}{detail}"

    def __repr__(self) -> str:
        return f"JobStatus({self.name or 'only validated'} {self.state}, step {self.step})"

    def failure_text(self) -> str:
        """What `milepost job describe` says of a job that failed."""
        text = str(self)
        failure = self.first_failure
        if failure is None:
            return text
        text += (
            f"\n{failure.failure_class}, rank {failure.rank} on {failure.worker}, attempt of "
            f"generation {failure.generation}: {failure.message}"
        )
        return text + "".join(f"\n    | {line}" for line in failure.last_lines)


@dataclass(frozen=True)
class Checkpoint(Record):
    """A committed checkpoint."""

    name: str  # "checkpoints/4"
    job: str
    step: int
    generation: int
    bytes: int
    create_time: _Time
    pinned: bool
    damaged: bool
    chunks: int
    validation_loss: Optional[float] = field(metadata={"optional": True})
    delete_time: _Time  # since when it is in the bin; None: it is not
    purge_time: _Time
    proto: Any = _proto()


@dataclass(frozen=True)
class LogLine(Record):
    """One line of a rank. `print` shows it as `milepost job logs` does."""

    job: str
    generation: int
    rank: int
    time: _Time
    text: str
    sequence: int  # grows along one job's log
    dropped_lines: int  # above 0: no line, but how many before the next one are not kept any more
    proto: Any = _proto()

    def __str__(self) -> str:
        if self.dropped_lines > 0:
            return self.text
        time = self.time.strftime("%Y-%m-%dT%H:%M:%SZ") if self.time is not None else "-"
        return f"{time} [rank {self.rank}] {self.text}"


@dataclass(frozen=True)
class JobArray(Generic[T]):
    """The jobs of an array, in the order of its combinations."""

    name: str  # "arrays/7"
    jobs: List[T]

    def __iter__(self) -> Iterator[T]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)
