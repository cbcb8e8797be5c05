"""Milepost as the storage of torch.distributed.checkpoint (DCP).

    import torch.distributed.checkpoint as dcp

    reader = milepost.dcp.StorageReader()
    if reader.step is not None:                     # None: the job begins anew
        dcp.load(state, storage_reader=reader)
    ...
    dcp.save(state, storage_writer=milepost.dcp.StorageWriter(step))

The checkpoints are the job's, as those of milepost.checkpoint: committed as a whole, verified, and
what the next attempt begins with, at whatever number of ranks. Import this module by its name:
`milepost` alone needs no PyTorch.
"""

import dataclasses
import io
import operator
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import torch  # type: ignore[import-not-found,unused-ignore]
from torch.distributed.checkpoint import (  # type: ignore[import-not-found,unused-ignore]
    metadata as dcp_metadata,
    planner as dcp_planner,
    storage as dcp_storage,
)

from milepost import checkpoint
from milepost._dcp_items import Item, span_of
from milepost._job import Job
from milepost._link import MilepostError
from milepost._reader import TENSOR
from milepost._tensors import PICKLE, Form, Part, Sink, flat_bytes, form_of

__all__ = ["StorageReader", "StorageWriter"]

_GROUP_BYTES = 256 << 20  # of tensors that are copied once more, at a time


class StorageWriter(dcp_storage.StorageWriter):  # type: ignore[misc,unused-ignore]
    """Saves the checkpoint of `step`, for dcp.save() and dcp.async_save(). One for each save.

    Every rank of the job saves, with the same `step`; steps must rise, and a step that was saved
    already is passed over. With `alone` this rank's state is the whole checkpoint. Blocks, returns,
    and fails as milepost.checkpoint.save() does: the state is copied when dcp.save() returns, and
    uploaded in the background. A checkpoint_id is ignored. Nothing happens outside a job.
    """

    def __init__(self, step: int, *, alone: bool = False) -> None:
        self._step = operator.index(step)
        self._alone = alone

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise MilepostError("use_collectives=False: each rank would save the whole state")

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        cut: Set[str] = set()  # of all ranks, because each must store a tensor in the same way
        for plan in plans:
            for item in plan.items:
                data = item.tensor_data
                if data is None:
                    continue
                if span_of(data.size, data.chunk.offsets, data.chunk.sizes) is None:
                    cut.add(item.index.fqn)
        return [dataclasses.replace(plan, storage_data=cut) for plan in plans]

    def write_data(self, plan: Any, planner: Any) -> Any:
        def describe(parts: Any, here: Job) -> None:
            paths = plan.planner_data if isinstance(plan.planner_data, dict) else {}
            items = []
            for write in plan.items:
                item, part = _resolved(write, planner, paths, plan.storage_data or ())
                parts.add(item.stored, item.name, TENSOR, part)
                items.append(item.to_json())
            parts.add_json(*checkpoint.rank_structure(here.rank), _said(items, here.world_size))

        # The ranks that fail are waited for by those that do not: DCP asks each of them.
        checkpoint.commit(self._step, describe, alone=self._alone, tell=True)
        done: Any = torch.futures.Future()
        done.set_result(
            [dcp_storage.WriteResult(write.index, 0, storage_data=None) for write in plan.items]
        )
        return done

    def finish(self, metadata: Any, results: List[List[Any]]) -> None:
        pass  # the ranks have agreed on all of it

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False  # it has none


def _said(items: List[Any], world_size: int) -> Dict[str, Any]:
    return {"dcp": items, "world_size": world_size}


def _pickled(fqn: str, text: memoryview, path: Any) -> Tuple[Item, Part]:
    form = Form(PICKLE, "uint8", (len(text),), 1)
    return Item(fqn, path, form, (0,), form.shape, False), Part(0, len(text), text)


def _resolved(write: Any, planner: Any, paths: Dict[str, Any], cut: Any) -> Tuple[Item, Any]:
    """What an item of a plan is, and the bytes of it."""
    fqn = write.index.fqn
    value = planner.resolve_data(write)
    if isinstance(value, io.BytesIO):
        return _pickled(fqn, value.getbuffer(), paths.get(fqn))
    data = write.tensor_data
    whole = dataclasses.replace(_form(value), shape=tuple(data.size))
    offsets, sizes = tuple(data.chunk.offsets), tuple(data.chunk.sizes)
    item = Item(fqn, paths.get(fqn), whole, offsets, sizes, fqn in cut)
    # A part of its own begins at 0.
    span = span_of(item.stored.shape, item.box([0] * len(sizes)), sizes)
    if span is None:
        raise MilepostError(f"{fqn!r} is no longer saved in the parts that it was saved in")
    begin, end = span
    if begin == end:
        return item, None
    return item, Part(begin * whole.element, end * whole.element, flat_bytes(value))


def _form(value: Any) -> Form:
    form = form_of(value)
    assert form is not None
    return form


