"""Which job, attempt and rank this process belongs to."""

import os
from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Job:
    """A rank's place in its job."""

    name: str  # "jobs/7"
    uid: str  # never used again, as names are by another coordinator
    attempt: int  # from 1 on
    rank: int
    world_size: int
    local_rank: int


def job() -> Optional[Job]:
    """The job that this process is a rank of. None outside a job. Does not block."""
    name = os.environ.get("MILEPOST_JOB")
    if not name or not os.environ.get("MILEPOST_URL"):
        return None
    return Job(
        name=name,
        uid=os.environ.get("MILEPOST_JOB_UID", ""),
        attempt=int(os.environ.get("MILEPOST_ATTEMPT", "1")),
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
    )
