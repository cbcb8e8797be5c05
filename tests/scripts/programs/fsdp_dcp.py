"""A small GPT under FSDP2, saved and loaded through torch.distributed.checkpoint."""
import argparse

import milepost
import milepost.dcp
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from common import GPT, Text, final_loss, say_result
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,
                                                     get_state_dict, set_state_dict)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch", type=int, default=16, help="samples of all ranks together")
args = parser.parse_args()


class AppState(Stateful):
    """As PyTorch's recipe has it."""

    def state_dict(self):
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    def load_state_dict(self, state):
        set_state_dict(model, optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
aside = dist.new_group()  # async_save's thread talks while the steps do
torch.manual_seed(0)
model = GPT()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = Text()
sampler = milepost.data.ElasticSampler(len(text), epochs=100, seed=2)

step = 0
reader = milepost.dcp.StorageReader()
if reader.step is not None:
    state = {"app": AppState(), "sampler": sampler}
    dcp.load(state, storage_reader=reader)
    step = reader.step
    assert sampler.consumed == step * args.batch
    print(f"goes on after step {step} at {world} ranks", flush=True)

loader = iter(torch.utils.data.DataLoader(text, batch_size=args.batch // world, sampler=sampler))
saving = None
while step < args.steps:
    ids, targets = next(loader)
    loss = model(ids, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    sampler.advance(args.batch)
    milepost.report(step, args.steps, loss=loss.item())
    stop = milepost.should_stop()
    if stop or step % 20 == 0:
        if saving is not None:
            saving.result()
            saving = None
        state = {"app": AppState(), "sampler": sampler}
        writer = milepost.dcp.StorageWriter(step)
        if stop or step % 40 == 0:
            dcp.save(state, storage_writer=writer)
        else:
            saving = dcp.async_save(state, storage_writer=writer, process_group=aside)
    if stop:
        break
if saving is not None:
    saving.result()
if step == args.steps:
    loss = final_loss(model)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:
        say_result(loss, whole.items())
dist.destroy_process_group()