class StorageReader(dcp_storage.StorageReader):  # type: ignore[misc,unused-ignore]
    """Reads the checkpoint that this attempt begins with, for dcp.load().

    Every byte is verified. MilepostError, which DCP wraps: there is no checkpoint, it is damaged,
    or it was saved by milepost.checkpoint.save(). A checkpoint_id is ignored.
    """

    def __init__(self) -> None:
        self._opened: Any = None
        self._items: Dict[Tuple[str, Optional[Tuple[int, ...]]], Item] = {}

    @property
    def step(self) -> Optional[int]:
        """None: the job begins anew, or this is no job. Blocks for a moment the first time."""
        opened = self._open()
        return None if opened is None else opened.step

    @property
    def name(self) -> Optional[str]:
        """The checkpoint's, "checkpoints/12". None: as `step`."""
        opened = self._open()
        return None if opened is None else opened.name

    def _open(self) -> Any:
        if self._opened is None:
            self._opened = checkpoint.open_checkpoint()
        return self._opened

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *args: Any, **options: Any) -> Any:
        opened = self._open()
        if opened is None:
            raise MilepostError("the job has no checkpoint to begin with")
        items = opened.dcp_items()
        if items is None:
            raise MilepostError(f"{opened.name} was not saved through milepost.dcp")
        self._items = {(item.fqn, _offset_of(item)): item for item in items}
        found: Dict[str, Any] = {}
        for item in items:
            if item.pickled:
                found[item.fqn] = dcp_metadata.BytesStorageMetadata()
                continue
            if item.fqn not in found:
                found[item.fqn] = _tensor_metadata(item.form)
            box = torch.Size(item.offsets), torch.Size(item.sizes)
            found[item.fqn].chunks.append(dcp_metadata.ChunkStorageMetadata(*box))
        paths = {item.fqn: item.path for item in items if item.path is not None}
        return dcp_metadata.Metadata(found, planner_data=paths or None)

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *args: Any, **options: Any
    ) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: List[Any]) -> List[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        for group in self._groups(plan.items, planner):
            self._opened.read([(item.name, item.stored, sink) for item, sink in group])
            for _, sink in group:
                sink.finish()
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def _groups(self, reads: List[Any], planner: Any) -> Iterator[List[Tuple[Item, Sink]]]:
        group: List[Tuple[Item, Sink]] = []
        size = 0
        for read in reads:
            item = self._items[read.storage_index.fqn, read.storage_index.offset]
            sink = _bytes_sink(item, read, planner) or _tensor_sink(item, read, planner)
            size += sink.end - sink.begin
            group.append((item, sink))
            if size >= _GROUP_BYTES:
                yield group
                group, size = [], 0
        yield group

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


def _offset_of(item: Item) -> Optional[Tuple[int, ...]]:
    return None if item.pickled else torch.Size(item.offsets)


def _dtype_of(form: Form) -> Any:
    dtype = getattr(torch, form.dtype, None)
    if dtype is None:
        raise MilepostError(f"this PyTorch has no type {form.dtype}")
    return dtype


def _tensor_metadata(form: Form) -> Any:
    properties = dcp_metadata.TensorProperties(dtype=_dtype_of(form))
    return dcp_metadata.TensorStorageMetadata(properties, torch.Size(form.shape), [])


def _bytes_sink(item: Item, read: Any, planner: Any) -> Optional[Sink]:
    """None: it is a tensor."""
    if read.type != dcp_planner.LoadItemType.BYTE_IO:
        return None
    (size,) = item.form.shape
    came = bytearray(size)
    return Sink(
        0, size, memoryview(came), lambda: planner.load_bytes(read, io.BytesIO(bytes(came)))
    )


def _tensor_sink(item: Item, read: Any, planner: Any) -> Sink:
    target = planner.resolve_tensor(read).detach()
    shape, element, dtype = item.stored.shape, item.stored.element, _dtype_of(item.form)
    at, sizes = item.box(read.storage_offsets), tuple(read.lengths)
    span = span_of(shape, at, sizes)
    if span is not None and target.dtype == dtype and target.is_contiguous():
        begin, end = (edge * element for edge in span)
        memory = flat_bytes(target)
        return Sink(begin, end, memory, lambda: planner.commit_tensor(read, target))
    if span is None:  # whole rows, and of these the box
        row = element
        for size in shape[1:]:
            row *= size
        begin, end = at[0] * row, (at[0] + sizes[0]) * row
        came = torch.empty((sizes[0], *shape[1:]), dtype=dtype)
        inner = tuple(slice(first, first + size) for first, size in zip(at[1:], sizes[1:]))
        box = came[(slice(None),) + inner]
    else:
        begin, end = (edge * element for edge in span)
        came = box = torch.empty(sizes, dtype=dtype)

    def finish() -> None:
        target.copy_(box)
        planner.commit_tensor(read, target)

    return Sink(begin, end, flat_bytes(came), finish)
