"""Checkpoints of a script, kept by Milepost as those of its own models.

They are committed as a whole, verified, kept by the rules of the job's spec
(`checkpoint.keep_last`, `keep_every`), and what the next attempt begins with. `milepost checkpoint`
lists, verifies, pins and deletes them. A fork (`checkpoint.resume_from`) begins with another job's.
"""

import json
import mmap
import operator
import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

from milepost import _dcp_items, _tree
from milepost._job import Job, job
from milepost._link import Link, MilepostError, open_link
from milepost._reader import ALIGNMENT, TENSOR, Memory, Reader
from milepost._tensors import Form, Part, Sink, bytes_at, copy_bytes, part_to_save

__all__ = ["Checkpoint", "load", "save", "wait"]

_STRUCTURE, _RANK, _RANK_STRUCTURE = "structure", "rank", "rank_structure"
_STRUCTURE_NAME = "milepost.structure"
_TEXT_BYTES = 4096

_lock = threading.Lock()
_link: Optional[Link] = None


@dataclass
class Checkpoint:
    """A checkpoint that was read."""

    name: str  # "checkpoints/12"
    step: int
    state: Any
    per_rank: Any  # what this rank gave; None: nothing, or there were other numbers of ranks


_copy: Optional[Memory] = None  # of the save that may still be on its way


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


def save(
    state: Any, step: int, *, per_rank: Any = None, alone: bool = False, durable: bool = True
) -> None:
    """Saves `state` as the checkpoint of `step`.

    `state` is a dict, list or tuple of dicts, lists, tuples, tensors, numbers, texts, bytes and
    None; state dicts of models and optimizers are. Every rank calls it, at the same step. Of a
    distributed tensor (FSDP2, tensor parallelism) each rank saves what it holds. All else is rank
    0's. What differs by rank, such as states of random numbers, goes into `per_rank`. With `alone`
    this rank's state is the whole checkpoint, and no other rank calls it.

    With `checkpoint.redundancy: 1` in the job's spec every save but one of a rank alone is also
    copied to the memory of the rank's host and of another rank's host. If a rank or a host is lost,
    the next attempt begins with the newest save that the hosts still have. `durable=False` makes
    these copies and nothing else. It costs the coordinator and its disk nothing, so it can be done
    often; but what is saved so is lost when the job ends, or with both hosts.

    It returns as soon as the state is copied, once to host memory. The copy is uploaded in the
    background, and the rank ends only when that is done. If the save before is still being
    uploaded, it waits for that. If the coordinator is away, a newer save replaces one that waits.

    A step that was saved already is passed over. TypeError: the state holds what cannot be saved.
    MilepostError: the step comes after a later one; or the ranks are at different steps, give
    different `durable`, have different forms of a tensor, or only some have one; or
    `durable=False` was given with `alone`,
    or in a job whose spec has no `checkpoint.redundancy: 1`. Nothing happens outside a job.
    """
    here = job()
    if here is None:
        return
    structure, leaves = _tree.flatten(state)
    ranks_structure, ranks_leaves = _tree.flatten(per_rank, f"rank{here.rank}.")
    whole = alone or here.rank == 0

    def describe(parts: Parts, here: Job) -> None:
        for leaf in leaves:
            part = part_to_save(leaf.value, whole, alone)
            parts.add(leaf.form, leaf.name, TENSOR, part)
        if whole:  # all ranks describe the same state: rank 0's description counts
            said = {"structure": structure, "world_size": here.world_size}
            parts.add_json(_STRUCTURE_NAME, _STRUCTURE, said)
        if per_rank is not None:
            for leaf in ranks_leaves:
                part = part_to_save(leaf.value, True, True)
                parts.add(leaf.form, leaf.name, _RANK, part)
            said = {"structure": ranks_structure, "world_size": here.world_size}
            parts.add_json(*rank_structure(here.rank), said)

    commit(step, describe, alone=alone, durable=durable)


def rank_structure(rank: int) -> Tuple[str, str]:
    """Name and kind of the text that a rank says for itself alone."""
    return f"rank{rank}.structure", _RANK_STRUCTURE


