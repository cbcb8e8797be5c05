"""Why milepost.Client could not do what it was asked. Needs nothing but Python.

    try:
        job = client.submit("gpt2.yaml")
    except milepost.errors.InvalidSpec as error:
        for violation in error.violations:
            print(violation.field, violation.description)

Every exception here is a ClientError, and so a milepost.MilepostError. Its text says what is wrong
and what to do.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Optional, Sequence, Tuple, Type

from milepost._link import MilepostError

if TYPE_CHECKING:
    from milepost._client.records import JobStatus


class ClientError(MilepostError):
    """What a call was refused for, or why there is no answer.

    `code` is gRPC's name of the status. `reason` is an ErrorReason of docs/use/api.md without its
    prefix, such as "JOB_NOT_FOUND", and `subject` what it is about, such as "jobs/7"; both are
    empty where the coordinator says neither. `retry_after`: the seconds after which the same call
    may succeed. `sent_before`: an earlier try of the call, whose answer was lost, may have done it.
    """

    code = "UNKNOWN"

    def __init__(
        self, message: str, *, code: str = "", reason: str = "", subject: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.reason = reason
        self.subject = subject
        self.retry_after: Optional[float] = None
        self.sent_before = False


class InvalidArgument(ClientError):
    """A value is wrong; the same call fails again."""

    code = "INVALID_ARGUMENT"


@dataclass(frozen=True)
class FieldViolation:
    """What is wrong with one field."""

    field: str  # "train.batch.micro"
    description: str


class InvalidSpec(InvalidArgument):
    """A job spec breaks rules, or the job cannot fit. `violations` has what is known by field."""

    def __init__(
        self, message: str, violations: Sequence[FieldViolation] = (), *, reason: str = ""
    ) -> None:
        super().__init__(message, reason=reason)
        self.violations: Tuple[FieldViolation, ...] = tuple(violations)


class NotFound(ClientError):
    """There is no such thing, or the caller may not see it."""

    code = "NOT_FOUND"


class AlreadyExists(ClientError):
    """There is one of that name; or the request_id came before with another request."""

    code = "ALREADY_EXISTS"


class PermissionDenied(ClientError):
    """The caller may not do this, or others may read what only the user should."""

    code = "PERMISSION_DENIED"


class Unauthenticated(ClientError):
    """There is no token, or it does not count (any more)."""

    code = "UNAUTHENTICATED"


class FailedPrecondition(ClientError):
    """Something has to change first; the text says what."""

    code = "FAILED_PRECONDITION"


class Aborted(ClientError):
    """It has changed meanwhile: read it again and repeat the change."""

    code = "ABORTED"


class ResourceExhausted(ClientError):
    """A limit is reached. Where time alone mends it, the call has been repeated already."""

    code = "RESOURCE_EXHAUSTED"


class DataLoss(ClientError):
    """What is stored is damaged."""

    code = "DATA_LOSS"


class Unavailable(ClientError):
    """No coordinator answers, after all tries."""

    code = "UNAVAILABLE"


class DeadlineExceeded(ClientError, TimeoutError):
    """A call took too long, or what is waited for has not come in time."""

    code = "DEADLINE_EXCEEDED"


class Cancelled(ClientError):
    """The client was closed, or the coordinator cut the call off."""

    code = "CANCELLED"


class JobEnded(ClientError):
    """A job that was waited for has not succeeded. `job` is its last state."""

    code = "FAILED_PRECONDITION"

    def __init__(self, message: str, job: "JobStatus") -> None:
        super().__init__(message, subject=job.name)
        self.job = job


class JobFailed(JobEnded):
    """The job FAILED. The text has its reason, and the last lines of the rank that failed first."""


class JobCancelled(JobEnded):
    """The job was CANCELLED."""


BY_CODE: Dict[str, Type[ClientError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        Unauthenticated,
        FailedPrecondition,
        Aborted,
        ResourceExhausted,
        DataLoss,
        Unavailable,
        DeadlineExceeded,
        Cancelled,
    )
}
