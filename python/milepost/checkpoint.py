"""Checkpoints of a script, kept by Milepost as those of its own models.

They are committed as a whole, verified, kept by the rules of the job's spec
(`checkpoint.keep_last`, `keep_every`), and what the next attempt begins with. `milepost checkpoint`
lists, verifies, pins and deletes them. A fork (`checkpoint.resume_from`) begins with another job's.
"""

import fcntl
import json
import mmap
import operator
import os
import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from milepost import _tree
from milepost._job import job
from milepost._link import Link, MilepostError, open_link
from milepost._tensors import Form, Part, Sink, part_to_save, sink_for

__all__ = ["Checkpoint", "load", "save", "wait"]

_TENSOR, _STRUCTURE, _RANK, _RANK_STRUCTURE = "tensor", "structure", "rank", "rank_structure"
_STRUCTURE_NAME = "milepost.structure"
_ALIGNMENT = 64
_READ_BYTES = 256 << 20  # at a time

_lock = threading.Lock()
_link: Optional[Link] = None


@dataclass
class Checkpoint:
    """A checkpoint that was read."""

    name: str  # "checkpoints/12"
    step: int
    state: Any
    per_rank: Any  # what this rank gave; None: nothing, or there were other numbers of ranks


class _Memory:
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


_copy: Optional[_Memory] = None  # of the save that may still be on its way


def _forget() -> None:
    """In a process that was forked: what its parent has is the parent's."""
    global _link, _copy, _lock
    _link, _copy, _lock = None, None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _connect() -> Optional[Link]:
    global _link
    if _link is None:
        _link = open_link()
    return _link


def save(state: Any, step: int, *, per_rank: Any = None, alone: bool = False) -> None:
    """Saves `state` as the checkpoint of `step`.

    `state` is a dict, list or tuple of dicts, lists, tuples, tensors, numbers, texts, bytes and
    None; state dicts of models and optimizers are. Every rank calls it, at the same step. Of a
    distributed tensor (FSDP2, tensor parallelism) each rank saves what it holds. All else is rank
    0's. What differs by rank, such as states of random numbers, goes into `per_rank`. With `alone`
    this rank's state is the whole checkpoint, and no other rank calls it.

    It returns as soon as the state is copied, once to host memory. The copy is uploaded in the
    background, and the rank ends only when that is done. If the save before is still being
    uploaded, it waits for that. If the coordinator is away, a newer save replaces one that waits.

    A step that was saved already is passed over. TypeError: the state holds what cannot be saved.
    MilepostError: the step comes after a later one; or the ranks are at different steps, have
    different forms of a tensor, or only some have one. Nothing happens outside a job.
    """
    global _copy
    with _lock:
        link, here = _connect(), job()
        if link is None or here is None:
            return
        step = operator.index(step)
        structure, leaves = _tree.flatten(state)
        ranks_structure, ranks_leaves = _tree.flatten(per_rank, f"rank{here.rank}.")
        if link.ask("/checkpoint/claim", {"step": step}).get("saved"):
            return
        try:
            whole = alone or here.rank == 0
            parts = _Parts()
            for leaf in leaves:
                part = part_to_save(leaf.value, whole, alone)
                parts.add(leaf.form, leaf.name, _TENSOR, part)
            # All ranks describe the same state: rank 0's description counts.
            parts.add_text(_STRUCTURE_NAME, _STRUCTURE, structure, here.world_size, whole)
            if per_rank is not None:
                for leaf in ranks_leaves:
                    part = part_to_save(leaf.value, True, True)
                    parts.add(leaf.form, leaf.name, _RANK, part)
                name = f"rank{here.rank}.structure"
                parts.add_text(name, _RANK_STRUCTURE, ranks_structure, here.world_size, True)
            if _copy is None or _copy.size < parts.size:
                _copy = None  # before the new one is made
                _copy = _Memory(parts.size)
            parts.copy(_copy.buffer)
            request = {"step": step, "alone": alone, "memory": _copy.to_json()}
        except BaseException:
            link.ask("/checkpoint/release", {})
            raise
        link.ask("/checkpoint/save", {**request, **parts.to_json()})


