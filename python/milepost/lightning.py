"""A callback and a checkpoint plugin for Lightning's Trainer.

    from milepost.lightning import MilepostCallback, MilepostCheckpointIO, resume_path

    trainer = Trainer(..., callbacks=[MilepostCallback()], plugins=[MilepostCheckpointIO()])
    trainer.fit(model, loader, ckpt_path=resume_path())

Milepost then keeps what the Trainer saves. When the job is to stop, the Trainer saves and ends, at
the same step on all ranks.
"""

import os
from typing import Any, Dict, Optional

try:
    import lightning.pytorch as pl  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    import pytorch_lightning as pl  # type: ignore[import-not-found,no-redef,unused-ignore]

from milepost import checkpoint
from milepost._job import job
from milepost._link import MilepostError
from milepost._report import report
from milepost._stop import should_stop

__all__ = ["MilepostCallback", "MilepostCheckpointIO", "resume_path"]

_OWN = ("step", "total_steps")  # arguments of report()


def resume_path() -> Optional[str]:
    """For `ckpt_path`: the checkpoint that this attempt begins with. None: it begins anew."""
    opened = checkpoint.open_checkpoint()
    return None if opened is None else opened.name


class MilepostCallback(pl.Callback):  # type: ignore[misc,unused-ignore]
    """Reports steps and metrics, and stops the Trainer when the job is to stop. Else does nothing.

    At a stop it saves to `path`, by default stop.ckpt in the Trainer's default_root_dir. With
    MilepostCheckpointIO the path does not matter.
    """

    def __init__(self, path: Optional[str] = None) -> None:
        self._path = path
        self._total: Optional[int] = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        total = trainer.estimated_stepping_batches
        self._total = int(total) if total != float("inf") else None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_global_zero:
            metrics = {k: v for k, v in trainer.logged_metrics.items() if k not in _OWN}
            if isinstance(outputs, dict) and "loss" in outputs:
                metrics.setdefault("loss", outputs["loss"])
            report(trainer.global_step, self._total, **metrics)
        if should_stop() and not trainer.should_stop:
            trainer.should_stop = True
            trainer.save_checkpoint(
                self._path or os.path.join(trainer.default_root_dir, "stop.ckpt")
            )


class MilepostCheckpointIO(pl.plugins.TorchCheckpointIO):  # type: ignore[misc,unused-ignore]
    """Has Milepost keep what the Trainer saves. For strategies whose rank 0 saves all, as DDP's.

    A checkpoint's step is its `global_step`. The job's spec says which ones are kept: what the
    Trainer removes stays. Outside a job it is TorchCheckpointIO.
    """

    def save_checkpoint(
        self, checkpoint: Dict[str, Any], path: Any, storage_options: Optional[Any] = None
    ) -> None:
        """TypeError: the Trainer's state, such as its hyperparameters, has what cannot be saved."""
        if job() is None:
            super().save_checkpoint(checkpoint, path, storage_options)
        else:
            _save(checkpoint)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Dict[str, Any]:
        """MilepostError: `path` is not resume_path()."""
        if job() is None:
            loaded: Dict[str, Any] = super().load_checkpoint(path, *args, **kwargs)
            return loaded
        start = checkpoint.load()
        if start is None or str(path) != start.name:
            raise MilepostError(f"{path} is not what this attempt begins with")
        state: Dict[str, Any] = start.state
        return state

    def remove_checkpoint(self, path: Any) -> None:
        if job() is None:
            super().remove_checkpoint(path)


def _save(state: Dict[str, Any]) -> None:
    checkpoint.save(state, state["global_step"], alone=True)
