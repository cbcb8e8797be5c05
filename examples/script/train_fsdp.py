"""A small regression under FSDP2 whose checkpoints, progress and stops are Milepost's.

Run it by itself and it trains; run it as a job and it goes on from its newest checkpoint, at
whatever number of ranks.
"""
import argparse
import os

import milepost
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=64, help="samples of all ranks together")
args = parser.parse_args()

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else "cpu"
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
model.to(device)
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
samples = torch.randn(4096, 16, generator=torch.Generator().manual_seed(1))
targets = samples @ torch.linspace(-1, 1, 16)
samples, targets = samples.to(device), targets.to(device)
sampler = milepost.data.ElasticSampler(len(samples), epochs=1000, seed=2)


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "sampler": sampler.state_dict()}


step = 0
resumed = state()  # of the right form, to be filled
start = milepost.checkpoint.load(into=resumed, strict=False)
if start is not None:
    set_state_dict(
        model,
        optimizer,
        model_state_dict=resumed["model"],
        optim_state_dict=resumed["optimizer"],
    )
    sampler.load_state_dict(resumed["sampler"])
    step = start.step
    print(f"goes on after step {step} with {start.name}", flush=True)

order = iter(sampler)
while step < args.steps:
    picked = torch.tensor([next(order) for _ in range(args.batch // world)], device=device)
    loss = (model(samples[picked]).squeeze(1) - targets[picked]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    sampler.advance(args.batch)
    milepost.report(step, args.steps, loss=loss.item())
    stop = milepost.should_stop()
    if stop or step % 50 == 0 or step == args.steps:
        milepost.checkpoint.save(state(), step)
    if stop:
        break
if rank == 0 and step == args.steps:
    print(f"done: loss {loss.item():.6f}", flush=True)
dist.destroy_process_group()
