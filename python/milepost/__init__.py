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
"""

from milepost import checkpoint, data
from milepost._job import Job, job
from milepost._link import MilepostError
from milepost._report import report
from milepost._stop import should_stop

__all__ = ["Job", "MilepostError", "checkpoint", "data", "job", "report", "should_stop"]
