"""Reads tensors of a checkpoint through memory that the rank's own process shares."""

import fcntl
import json
import mmap
import os
from typing import Any, Dict, List, Optional, Tuple

from milepost import _tree
from milepost._link import Link, MilepostError
from milepost._tensors import Form, Sink, sink_for

ALIGNMENT = 64  # of tensors in shared memory
TENSOR = "tensor"  # the kind of a state's tensors in a checkpoint
_READ_BYTES = 256 << 20  # at a time


class Memory:
    """Memory that the rank's own process reads and writes too."""

    def __init__(self, size: int) -> None:
        self.size = max(size, 1)
        self.fd = os.memfd_create("milepost", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, self.size)
        # So that the other side is safe to touch all of it.
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.buffer = mmap.mmap(self.fd, self.size)

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            os.close(self.fd)

    def to_json(self) -> Dict[str, int]:
        return {"pid": os.getpid(), "fd": self.fd, "bytes": self.size}


class Later:
    """Stands for a tensor until it has been read."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink


class Reader:
    """Reads tensors of a checkpoint, a bounded number of bytes at a time."""

    def __init__(self, link: Link, tensors: List[Any]) -> None:
        self._link = link
        self._numbers = {(name, kind): i for i, (name, kind, _, _) in enumerate(tensors)}
        self._sizes = [shape for _, _, _, shape in tensors]
        self._memory: Optional[Memory] = None

    def text(self, name: str, kind: str) -> Any:
        if (name, kind) not in self._numbers:
            return None
        return self.texts([(name, kind)])[0]

    def texts(self, names: List[Tuple[str, str]]) -> List[Any]:
        wanted, came = [], []
        for name in names:
            number = self._numbers[name]
            (size,) = self._sizes[number]
            came.append(bytearray(size))
            wanted.append((number, 1, Sink(0, size, memoryview(came[-1]), None)))
        self._read(wanted)
        return [json.loads(text) for text in came]

    def read_all(self, wanted: List[Tuple[str, Form, Sink]]) -> None:
        self._read([(self._number(name), form.stored_element, sink) for name, form, sink in wanted])

    def _number(self, name: str) -> int:
        number = self._numbers.get((name, TENSOR))
        if number is None:
            raise MilepostError(f"the checkpoint lacks its tensor {name!r}")
        return number

    def state(self, structure: Any, kind: str, into: Any, strict: bool) -> Any:
        wanted: List[Tuple[int, int, Sink]] = []

        def fetch(name: str, form: Form, target: Any, place: str) -> Any:
            number = self._numbers.get((name, kind))
            if number is None:
                raise MilepostError(f"{place}the checkpoint lacks its tensor {name!r}")
            sink = sink_for(form, target, place)
            wanted.append((number, form.stored_element, sink))
            return Later(sink)

        # What does not fit is found before anything is read or changed.
        tree = _tree.unflatten(structure, fetch, into, strict)
        self._read(wanted)
        return finish(tree, into)

    def _read(self, wanted: List[Tuple[int, int, Sink]]) -> None:
        batch: List[Tuple[int, int, int, int, Sink]] = []  # tensor, element, begin, end
        size = 0
        for number, element, sink in wanted:
            at = sink.begin
            while at < sink.end:
                end = min(sink.end, at + (_READ_BYTES - size) // element * element)
                batch.append((number, element, at, end, sink))
                size += -(-(end - at) // ALIGNMENT) * ALIGNMENT
                at = end
                if size > _READ_BYTES - ALIGNMENT:
                    self._read_batch(batch)
                    batch, size = [], 0
        if batch:
            self._read_batch(batch)

    def _read_batch(self, batch: List[Tuple[int, int, int, int, Sink]]) -> None:
        pieces, places, size = [], [], 0
        for number, element, begin, end, sink in batch:
            pieces.append([number, begin // element, end // element, size])
            places.append((sink, begin, size, end - begin))
            size += -(-(end - begin) // ALIGNMENT) * ALIGNMENT
        if self._memory is None or self._memory.size < size:
            self._memory = Memory(size)
        request = {"memory": self._memory.to_json(), "pieces": pieces}
        self._link.ask("/checkpoint/read", request)
        for sink, begin, offset, count in places:
            sink.take(begin, self._memory.buffer, offset, count)


def finish(tree: Any, into: Any) -> Any:
    """The tree with its tensors in place of what stood for them. Fills the dicts of `into`."""
    if isinstance(tree, Later):
        return tree.sink.finish()
    if isinstance(tree, dict):
        filled = into if isinstance(into, dict) else {}
        for key, value in tree.items():
            filled[key] = finish(value, filled.get(key))
        return filled
    if isinstance(tree, (list, tuple)):
        olds = list(into) if isinstance(into, (list, tuple)) else []
        olds += [None] * (len(tree) - len(olds))
        return type(tree)(finish(value, old) for value, old in zip(tree, olds))
    return tree
