"""What torch.distributed.checkpoint saves, as the checkpoint describes it. Needs no PyTorch.

Each rank writes a list of the items that it saves, as JSON. The lists of all ranks together are the
metadata of the checkpoint, so no rank needs to know all of it when it saves.
"""

import math
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from milepost._link import MilepostError
from milepost._tensors import PICKLE, Form

Path = Tuple[Union[str, int], ...]


def span_of(
    shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> Optional[Tuple[int, int]]:
    """Elements [begin, end) of a tensor, flat and row-major, that a box of it is.

    None: the box is no range of elements.
    """
    count = math.prod(sizes)
    if count == 0:
        return 0, 0
    partial = len(shape) - 1  # the innermost dimension of which it has a part
    while partial >= 0 and sizes[partial] == shape[partial]:
        partial -= 1
    if any(size != 1 for size in sizes[: max(partial, 0)]):
        return None
    begin = 0
    for size, offset in zip(shape, offsets):
        begin = begin * size + offset
    return begin, begin + count


@dataclass(frozen=True)
class Item:
    """What one rank saves: a box of a tensor, or an object that the planner has pickled."""

    fqn: str  # as DCP names it
    path: Optional[Path]  # where it is in the state; None: DCP's planner does not say
    form: Form  # of the whole tensor
    offsets: Tuple[int, ...]  # of the box
    sizes: Tuple[int, ...]
    cut: bool  # the box is a tensor of its own in the checkpoint

    @property
    def pickled(self) -> bool:
        return self.form.library == PICKLE

    @property
    def name(self) -> str:
        """Of the checkpoint's tensor that has it."""
        return f"{self.fqn}@{','.join(map(str, self.offsets))}" if self.cut else self.fqn

    @property
    def stored(self) -> Form:
        """Of the checkpoint's tensor that has it."""
        form = self.form
        return Form(form.library, form.dtype, self.sizes, form.element) if self.cut else form

    def box(self, offsets: Sequence[int]) -> Tuple[int, ...]:
        """Where in the checkpoint's tensor a place of this box is."""
        if self.cut:
            return tuple(offsets)
        return tuple(own + more for own, more in zip(self.offsets, offsets))

    def to_json(self) -> List[Any]:
        path = None if self.path is None else list(self.path)
        box = [list(self.offsets), list(self.sizes)]
        return [self.fqn, path, self.form.to_json(), *box, self.cut]

    @staticmethod
    def from_json(json: List[Any]) -> "Item":
        fqn, path, form, offsets, sizes, cut = json
        path = None if path is None else tuple(path)
        return Item(fqn, path, Form.from_json(form), tuple(offsets), tuple(sizes), cut)


def structure_of(items: Sequence[Item]) -> Any:
    """The description of the state that `items` are of, as _tree.flatten makes them.

    MilepostError: a tensor's parts are no ranges of its elements.
    """
    tree: Dict[Union[str, int], Any] = {}
    for item in items:
        if item.cut:
            raise MilepostError(
                f"{item.fqn!r} was saved in parts that are no ranges of its elements: load it "
                "through milepost.dcp.StorageReader"
            )
        path = item.path or (item.fqn,)
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = item
    return _described(tree)


def _described(node: Any) -> Any:
    if isinstance(node, Item):
        return {"tensor": node.name, "form": node.form.to_json()}
    # DCP makes texts of a dict's keys, so numbers are a list's.
    if node and all(isinstance(key, int) for key in node):
        return {"list": [_described(node[key]) for key in sorted(node)]}
    return {"dict": [[key, _described(value)] for key, value in node.items()]}
