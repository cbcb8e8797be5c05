"""Job specs as trees: of YAML text as common/spec/yaml_tree.cc reads it, or of Python values."""

import numbers
from dataclasses import dataclass, field
from typing import Any, Iterable, List, Mapping, Tuple

from milepost.errors import InvalidSpec

MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_NODES = 10_000
_NULLS = ("", "~", "null", "Null", "NULL")
_MAX_SHOWN = 40


@dataclass
class Node:
    """A value, a list or a mapping, with the line that it is from (0: from no text)."""

    kind: str  # "null", "scalar", "sequence" or "mapping"
    line: int = 0
    scalar: str = ""
    quoted: bool = False  # text, never a number
    inexact: bool = False  # of a Python value whose text nobody wrote
    items: List["Node"] = field(default_factory=list)
    fields: List[Tuple["Node", "Node"]] = field(default_factory=list)  # duplicates too

    def shown(self) -> str:
        """As messages show it: one short printable line."""
        if self.kind != "scalar":
            return {"null": "nothing", "sequence": "a list", "mapping": "a mapping"}[self.kind]
        text = "".join(c if c.isprintable() else "?" for c in self.scalar[:_MAX_SHOWN])
        text += "..." if len(self.scalar) > _MAX_SHOWN else ""
        return f'the text "{text}"' if self.quoted else f"'{text}'"


class _Counter:
    """Bounds what a tree may hold."""

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._nodes = 0

    def fail(self, line: int, problem: str) -> InvalidSpec:
        place = f"{self._filename}:{line}: " if line > 0 else f"{self._filename}: "
        return InvalidSpec(place + problem)

    def add(self, depth: int, line: int) -> None:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise self.fail(line, f"more than {_MAX_NODES} values")
        if depth >= _MAX_DEPTH:
            raise self.fail(line, f"nested deeper than {_MAX_DEPTH} levels")


def yaml_module() -> Any:
    """PyYAML. ImportError, with the remedy: it is not there."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError(
            "reading YAML needs PyYAML: pip install 'milepost[client]', or give the spec as a dict"
        ) from error
    return yaml


def _check_event(yaml: Any, event: Any, counter: _Counter) -> None:
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):
        raise counter.fail(line, "aliases (*name) are not supported: write the value out")
    if getattr(event, "anchor", None) is not None:
        raise counter.fail(line, "anchors (&name) are not supported: write the value out")
    tag = getattr(event, "tag", None)
    if tag not in (None, "!"):
        raise counter.fail(line, f"the tag {tag} is not supported: remove it")


def _scalar(event: Any) -> Node:
    quoted = event.style is not None or event.tag == "!"
    plain_null = not quoted and event.value in _NULLS
    line = event.start_mark.line + 1
    return Node("null" if plain_null else "scalar", line, event.value, quoted)


def _close(node: Node) -> Node:
    """Of a mapping the items are its keys and values in turn."""
    if node.kind == "mapping":
        node.fields = list(zip(node.items[::2], node.items[1::2]))
        node.items = []
    return node


def _build(yaml: Any, events: Iterable[Any], counter: _Counter) -> Node:
    root = Node("sequence")  # of documents
    stack = [root]
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent) and root.items:
            raise counter.fail(1, "several YAML documents in one file: keep one")
        if isinstance(event, yaml.CollectionEndEvent):
            done = _close(stack.pop())
            stack[-1].items.append(done)
        elif isinstance(event, yaml.NodeEvent):
            _check_event(yaml, event, counter)
            counter.add(len(stack) - 1, event.start_mark.line + 1)
            if isinstance(event, yaml.ScalarEvent):
                stack[-1].items.append(_scalar(event))
            else:
                sequence = isinstance(event, yaml.SequenceStartEvent)
                line = event.start_mark.line + 1
                stack.append(Node("sequence" if sequence else "mapping", line))
    return root.items[0] if root.items else Node("null", 1)


def parse_yaml(text: str, filename: str) -> Node:
    """One document. InvalidSpec: it is none, or has what specs do not."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidSpec(f"{filename}: a spec has at most {MAX_BYTES} bytes")
    if "\0" in text:
        raise InvalidSpec(f"{filename}: not text: it holds a zero byte")
    yaml = yaml_module()
    counter = _Counter(filename)
    try:
        return _build(yaml, yaml.parse(text, Loader=yaml.SafeLoader), counter)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        line = mark.line + 1 if mark is not None else 1
        raise counter.fail(line, f"not valid YAML: {problem}") from error


def _of_scalar(value: Any, counter: _Counter) -> Node:
    if value is None:
        return Node("null")
    if isinstance(value, bool):
        return Node("scalar", scalar="true" if value else "false", inexact=True)
    if isinstance(value, str):
        return Node("scalar", scalar=value)
    if isinstance(value, numbers.Integral):
        return Node("scalar", scalar=str(int(value)))
    if isinstance(value, numbers.Real):
        return Node("scalar", scalar=repr(float(value)), inexact=True)
    if hasattr(value, "__fspath__"):
        return Node("scalar", scalar=str(value.__fspath__()))
    raise counter.fail(0, f"a value of type {type(value).__name__} has no place in a spec")


def _of_value(value: Any, depth: int, counter: _Counter) -> Node:
    counter.add(depth, 0)
    if isinstance(value, Mapping):
        node = Node("mapping")
        for key, item in value.items():
            name = _of_scalar(key, counter)
            node.fields.append((name, _of_value(item, depth + 1, counter)))
        return node
    if isinstance(value, (list, tuple)):
        return Node("sequence", items=[_of_value(one, depth + 1, counter) for one in value])
    return _of_scalar(value, counter)


def of_value(value: Any, called: str) -> Node:
    """Of dicts, lists, tuples, texts, numbers (NumPy's too), paths and None. Numbers may be texts,
    since YAML readers for Python take 1e-4 for one."""
    return _of_value(value, 0, _Counter(called))


def find(node: Node, name: str) -> List[Node]:
    """What a mapping has under a name: one, unless it is given twice or not at all."""
    return [value for key, value in node.fields if key.scalar == name]


def lay_over(over: Node, base: Node) -> Node:
    """Mappings field by field, other values as a whole."""
    if over.kind != "mapping" or base.kind != "mapping":
        return over
    merged = Node("mapping", base.line, fields=list(base.fields))
    for key, value in over.fields:
        at = [i for i, (other, _) in enumerate(merged.fields) if other.scalar == key.scalar]
        if at:
            old_key, old = merged.fields[at[0]]
            merged.fields[at[0]] = (old_key, lay_over(value, old))
        else:
            merged.fields.append((key, value))
    return merged
