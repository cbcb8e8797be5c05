"""Tensors of PyTorch, NumPy and Python's array module, as bytes and back.

A distributed tensor (DTensor) has the part of its elements that lies on this rank.
"""

import io
import math
import sys
from array import array
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from milepost._link import MilepostError

# What checkpoints know by these names. Other types are kept as their bytes.
_DTYPES = {
    "float64": ("F64", 8),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int64": ("I64", 8),
    "int32": ("I32", 4),
    "uint8": ("U8", 1),
}
PICKLE = "pickle"  # a Form's library: bytes that torch.save made of an object
_ARRAY_TYPES = {"d": "float64", "f": "float32", "q": "int64", "i": "int32", "B": "uint8"}


@dataclass(frozen=True)
class Form:
    """What a tensor is, without its elements."""

    library: str  # "torch", "numpy", "array" or PICKLE
    dtype: str  # "float32"
    shape: Tuple[int, ...]
    element: int  # bytes

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def stored(self, name: str, kind: str) -> List[Any]:
        """As the checkpoint has it: name, kind, dtype, shape."""
        if self.dtype in _DTYPES:
            return [name, kind, _DTYPES[self.dtype][0], list(self.shape)]
        return [name, kind, "U8", [*self.shape, self.element]]

    @property
    def stored_element(self) -> int:
        return self.element if self.dtype in _DTYPES else 1

    def to_json(self) -> List[Any]:
        return [self.library, self.dtype, list(self.shape), self.element]

    @staticmethod
    def from_json(json: List[Any]) -> "Form":
        return Form(json[0], json[1], tuple(json[2]), json[3])


@dataclass(frozen=True)
class Part:
    """Bytes [begin, end) of a tensor, flat and row-major, and where they lie on this rank."""

    begin: int
    end: int
    memory: Any  # a flat torch tensor of bytes, or a memoryview


def _torch() -> Any:
    return sys.modules.get("torch")


def _numpy() -> Any:
    return sys.modules.get("numpy")


def _is_distributed(value: Any) -> bool:
    return hasattr(value, "placements") and hasattr(value, "to_local")


def form_of(value: Any) -> Optional[Form]:
    """None: it is no tensor."""
    torch, numpy = _torch(), _numpy()
    if torch is not None and isinstance(value, torch.Tensor):
        dtype = str(value.dtype).replace("torch.", "")
        return Form("torch", dtype, tuple(value.shape), value.element_size())
    if numpy is not None and isinstance(value, numpy.ndarray):
        plain = value.dtype.kind in "biufc" and value.dtype.isnative
        if not plain or isinstance(value, numpy.ma.MaskedArray):
            return None
        return Form("numpy", value.dtype.name, value.shape, value.itemsize)
    if isinstance(value, array) and value.typecode in _ARRAY_TYPES:
        return Form("array", _ARRAY_TYPES[value.typecode], (len(value),), value.itemsize)
    return None


def scalar_of(value: Any) -> Any:
    """A NumPy scalar as a number. None: it is none."""
    numpy = _numpy()
    if numpy is None or not isinstance(value, (numpy.bool_, numpy.number)):
        return None
    item = value.item()
    return item if isinstance(item, (bool, int, float)) else None


