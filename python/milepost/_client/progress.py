"""A job's progress as the command line tells it (client/cli/progress_view.cc). Pure."""

import math
from typing import Any, Optional

from milepost._client import schema
from milepost._client.records import JobStatus

_PACE_NEEDS = 3.0  # seconds


def count_text(count: float) -> str:
    """31234 -> "31.2k"."""
    if not math.isfinite(count):
        return "-"
    if count < 999.5:
        return f"{count:.0f}"
    unit = -1
    while count >= 999.5 and unit < 5:
        count /= 1000
        unit += 1
    return f"{count:.{1 if count < 99.95 else 0}f}{'kMGTPE'[unit]}"


def bytes_text(size: int) -> str:
    """12591744 -> "12.0 MiB"."""
    if size < 1024:
        return f"{size} B"
    value, unit = size / 1024, 0
    while value >= 1023.95 and unit < 4:
        value /= 1024
        unit += 1
    return f"{value:.1f} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[unit]}"


def duration_text(seconds: float) -> str:
    """68 -> "1m08s"."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}m"
    return f"{whole // 86400}d{whole // 3600 % 24}h"


def _loss(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def steps_text(job: JobStatus) -> str:
    """ "120/1000"; of a script "120/?" where it does not say how many there are."""
    progress = job.proto.progress
    if not job.proto.spec.HasField("script"):
        return f"{progress.step}/{job.proto.spec.train.steps}"
    if progress.step == 0 and progress.total_steps == 0:
        return "-"
    return f"{progress.step}/{progress.total_steps or '?'}"


def time_left(job: JobStatus, now: float) -> Optional[float]:
    """Seconds until the last step, at the pace of the attempt so far; None: not known."""
    progress, spec = job.proto.progress, job.proto.spec
    if spec.HasField("script"):
        if progress.remaining_seconds <= 0:
            return None
        told = schema.seconds_of(progress.time)
        return max(0.0, told + float(progress.remaining_seconds) - now)
    left = int(spec.train.steps) - int(progress.step)
    if left <= 0:
        return 0.0
    first = schema.seconds_of(progress.first_step_time)
    done = progress.step - progress.start_step - 1
    if math.isfinite(first) and done > 0 and now - first >= _PACE_NEEDS:
        return float((now - first) / done * left)
    if progress.tokens_per_second <= 0:
        return None
    per_step = getattr(spec.train.batch, "global") * spec.data.sequence_length
    return float(left * per_step / progress.tokens_per_second)


def _validation(progress: Any) -> str:
    if progress.validation_step == 0 or math.isnan(progress.validation_loss):
        return ""
    return f"  validation {_loss(progress.validation_loss)} @{progress.validation_step}"


def progress_line(job: JobStatus, now: float) -> str:
    """ "step 120/1000  loss 2.3140  validation 2.4021 @100  31.2k tokens/s  ETA 42s"."""
    progress, spec = job.proto.progress, job.proto.spec
    line = f"step {steps_text(job)}  loss {_loss(progress.train_loss)}"
    if len(progress.train_heads) > 1:
        heads = ", ".join(f"{one.name} {_loss(one.loss)}" for one in progress.train_heads)
        line += f" ({heads})"
    line += _validation(progress)
    if not spec.HasField("script"):
        unit = "image" if spec.model.WhichOneof("family") == "resnet" else "token"
        line += f"  {count_text(progress.tokens_per_second)} {unit}s/s"
    left = time_left(job, now)
    if left:
        line += f"  ETA {duration_text(left)}"
    if progress.skipped_steps > 0:
        line += f"  skipped {progress.skipped_steps}"
    if job.attempts > 1:
        line += f"  attempt {job.attempts}"
    return line
