"""A small GPT under DistributedDataParallel, with milepost.checkpoint."""
import argparse

import milepost
import torch
import torch.distributed as dist
from common import GPT, Text, final_loss, say_result
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=800)
parser.add_argument("--batch", type=int, default=16, help="samples of all ranks together")
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = GPT()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
text = Text()
sampler = milepost.data.ElasticSampler(len(text), epochs=100, seed=2)

step = 0
start = milepost.checkpoint.load()
if start is not None:
    model.load_state_dict(start.state["model"])
    optimizer.load_state_dict(start.state["optimizer"])
    sampler.load_state_dict(start.state["sampler"])
    step = start.step
    if start.per_rank is not None:
        assert start.per_rank["rank"] == rank
        torch.set_rng_state(start.per_rank["random"])
    print(f"goes on after step {step} at {world} ranks", flush=True)

loader = iter(torch.utils.data.DataLoader(text, batch_size=args.batch // world, sampler=sampler))
while step < args.steps:
    ids, targets = next(loader)
    loss = ddp(ids, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    sampler.advance(args.batch)
    milepost.report(step, args.steps, loss=loss.item())
    stop = milepost.should_stop()
    if stop or step % 20 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                 "sampler": sampler.state_dict()}
        own = {"rank": rank, "random": torch.get_rng_state()}
        milepost.checkpoint.save(state, step, per_rank=own)
    if stop:
        break
if step == args.steps and rank == 0:
    say_result(final_loss(model), model.state_dict().items())
dist.destroy_process_group()
