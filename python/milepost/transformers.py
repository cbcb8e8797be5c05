"""A callback for transformers' Trainer.

    from milepost.transformers import MilepostCallback

    trainer = Trainer(..., callbacks=[MilepostCallback()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))

The Trainer keeps its own checkpoints. When the job is to stop, it saves one and ends, at the same
step on all ranks.
"""

from typing import Any, Dict, Optional

from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

from milepost._report import report
from milepost._stop import should_stop

__all__ = ["MilepostCallback"]


class MilepostCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Reports what the Trainer logs, and stops it when the job is to stop. Else does nothing."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if should_stop():
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Optional[Dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero:
            report(state.global_step, state.max_steps, **(logs or {}))
