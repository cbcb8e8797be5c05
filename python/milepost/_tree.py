"""A script's state as tensors and a description of the rest, and back.

A state is a dict, list or tuple of dicts, lists, tuples, tensors, numbers, texts, bytes and None.
Everything but tensors goes into the description, which is JSON. Nothing is pickled: reading a
checkpoint runs no code.
"""

import base64
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from milepost import _tensors
from milepost._link import MilepostError
from milepost._tensors import Form

_SCALARS = (bool, int, float, str)


class Leaf(NamedTuple):
    """A tensor of a state."""

    name: str  # the same on every rank
    value: Any
    form: Form


def flatten(state: Any, prefix: str = "") -> Tuple[Any, List[Leaf]]:
    """The description and the tensors of a state. `prefix` begins the tensors' names.

    TypeError names the place of what cannot be saved.
    """
    leaves: Dict[str, Leaf] = {}

    def name_of(path: Tuple[str, ...]) -> str:
        name = prefix + (".".join(path) or "state")
        while name in leaves:  # {"a.b": t} beside {"a": {"b": t}}
            name += "'"
        return name

    def visit(value: Any, path: Tuple[str, ...]) -> Any:
        form = _tensors.form_of(value)
        if form is not None:
            name = name_of(path)
            leaves[name] = Leaf(name, value, form)
            return {"tensor": name, "form": form.to_json()}
        if value is None or type(value) in _SCALARS:
            return {"value": value}
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode("ascii")}
        if isinstance(value, dict):
            for key in value:
                if type(key) not in (str, int):
                    raise TypeError(_place(path) + f"the key {key!r} is no text and no number")
            items = [[key, visit(item, (*path, str(key)))] for key, item in value.items()]
            return {"dict": items}
        if isinstance(value, (list, tuple)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [visit(item, (*path, str(i))) for i, item in enumerate(value)]}
        scalar = _tensors.scalar_of(value)
        if scalar is not None:
            return {"value": scalar}
        raise TypeError(
            _place(path) + f"a {type(value).__name__} cannot be saved: give a tensor, number, "
            "text, bytes, None, or a dict, list or tuple of these"
        )

    return visit(state, ()), list(leaves.values())


def _place(path: Tuple[str, ...]) -> str:
    return "state" + "".join(f"[{part!r}]" for part in path) + ": "


# From a tensor's name and form, what `into` has there (or None), and its place, to what stands for
# it.
Fetch = Callable[[str, Form, Any, str], Any]


def unflatten(description: Any, fetch: Fetch, into: Any = None, strict: bool = True) -> Any:
    """The state that `description` is of. `into`, a state like it, is not changed.

    MilepostError: `into` has what the checkpoint lacks, if `strict`.
    """

    def visit(node: Any, target: Any, path: Tuple[str, ...]) -> Any:
        kind, content = next(iter(node.items()))
        if kind == "tensor":
            return fetch(content, Form.from_json(node["form"]), target, _place(path))
        if kind == "value":
            return content
        if kind == "bytes":
            return base64.b64decode(content)
        if kind == "dict":
            return visit_dict(content, target, path)
        targets: List[Any] = list(target) if isinstance(target, (list, tuple)) else []
        if strict and (len(targets) > len(content) or isinstance(target, dict)):
            raise MilepostError(_place(path) + f"the checkpoint has a {kind} of {len(content)}")
        targets += [None] * (len(content) - len(targets))
        items = [visit(item, targets[i], (*path, str(i))) for i, item in enumerate(content)]
        return tuple(items) if kind == "tuple" else items

    def visit_dict(items: Any, target: Any, path: Tuple[str, ...]) -> Any:
        old: Dict[Any, Any] = target if isinstance(target, dict) else {}
        if strict and isinstance(target, (list, tuple)):
            raise MilepostError(_place(path) + "the checkpoint has a dict")
        missing = set(old) - {key for key, _ in items}
        if strict and missing:
            raise MilepostError(
                _place(path) + f"the checkpoint has no {sorted(map(str, missing))[0]!r}"
            )
        return {key: visit(item, old.get(key), (*path, str(key))) for key, item in items}

    return visit(description, into, ())
