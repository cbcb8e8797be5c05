"""Saves a state through DCP at four ranks and reads it at other placements, numbers and ways.

Job 1 saves; a job with `resume_from` compares. What is right is known to both: element i of tensor
t is i + 1000 t.
"""
import math
import sys

import milepost
import milepost.dcp
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SHAPES = {"vector": (13,), "matrix": (7, 10), "cube": (4, 6, 5), "one": (1, 9), "few": (2, 3)}

def placements(dim):
    """Of each tensor along one mesh; two sharded dimensions where there is a grid."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2)) if world % 2 == 0 else None
    for number, (name, shape) in enumerate(SHAPES.items()):
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            whole = (torch.arange(math.prod(shape)) + 1000 * number).reshape(shape).to(dtype)
            key = f"{name}.{str(dtype)[6:]}"
            yield key, whole, mesh, [Shard(min(dim, len(shape) - 1))]
            if grid is not None and len(shape) > 1 and dim > 0:
                yield key + ".grid", whole, grid, [Shard(1), Shard(0)]
            elif grid is not None and len(shape) > 1:
                yield key + ".grid", whole, grid, [Replicate(), Shard(0)]


def state(dim, blank):
    tensors = {}
    for name, whole, where, how in placements(dim):
        source = torch.full_like(whole, 77) if blank else whole
        tensors[name] = distribute_tensor(source, where, how)
    plain = {"steps": 5, "lr": 0.25, "name": "x", "betas": (0.9, 0.99), "none": None}
    others = {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "list": [torch.ones(2), 7]}
    if blank:
        plain = {key: None for key in plain}
        others = {"scalar": torch.tensor(0.0), "empty": torch.empty(0, 4),
                  "list": [torch.zeros(2), 0]}
    return {"tensors": tensors, "plain": plain, "others": others}


def check_none(reader):
    assert reader.step is None and reader.name is None
    try:
        dcp.load(state(0, True), storage_reader=reader)
    except BaseException as error:  # DCP's is no Exception
        assert "no checkpoint to begin with" in str(error), error
    else:
        raise AssertionError("nothing was there to load")


def save(dim, how):
    call, more = dcp.async_save if how else dcp.save, {}
    if how == "process":
        more["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
    for step in (1, 2, 2):
        writer = milepost.dcp.StorageWriter(step)
        done = call(state(dim, step == 1), storage_writer=writer, **more)
        if how:
            done.result()
    if dist.get_rank() == 0:
        print("committed", milepost.checkpoint.wait(), flush=True)


def load(reader, dim):
    assert reader.step == 2, reader.step
    found = state(dim, True)
    for name in list(found["tensors"]):
        if name.endswith(".grid"):  # others are there at other numbers of ranks
            del found["tensors"][name]
    dcp.load(found, storage_reader=reader)
    for name, whole, _, _ in placements(dim):
        if name in found["tensors"]:
            assert torch.equal(found["tensors"][name].full_tensor(), whole), name
    check_rest(found)
    print("read", len(found["tensors"]), "tensors of", reader.name, flush=True)


def check_rest(found):
    assert found["plain"] == state(0, False)["plain"], found["plain"]
    assert found["others"]["scalar"].item() == 3.5
    assert found["others"]["list"][1] == 7 and found["others"]["list"][0].tolist() == [1, 1]


def load_whole():
    start = milepost.checkpoint.load()
    assert start.step == 2
    for name, whole, _, _ in placements(0):
        if not name.endswith(".grid"):
            assert torch.equal(start.state["tensors"][name], whole), name
    check_rest(start.state)
    print("whole", flush=True)


def check_cut():
    try:
        milepost.checkpoint.load()
    except milepost.MilepostError as error:
        assert "milepost.dcp.StorageReader" in str(error), error
    else:
        raise AssertionError("parts by columns were read as a whole")


class Planner(dcp.DefaultSavePlanner):
    def resolve_data(self, item):
        if dist.get_rank() == 1:
            raise RuntimeError("no luck")
        return super().resolve_data(item)


def check_failure():
    writer = milepost.dcp.StorageWriter(3)
    try:
        dcp.save(state(0, False), storage_writer=writer, planner=Planner())
    except BaseException as error:
        assert "no luck" in str(error) and "could not say" in str(error), error
    else:
        raise AssertionError("it was saved")
    dcp.save(state(0, False), storage_writer=milepost.dcp.StorageWriter(4))
    print("went on", flush=True)


def main():
    dist.init_process_group("gloo")
    mode, reader = sys.argv[1], milepost.dcp.StorageReader()
    if mode.startswith("save"):
        save(int(mode[4]), mode[5:])
    elif mode.startswith("load"):
        load(reader, int(mode[4]))
    else:
        {"none": lambda: check_none(reader), "plain": load_whole, "cut": check_cut,
         "fails": check_failure}[mode]()
    dist.destroy_process_group()


if __name__ == "__main__":  # the process of async_save imports it
    main()
