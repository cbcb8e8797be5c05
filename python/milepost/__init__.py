"""What a training script says to Milepost, and asks of it, while it runs as a rank of a job.

    import milepost

    start = milepost.checkpoint.load()              # None: the job begins anew
    if start is not None:
        model.load_state_dict(start.state["model"])
    for step in range(start.step if start else 0, steps):
        loss = train_step()
        milepost.report(step + 1, steps, loss=loss)
        stop = milepost.should_stop()
        if stop or (step + 1) % 100 == 0:
            milepost.checkpoint.save({"model": model.state_dict()}, step + 1)
        if stop:
            break

Outside a job nothing is reported, kept or stopped, so the same script runs by itself. Python 3.9 or
newer on Linux. It needs no other package; PyTorch and NumPy are used where the script uses them.

From anywhere, `milepost.Client` and `milepost.AsyncClient` submit jobs and follow them. They need
the packages of `pip install 'milepost[client]'`, and are imported when they are first used.
"""

from typing import TYPE_CHECKING, Any

from milepost import checkpoint, data, errors
from milepost._job import Job, job
from milepost._link import MilepostError
from milepost._report import report
from milepost._stop import should_stop

if TYPE_CHECKING:
    from milepost.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Client",
    "Job",
    "MilepostError",
    "checkpoint",
    "data",
    "errors",
    "job",
    "report",
    "should_stop",
]


def __getattr__(name: str) -> Any:
    """The client, when it is first asked for: what a script imports stays small."""
    if name not in ("AsyncClient", "Client"):
        raise AttributeError(f"module 'milepost' has no attribute '{name}'")
    try:
        import milepost.client as client
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("grpc", "google"):
            raise
        raise ImportError(
            f"milepost.{name} needs grpcio and protobuf: pip install 'milepost[client]' ({error})"
        ) from error
    return getattr(client, name)
