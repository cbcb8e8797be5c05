"""One rank never comes to a collective call of PyTorch, in a way that the first argument names."""

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def load_batch():
    while True:
        time.sleep(1)


def main():
    way = sys.argv[1]
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
    last = dist.get_rank() == dist.get_world_size() - 1
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pair = dist.new_group([0, 1])
    for step in range(100):
        if step == 3 and last:
            if way == "data":
                load_batch()
            if way == "spins":
                while True:
                    pass
            if way == "raises":
                raise ValueError("a bad batch")
            if way == "other":
                dist.broadcast(torch.zeros(5), src=0)
        if step == 3 and way == "other":
            dist.all_reduce(torch.zeros(5))
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(3), group=pair)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()


main()
