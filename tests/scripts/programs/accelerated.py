"""Accelerate, with its own save_state and load_state in a shared folder."""
import os
import pathlib

import milepost
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from common import GPT, Text, final_loss, say_result

EPOCHS, EVERY = 2, 20
# Else a rank that goes on within an epoch would draw another order of samples.
order = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(cpu=True, dataloader_config=order)
set_seed(0)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Text(), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
folder = pathlib.Path("out") / os.environ["MILEPOST_JOB_UID"]
found = sorted(folder.glob("step_*[0-9]"), key=lambda path: int(path.name[5:]))
step = 0
if found:
    accelerator.load_state(found[-1])
    step = int(found[-1].name[5:])
    print("goes on with", found[-1], flush=True)


def save():
    unfinished = folder / f"step_{step}.new"
    accelerator.save_state(unfinished)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process and not (folder / f"step_{step}").exists():
        unfinished.rename(folder / f"step_{step}")  # whole, or not there
    accelerator.wait_for_everyone()


total, stop = EPOCHS * len(loader), False
for epoch in range(step // len(loader), EPOCHS):
    batches = loader
    if step > epoch * len(loader):
        batches = accelerator.skip_first_batches(loader, step - epoch * len(loader))
    batches.set_epoch(epoch)
    for ids, targets in batches:
        loss = model(ids, targets)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        milepost.report(step, total, loss=loss.detach())
        stop = milepost.should_stop()
        if stop or step % EVERY == 0:
            save()
        if stop:
            break
    if stop:
        break
if step == total and accelerator.is_main_process:
    whole = accelerator.unwrap_model(model)
    say_result(final_loss(whole), whole.state_dict().items())
accelerator.end_training()