def flat_bytes(tensor: Any) -> Any:
    """The elements of a PyTorch tensor: its own memory if it is contiguous, else a copy's."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.cpu().contiguous()  # no second one in the device's memory
    return tensor.reshape(-1).view(_torch().uint8)


def bytes_at(buffer: Any, offset: int, size: int) -> Any:
    """Bytes of shared memory as a PyTorch tensor."""
    torch = _torch()
    return torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=offset)


def copy_bytes(source: Any, to: Any) -> None:
    """Copies between flat tensors of bytes: by words if it can, in 0.85 of the time."""
    word, places = 4, [source.numel()]
    for tensor in (source, to):
        places += [tensor.data_ptr(), tensor.storage_offset()]
    if all(place % word == 0 for place in places):
        source, to = (tensor.view(_torch().int32) for tensor in (source, to))
    to.copy_(source)


def part_to_save(value: Any, writes_whole: bool, alone: bool) -> Optional[Part]:
    """What this rank saves of a tensor: its part of a distributed one, else all or nothing.

    None: nothing. Collective for a distributed tensor whose parts are no ranges of its elements.
    MilepostError: `alone`, and other ranks have parts of it.
    """
    if _is_distributed(value):
        if alone and not all(placement.is_replicate() for placement in value.placements):
            raise MilepostError("a rank alone cannot save a tensor of which others have parts")
        if alone:
            value = value.to_local()
    if _is_distributed(value):
        span = _own_range(value)
        if span is None:
            value = value.full_tensor()  # every rank takes part
            if writes_whole:
                value = value.cpu()  # not all of them at a time in the device's memory
        else:
            begin, end, first = span
            if not first or begin == end:
                return None
            return Part(begin, end, flat_bytes(value.to_local()))
    form = form_of(value)
    assert form is not None
    size = form.elements * form.element
    if not writes_whole or size == 0:
        return None
    if form.library == "torch":
        return Part(0, size, flat_bytes(value))
    if form.library == "numpy":
        numpy = _numpy()
        value = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    return Part(0, size, memoryview(value).cast("B"))


def _local_box(value: Any) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """Shape and offset of a distributed tensor's local part."""
    from torch.distributed.tensor import _utils

    shape, offset = _utils.compute_local_shape_and_global_offset(
        value.shape, value.device_mesh, value.placements
    )
    return tuple(shape), tuple(offset)


def _is_ranges(value: Any) -> bool:
    """Whether each rank's part is a range of the elements. The same on every rank."""
    sharded = 1
    for i, placement in enumerate(value.placements):
        if placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if placement.is_partial() or dim is None or not value.shape or dim % len(value.shape) != 0:
            return False
        sharded *= value.device_mesh.size(i)
    # Where several shardings of rows nest, parts of different sizes are not where they seem.
    nested = sum(not placement.is_replicate() for placement in value.placements) > 1
    return not nested or value.shape[0] % sharded == 0


def _own_range(value: Any) -> Optional[Tuple[int, int, bool]]:
    """The bytes of a distributed tensor that lie here, and whether this is the rank to save them.

    None, on every rank: the ranks' parts are no ranges of its elements, or not yet summed.
    """
    if not _is_ranges(value):
        return None
    shape, offset = _local_box(value)
    coordinate = value.device_mesh.get_coordinate()
    first = coordinate is not None and all(
        coordinate[i] == 0 or not placement.is_replicate()
        for i, placement in enumerate(value.placements)
    )
    row = math.prod(value.shape[1:]) * value.element_size()
    if not shape:  # of no dimension
        return 0, row, first
    return offset[0] * row, (offset[0] + shape[0]) * row, first


class Sink:
    """Where a tensor's bytes go that are read from a checkpoint."""

    def __init__(self, begin: int, end: int, memory: Any, finish: Any) -> None:
        self.begin, self.end = begin, end  # the bytes of the tensor that are wanted
        self._memory = memory
        self.finish = finish  # called once all have come; gives the tensor

    def take(self, at: int, buffer: Any, offset: int, size: int) -> None:
        """`size` bytes of `buffer` from `offset` on are those of the tensor from `at` on."""
        begin = at - self.begin
        if isinstance(self._memory, memoryview):
            self._memory[begin : begin + size] = memoryview(buffer)[offset : offset + size]
            return
        copy_bytes(bytes_at(buffer, offset, size), self._memory[begin : begin + size])


