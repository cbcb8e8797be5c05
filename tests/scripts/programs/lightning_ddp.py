"""Lightning's Trainer under DDP, with Milepost's callback and checkpoint plugin."""
import os

import lightning
import torch
from common import GPT, Text, final_loss, say_result
from lightning.pytorch.callbacks import ModelCheckpoint
from milepost.lightning import MilepostCallback, MilepostCheckpointIO, resume_path


class Loader(torch.utils.data.DataLoader):
    """Goes on within an epoch: Lightning keeps the state of loaders that have one, and lets others
    begin the epoch again."""

    given = skipped = 0  # batches of the epoch

    def __iter__(self):
        skip, self.skipped = self.skipped, 0
        for self.given, batch in enumerate(super().__iter__(), start=1):
            if self.given > skip:
                yield batch

    def state_dict(self):
        return {"given": self.given % len(self)}

    def load_state_dict(self, state):
        self.skipped = state["given"]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = GPT()

    def training_step(self, batch, index):
        loss = self.model(*batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
module = Module()
trainer = lightning.Trainer(
    accelerator="cpu", strategy="ddp", max_epochs=16, logger=False, enable_progress_bar=False,
    devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    callbacks=[MilepostCallback(), ModelCheckpoint(every_n_epochs=1)],
    plugins=[MilepostCheckpointIO()],
)
start = resume_path()
print("goes on with", start, flush=True)
loader = Loader(Text(512), batch_size=8, shuffle=True)
trainer.fit(module, loader, ckpt_path=start)
if trainer.is_global_zero and not trainer.should_stop:
    say_result(final_loss(module.model), module.state_dict().items())