def commit(
    step: int,
    describe: Callable[["Parts", Job], None],
    *,
    alone: bool,
    durable: bool = True,
    tell: bool = False,
) -> None:
    """Saves what `describe` adds, as save() says; it is not called where nothing is to be saved.

    `tell`: if it raises, the others' save fails too, at once. That waits for them.
    """
    global _copy
    with _lock:
        link, here = _connect(), job()
        if link is None or here is None:
            return
        step = operator.index(step)
        if link.ask("/checkpoint/claim", {"step": step, "durable": durable}).get("saved"):
            return
        try:
            parts = Parts()
            describe(parts, here)
            if _copy is None or _copy.size < parts.size:
                _copy = None  # before the new one is made
                _copy = Memory(parts.size)
            parts.copy(_copy.buffer)
            memory = _copy.to_json()
            request = {"step": step, "alone": alone, "durable": durable, "memory": memory}
        except BaseException:
            _withdraw(link, tell and not alone)
            raise
        link.ask("/checkpoint/save", {**request, **parts.to_json()})


def _withdraw(link: Link, tell: bool) -> None:
    if not tell:
        link.ask("/checkpoint/release", {})
        return
    try:
        link.ask("/checkpoint/save", {})  # no save: the rank tells the others, who then do not wait
    except MilepostError:
        pass


class Parts:
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
        self.size += -(-(part.end - part.begin) // ALIGNMENT) * ALIGNMENT

    def add_json(self, name: str, kind: str, value: Any) -> None:
        text = json.dumps(value).encode()
        # So that the list of tensors is mostly the same from save to save.
        text += b" " * (-len(text) % _TEXT_BYTES)
        form = Form("array", "uint8", (len(text),), 1)
        self.add(form, name, kind, Part(0, len(text), memoryview(text)))

    def copy(self, buffer: mmap.mmap) -> None:
        for offset, memory in self._copies:
            if isinstance(memory, memoryview):
                memoryview(buffer)[offset : offset + len(memory)] = memory
            else:
                copy_bytes(memory, bytes_at(buffer, offset, memory.numel()))

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
    here, opened = job(), open_checkpoint()
    if here is None or opened is None:
        return None
    with _lock:
        return opened.load(here, into, strict)


def open_checkpoint() -> Optional["Opened"]:
    """The checkpoint that this attempt begins with. None: it begins anew, or this is no job."""
    with _lock:
        link = _connect()
        if link is None or job() is None:
            return None
        manifest = link.ask("/checkpoint/manifest", {})
        return None if manifest is None else Opened(link, manifest)


class Opened:
    """A checkpoint that can be read. Not thread-safe, but for what milepost.dcp calls."""

    def __init__(self, link: Link, manifest: Dict[str, Any]) -> None:
        self.name: str = manifest["checkpoint"]
        self.step: int = manifest["step"]
        self._tensors = manifest["tensors"]
        self._reader = Reader(link, self._tensors)

    def load(self, here: Job, into: Any, strict: bool) -> Checkpoint:
        """See load()."""
        text = self._reader.text(_STRUCTURE_NAME, _STRUCTURE)
        if text is None:
            items = self._dcp_items()
            if items is None:
                raise MilepostError(f"{self.name} was not saved by milepost.checkpoint.save()")
            text = {"structure": _dcp_items.structure_of(items)}
        state = self._reader.state(text["structure"], TENSOR, into, strict)
        own = self._reader.text(*rank_structure(here.rank)) or {}
        per_rank = None
        if "structure" in own and own["world_size"] == here.world_size:
            per_rank = self._reader.state(own["structure"], _RANK, None, strict)
        return Checkpoint(self.name, self.step, state, per_rank)

    def dcp_items(self) -> Optional[List[_dcp_items.Item]]:
        """What all ranks have saved. None: it was not saved through milepost.dcp."""
        with _lock:
            return self._dcp_items()

    def _dcp_items(self) -> Optional[List[_dcp_items.Item]]:
        names = [(name, kind) for name, kind, _, _ in self._tensors if kind == _RANK_STRUCTURE]
        texts = self._reader.texts(names)
        if not texts or not all("dcp" in text for text in texts):
            return None
        return [_dcp_items.Item.from_json(item) for text in texts for item in text["dcp"]]

    def read(self, wanted: List[Tuple[str, Form, Sink]]) -> None:
        """Fills the sinks with bytes of the tensors of these names and forms."""
        with _lock:
            self._reader.read_all(wanted)


def wait(timeout: Optional[float] = None) -> Optional[int]:
    """Blocks until the newest save is done, at most `timeout` seconds.

    Returns the step that was committed last: that of the newest save, if it was durable. None: it
    is still on its way, or nothing is committed. MilepostError: it was given up, and why. It is
    not needed before a script ends: the rank waits by itself.
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
