#!/usr/bin/env python3
"""Makes powersgd_curve.json: 20 training steps of a tiny GPT-2 by two ranks of
DistributedDataParallel over gloo with torch's powerSGD_hook, fp32.

    python3 tests/golden/make_powersgd_curve.py > tests/golden/powersgd_curve.json

Needs torch and numpy. Model, data and training are those of make_gpt2_curve.py; each rank has
every other sample. The first START steps send gradients whole. The hook draws the first right
factors at random: here they are put where it keeps them, from the same formula as the weights, so
that others can begin with the same. At rank 2 the hook orthogonalises by Gram-Schmidt, at rank 8 by
QR, and at rank 8 it leaves the smaller matrices whole.
"""
import json
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

from make_gpt2_curve import (MODEL, OPTIMIZERS, SAMPLES, TRAIN, final_state, head_loss_sum,
                             initial_weights, lr_at, make_optimizer, token, trunk, uniform)

RANKS = 2
START = 5
FACTORS = 2000  # of `uniform`: the tensor's number is added


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weights = initial_weights()
        self.names = list(weights)
        self.parameter_list = torch.nn.ParameterList(weights.values())

    def weights(self):
        return dict(zip(self.names, self.parameter_list))

    def forward(self, tokens, targets):
        weights = self.weights()
        return head_loss_sum(weights, trunk(weights, tokens), targets) / targets.numel()


def first_factors(state, bucket, indices):
    """What the hook would draw, in the order in which it lays them out: by shape."""
    shapes = {}
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
        rows, cols = gradient.view(gradient.shape[0], -1).shape
        rank = min(rows, cols, state.matrix_approximation_rank)
        compressed, _, _ = powersgd._should_compress(rows, cols, rank, state.min_compression_rate)
        if compressed:
            index = indices[parameter.data_ptr()]
            shapes.setdefault((rows, cols), []).append((index, rows, cols, rank))
    matrices = [m for same in shapes.values() for m in same]
    left = sum(rows * rank for _, rows, _, rank in matrices)
    right = [uniform(FACTORS + index, cols * rank) for index, _, cols, rank in matrices]
    return torch.empty(left), torch.cat(right + [torch.empty(0)])


def hook(state_and_indices, bucket):
    state, indices = state_and_indices
    begins = state.iter >= state.start_powerSGD_iter
    if begins and bucket.index() not in state.p_memory_dict:
        left, right = first_factors(state, bucket, indices)
        state.p_memory_dict[bucket.index()] = left
        state.q_memory_dict[bucket.index()] = right
    return powersgd.powerSGD_hook(state, bucket)


def train(rank, factor_rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.set_num_threads(1)
    length = MODEL["context"]
    stream = torch.tensor([token(i) for i in range(SAMPLES * length + 1)])
    tokens = stream[:-1].view(SAMPLES, length)
    targets = stream[1:].view(SAMPLES, length)
    model = Model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    indices = {p.data_ptr(): i for i, p in enumerate(model.parameter_list)}
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=factor_rank,
                                   start_powerSGD_iter=START)
    wrapped.register_comm_hook((state, indices), hook)
    optimizer = make_optimizer("adamw", model.weights())
    curve = []
    for step in range(TRAIN["steps"]):
        optimizer.zero_grad()
        loss = wrapped(tokens[rank::RANKS], targets[rank::RANKS])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip_norm"])
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        curve.append({"loss": total.item() / RANKS, "grad_norm": norm.item(), "lr": lr_at(step)})
    if rank == 0:
        results.put({"rank": factor_rank, "parameters": model.names, "steps": curve,
                     "final": final_state(model.weights())})
    dist.barrier()
    dist.destroy_process_group()


def run(factor_rank):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    ranks = mp.spawn(train, (factor_rank, port, results), RANKS, join=False)
    result = results.get()
    while not ranks.join():
        pass
    return result


def main():
    print(json.dumps({"torch": torch.__version__, "model": MODEL, "samples": SAMPLES,
                      "train": TRAIN, "start_step": START, "factors": FACTORS,
                      "cases": [run(2), run(8)]}, indent=1))


TRAIN.update(OPTIMIZERS["adamw"])  # in every process

if __name__ == "__main__":
    main()
