"""A small regression under DistributedDataParallel, written for torchrun.

It knows nothing of Milepost. It saves its state every 50 steps and when it is told to stop
(SIGTERM), and goes on from there.
"""
import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--state", default="state.pt")
args = parser.parse_args()

stop = False


def on_sigterm(signum, frame):
    global stop
    stop = True


signal.signal(signal.SIGTERM, on_sigterm)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
step = 0
if os.path.exists(args.state):
    state = torch.load(args.state)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]


def save():
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(),
                    "step": step}, args.state + ".new")
        os.replace(args.state + ".new", args.state)
    dist.barrier()


weights = torch.linspace(-1, 1, 16)
while step < args.steps:
    # Of this step and rank alone, so that a run which goes on sees what it would have seen.
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(step * world + rank))
    loss = (model(x).squeeze(1) - x @ weights).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    # All ranks leave at the same step.
    told = torch.tensor([float(stop)])
    dist.all_reduce(told)
    if rank == 0 and step % 50 == 0:
        print(f"step {step}  loss {loss.item():.6f}", flush=True)
    if told.item() > 0 or step % 50 == 0:
        save()
    if told.item() > 0:
        break
dist.destroy_process_group()