def sink_for(form: Form, target: Any, place: str) -> Sink:
    """`target`: a tensor to fill, or None for a new one in host memory. `place` is for errors."""
    if form.library == PICKLE:
        return _pickle_sink(form, place)
    have = form_of(target)
    if target is not None and have is None:
        raise MilepostError(f"{place}is a tensor in the checkpoint, not a {type(target).__name__}")
    if have is not None and have.shape != form.shape:
        raise MilepostError(
            f"{place}the checkpoint has the shape {list(form.shape)}, not {list(have.shape)}"
        )
    if have is not None and have.library != form.library:
        raise MilepostError(f"{place}the checkpoint has it of {form.library}, not {have.library}")
    size = form.elements * form.element
    if form.library == "torch":
        return _torch_sink(form, target, size, place)
    if form.library == "numpy":
        return _numpy_sink(form, target, size, place)
    code = next(code for code, dtype in _ARRAY_TYPES.items() if dtype == form.dtype)
    if isinstance(target, array) and target.typecode == code:
        return Sink(0, size, memoryview(target).cast("B"), lambda: target)
    made = array(code, bytes(size))
    return Sink(0, size, memoryview(made).cast("B"), lambda: made)


def _pickle_sink(form: Form, place: str) -> Sink:
    """Of numbers, texts, tensors and containers alone: what PyTorch reads without running code."""
    came = bytearray(form.elements)

    def finish() -> Any:
        try:
            import torch

            return torch.load(io.BytesIO(bytes(came)), weights_only=True)
        except Exception as error:
            raise MilepostError(f"{place}cannot be read: {error}") from error

    return Sink(0, len(came), memoryview(came), finish)


def _numpy_sink(form: Form, target: Any, size: int, place: str) -> Sink:
    try:
        import numpy
    except ImportError as error:
        raise MilepostError(f"{place}is a NumPy array, and there is no NumPy here") from error
    made = numpy.empty(form.shape, dtype=form.dtype)
    flat: Any = made.reshape(-1).view(numpy.uint8) if size else bytearray()
    memory = memoryview(flat)

    def finish() -> Any:
        if not isinstance(target, numpy.ndarray):
            return made
        target[...] = made
        return target

    return Sink(0, size, memory, finish)


def _torch_sink(form: Form, target: Any, size: int, place: str) -> Sink:
    try:
        import torch
    except ImportError as error:
        raise MilepostError(f"{place}is a PyTorch tensor, and there is no PyTorch here") from error
    dtype = getattr(torch, form.dtype, None)
    if dtype is None:
        raise MilepostError(f"{place}this PyTorch has no type {form.dtype}")
    if target is not None:
        stored = target.to_local() if _is_distributed(target) else target
        strides = zip(stored.shape, stored.stride())
        if stored.is_meta or any(size > 1 and stride == 0 for size, stride in strides):
            raise MilepostError(f"{place}the tensor to fill has no memory for each element")
    if target is not None and _is_distributed(target):
        return _distributed_sink(form, dtype, target)
    if target is not None and target.dtype == dtype and target.is_contiguous():
        return Sink(0, size, flat_bytes(target), lambda: target)
    made = torch.empty(form.shape, dtype=dtype)

    def finish() -> Any:
        if target is None:
            return made
        target.detach().copy_(made)
        return target

    return Sink(0, size, flat_bytes(made), finish)


def _distributed_sink(form: Form, dtype: Any, target: Any) -> Sink:
    """Of what lies on this rank alone."""
    import torch

    local = target.to_local()
    span = _own_range(target)
    element = form.element
    if span is not None:
        begin, end = (edge // target.element_size() * element for edge in span[:2])
        made = torch.empty(local.shape, dtype=dtype)

        def finish() -> Any:
            local.detach().copy_(made)
            return target

        return Sink(begin, end, flat_bytes(made), finish)
    shape, offset = _local_box(target)
    whole = torch.empty(form.shape, dtype=dtype)

    def finish_box() -> Any:
        box = tuple(slice(at, at + size) for at, size in zip(offset, shape))
        local.detach().copy_(whole[box])
        return target

    return Sink(0, form.elements * element, flat_bytes(whole), finish_box)