class _Parts:
    """What a rank saves: its list of tensors, and the bytes of those that it writes."""

    def __init__(self) -> None:
        self.size = 0
        self._tensors: List[Any] = []
        self._pieces: List[Any] = []
        self._copies: List[Tuple[int, Any]] = []

    def add(self, form: Form, name: str, kind: str, part: Any) -> None:
        self._tensors.append(form.stored(name, kind))
        if part is None:
            return
        element = form.stored_element
        index = len(self._tensors) - 1
        self._pieces.append([index, part.begin // element, part.end // element, self.size])
        self._copies.append((self.size, part.memory))
        self.size += -(-(part.end - part.begin) // _ALIGNMENT) * _ALIGNMENT

    def add_text(self, name: str, kind: str, structure: Any, world: int, writes: bool) -> None:
        if not writes:
            return
        text = json.dumps({"structure": structure, "world_size": world}).encode()
        form = Form("array", "uint8", (len(text),), 1)
        self.add(form, name, kind, Part(0, len(text), memoryview(text)))

    def copy(self, buffer: mmap.mmap) -> None:
        for offset, memory in self._copies:
            if isinstance(memory, memoryview):
                memoryview(buffer)[offset : offset + len(memory)] = memory
            else:
                import torch

                to = torch.frombuffer(
                    buffer, dtype=torch.uint8, count=memory.numel(), offset=offset
                )
                to.copy_(memory)

    def to_json(self) -> Dict[str, Any]:
        return {"tensors": self._tensors, "pieces": self._pieces}


def load(into: Any = None, *, strict: bool = True) -> Optional[Checkpoint]:
    """The checkpoint that this attempt begins with. None: it begins anew, or this is no job.

    That is the job's newest one, or the one that `checkpoint.resume_from` names. With `into`, a
    state like the one that was saved, its dicts and tensors are filled in place: of a distributed
    tensor each rank reads what it holds, at whatever number of ranks. Otherwise tensors are made in
    host memory. `strict`: `into` may have no key that the checkpoint lacks.

    Blocks while it is read; every byte is verified. MilepostError: it is damaged, was not saved by
    save(), or does not fit `into`.
    """
    with _lock:
        link, here = _connect(), job()
        if link is None or here is None:
            return None
        manifest = link.ask("/checkpoint/manifest", {})
        if manifest is None:
            return None
        reader = _Reader(link, manifest["tensors"])
        text = reader.text(_STRUCTURE_NAME, _STRUCTURE)
        if text is None:
            raise MilepostError(
                f"{manifest['checkpoint']} was not saved by milepost.checkpoint.save()"
            )
        state = reader.state(text["structure"], _TENSOR, into, strict)
        per_rank = None
        own = reader.text(f"rank{here.rank}.structure", _RANK_STRUCTURE)
        if own is not None and own["world_size"] == here.world_size:
            per_rank = reader.state(own["structure"], _RANK, None, strict)
        return Checkpoint(manifest["checkpoint"], manifest["step"], state, per_rank)


class _Later:
    """Stands for a tensor until it has been read."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink


class _Reader:
    """Reads tensors of a checkpoint, a bounded number of bytes at a time."""

    def __init__(self, link: Link, tensors: List[Any]) -> None:
        self._link = link
        self._numbers = {(name, kind): i for i, (name, kind, _, _) in enumerate(tensors)}
        self._sizes = [shape for _, _, _, shape in tensors]
        self._memory: Optional[_Memory] = None

    def text(self, name: str, kind: str) -> Any:
        number = self._numbers.get((name, kind))
        if number is None:
            return None
        (size,) = self._sizes[number]
        came = bytearray(size)
        self._read([(number, 1, Sink(0, size, memoryview(came), None))])
        return json.loads(came)

    def state(self, structure: Any, kind: str, into: Any, strict: bool) -> Any:
        wanted: List[Tuple[int, int, Sink]] = []

        def fetch(name: str, form: Form, target: Any, place: str) -> Any:
            number = self._numbers.get((name, kind))
            if number is None:
                raise MilepostError(f"{place}the checkpoint lacks its tensor {name!r}")
            sink = sink_for(form, target, place)
            wanted.append((number, form.stored_element, sink))
            return _Later(sink)

        # What does not fit is found before anything is read or changed.
        tree = _tree.unflatten(structure, fetch, into, strict)
        self._read(wanted)
        return _finish(tree, into)

    def _read(self, wanted: List[Tuple[int, int, Sink]]) -> None:
        batch: List[Tuple[int, int, int, int, Sink]] = []  # tensor, element, begin, end
        size = 0
        for number, element, sink in wanted:
            at = sink.begin
            while at < sink.end:
                end = min(sink.end, at + (_READ_BYTES - size) // element * element)
                batch.append((number, element, at, end, sink))
                size += -(-(end - at) // _ALIGNMENT) * _ALIGNMENT
                at = end
                if size > _READ_BYTES - _ALIGNMENT:
                    self._read_batch(batch)
                    batch, size = [], 0
        if batch:
            self._read_batch(batch)

    def _read_batch(self, batch: List[Tuple[int, int, int, int, Sink]]) -> None:
        pieces, places, size = [], [], 0
        for number, element, begin, end, sink in batch:
            pieces.append([number, begin // element, end // element, size])
            places.append((sink, begin, size, end - begin))
            size += -(-(end - begin) // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None or self._memory.size < size:
            self._memory = _Memory(size)
        request = {"memory": self._memory.to_json(), "pieces": pieces}
        self._link.ask("/checkpoint/read", request)
        for sink, begin, offset, count in places:
            sink.take(begin, self._memory.buffer, offset, count)


def _finish(tree: Any, into: Any) -> Any:
    """The tree with its tensors in place of what stood for them. Fills the dicts of `into`."""
    if isinstance(tree, _Later):
        return tree.sink.finish()
    if isinstance(tree, dict):
        filled = into if isinstance(into, dict) else {}
        for key, value in tree.items():
            filled[key] = _finish(value, filled.get(key))
        return filled
    if isinstance(tree, (list, tuple)):
        olds = list(into) if isinstance(into, (list, tuple)) else []
        olds += [None] * (len(tree) - len(olds))
        return type(tree)(_finish(value, old) for value, old in zip(tree, olds))
    return tree


def wait(timeout: Optional[float] = None) -> Optional[int]:
    """Blocks until the newest save is committed, at most `timeout` seconds. Returns its step.

    None: it is still on its way, or nothing was saved. MilepostError: it was given up, and why. It
    is not needed before a script ends: the rank waits by itself.
    """
    with _lock:
        link = _connect()
        if link is None:
            return None
        left = timeout
        while True:
            part = 5.0 if left is None else min(5.0, left)
            answer = link.ask("/checkpoint/wait", {"seconds": part})
            if not answer["active"]:
                break
            if left is not None:
                left -= part
                if left <= 0:
                    return None
        if answer["problem"]:
            raise MilepostError(answer["problem"])
        step: int = answer["committed_step"]
        return None if step < 0 else step
