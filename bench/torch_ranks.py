"""The peer of bench/ranks_vs_torch: one rank of a GPT-2 trained by DDP or FSDP2 over Gloo, on CPUs.

Started by bench/ranks_vs_torch with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Prints JSON:
what the process held at its peak, how much of it was not there before the model was built, and a
step's time.
"""

import argparse
import json
import pathlib
import resource
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import torch_step  # noqa: E402


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def shard(model, bf16):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mesh": mesh, "mp_policy": policy} if bf16 else {"mesh": mesh}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def train_step(model, optimizer, batch, autocast):
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = model(*batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["ddp", "fsdp2"], required=True)
    parser.add_argument("--precision", choices=["fp32", "bf16"], required=True)
    for name in ("layers", "width", "heads", "vocabulary", "context", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    args.family = "gpt2"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    before = peak_bytes()
    bf16 = args.precision == "bf16"
    model = torch_step.make_model(args)
    model = shard(model, bf16) if args.mode == "fsdp2" else DistributedDataParallel(model)
    optimizer, _ = torch_step.make_optimizer(model)
    batch = torch_step.make_batch(args)
    autocast = bf16 and args.mode == "ddp"
    seconds = [train_step(model, optimizer, batch, autocast) for _ in range(args.steps)]
    if dist.get_rank() == 0:
        print(json.dumps({"peak_bytes": peak_bytes(), "model_bytes": peak_bytes() - before,
                          "step_seconds": statistics.median(seconds[1:])}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
