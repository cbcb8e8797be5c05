"""Trees as messages: the rules of common/spec/parse.cc, by the fields of the proto."""

import difflib
import math
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from milepost._client import schema
from milepost._client.tree import Node
from milepost.errors import FieldViolation, InvalidSpec

_MAX_PROBLEMS = 10
_UNITS = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1}
_UNITS.update({"TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3})
_MOST_BYTES = 2**62
_SECONDS = {"ms": 1e-3, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_MOST_SECONDS = 2147483648.0
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*")
_REAL = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*")
_HEX = re.compile(r"\s*[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)([pP][+-]?[0-9]+)?\s*")
_SIZE = re.compile(r"([0-9.]*)\s*(TiB|GiB|MiB|KiB|B|TB|GB|MB|KB)\s*")
_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ms|[dhms])")


def byte_size(text: str) -> Optional[int]:
    """ "1.5GiB" -> 1610612736, "1000000" -> 1000000; None: it is no number of bytes."""
    if text.isascii() and text.isdigit():
        return int(text) if int(text) <= _MOST_BYTES else None
    match = _SIZE.fullmatch(text)
    if match is None or not _REAL.fullmatch(match.group(1)):
        return None
    size = float(match.group(1)) * _UNITS[match.group(2)]
    return int(size) if size <= _MOST_BYTES and size == math.floor(size) else None


def seconds(text: str) -> Optional[float]:
    """ "1d12h" -> 129600.0, "90" -> 90.0; None: it is no length of time."""
    if re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", text):
        return float(text) if float(text) <= _MOST_SECONDS else None
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return total if total <= _MOST_SECONDS else None


def _hint(word: str, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _number(text: str) -> Optional[float]:
    if _HEX.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return None
    return float(text) if _REAL.fullmatch(text) else None


class Converter:
    """Fills messages. Problems are kept until `check`."""

    def __init__(self, filename: str) -> None:
        self._filename = filename
        self._problems: List[Tuple[int, FieldViolation]] = []
        self._count = 0

    def check(self) -> None:
        """InvalidSpec where something was wrong: a line for each problem, at most ten."""
        if self._count == 0:
            return
        lines = []
        for line, one in self._problems:
            place = f"{self._filename}:{line}" if line > 0 else self._filename
            lines.append(f"{place}: {one.field}: {one.description}")
        if self._count > len(self._problems):
            lines.append(f"{self._filename}: and {self._count - len(self._problems)} more")
        raise InvalidSpec("\n".join(lines), [one for _, one in self._problems])

    def fill(self, node: Node, path: str, message: Any) -> None:
        """Lays a mapping's fields into the message."""
        if node.kind != "mapping":
            what = path or "the document"
            self._problem(node, what, f"expected a mapping of fields, got {node.shown()}")
            return
        for name, key, value in self._pairs(node, path, "a field name"):
            self._fill_field(name, key, value, path, message)

    def _problem(self, node: Node, path: str, problem: str) -> None:
        self._count += 1
        if self._count <= _MAX_PROBLEMS:
            self._problems.append((node.line, FieldViolation(path, problem)))

    def _pairs(self, node: Node, path: str, what: str) -> List[Tuple[str, Node, Node]]:
        """Of a mapping, without what is no name or comes twice."""
        pairs: Dict[str, Tuple[str, Node, Node]] = {}
        for key, value in node.fields:
            if key.kind != "scalar":
                self._problem(key, path or "the document", f"expected {what}, got {key.shown()}")
            elif key.scalar in pairs:
                self._problem(key, _join(path, key.scalar), "given twice: keep one")
            else:
                pairs[key.scalar] = (key.scalar, key, value)
        return list(pairs.values())

    def _fill_field(self, name: str, key: Node, value: Node, path: str, message: Any) -> None:
        here = _join(path, name)
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            names = [one.name for one in message.DESCRIPTOR.fields]
            hint = _hint(name, names) or "; expected one of " + ", ".join(names)
            self._problem(key, here, "unknown field" + hint)
            return
        oneof = field.containing_oneof
        given = message.WhichOneof(oneof.name) if oneof is not None else None
        if given is not None:
            problem = f"only one of {oneof.name} can be given, and {_join(path, given)} is"
            self._problem(key, here, problem + ": keep one")
        elif schema.is_map(field):
            self._fill_texts(value, here, getattr(message, name))
        elif schema.is_repeated(field):
            self._fill_list(value, here, field, getattr(message, name))
        elif field.message_type is not None:
            getattr(message, name).SetInParent()
            self.fill(value, here, getattr(message, name))
        else:
            scalar = self._scalar(value, here, field)
            if scalar is not None:
                setattr(message, name, scalar)

    def _fill_texts(self, value: Node, path: str, texts: Any) -> None:
        if value.kind != "mapping":
            what = f"expected a mapping of names to texts, got {value.shown()}"
            self._problem(value, path, what)
            return
        for name, _, text in self._pairs(value, path, "a name"):
            read = self._text(text, _join(path, name))
            if read is not None:
                texts[name] = read

    def _fill_list(self, value: Node, path: str, field: Any, items: Any) -> None:
        if value.kind != "sequence":
            self._problem(value, path, f"expected a list, got {value.shown()}")
            return
        for i, one in enumerate(value.items):
            here = f"{path}[{i}]"
            if field.message_type is not None:
                self.fill(one, here, items.add())
                continue
            scalar = self._scalar(one, here, field)
            if scalar is not None:
                items.append(scalar)

    def _scalar(self, value: Node, path: str, field: Any) -> Any:
        if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
            return self._integer(value, path, field)
        if field.cpp_type == field.CPPTYPE_DOUBLE:
            return self._real(value, path, field)
        if field.cpp_type == field.CPPTYPE_BOOL:
            return self._bool(value, path)
        if field.cpp_type == field.CPPTYPE_ENUM:
            return self._enum(value, path, field.enum_type)
        return self._text(value, path)

    def _text(self, value: Node, path: str) -> Optional[str]:
        if value.kind == "scalar" and not value.inexact:
            return value.scalar
        hint = ": write it as a str" if value.inexact else ""
        self._problem(value, path, f"expected text, got {value.shown()}{hint}")
        return None

    def _integer(self, value: Node, path: str, field: Any) -> Optional[int]:
        least, most = {
            field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
            field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
            field.CPPTYPE_UINT64: (0, 2**64 - 1),
        }[field.cpp_type]
        plain = value.kind == "scalar" and not value.quoted
        number = plain and _INTEGER.fullmatch(value.scalar) is not None
        if number and least <= int(value.scalar) <= most:
            return int(value.scalar)
        may_be_auto = schema.has_flag(field, "may_be_auto")
        if may_be_auto and value.scalar == "auto":
            return schema.AUTO
        if schema.has_flag(field, "is_bytes"):
            size = byte_size(value.scalar) if value.kind == "scalar" else None
            if size is None:
                what = "expected bytes such as 80GiB, 512MiB or 1000000, got "
                self._problem(value, path, what + value.shown())
            return size
        what = f"expected a whole number from {least} to {most}" if number else (
            "expected a whole number" + (" or auto" if may_be_auto else "")
        )
        if plain and not number and _REAL.fullmatch(value.scalar):
            what = "expected a whole number in digits only"
        self._problem(value, path, f"{what}, got {value.shown()}")
        return None

    def _real(self, value: Node, path: str, field: Any) -> Optional[float]:
        scalar = value.kind == "scalar"
        if schema.has_flag(field, "is_duration"):
            time = seconds(value.scalar) if scalar else None
            if time is None:
                what = "expected a length of time such as 90m, 12h or 1d12h, got "
                self._problem(value, path, what + value.shown())
            return time
        number = _number(value.scalar) if scalar and not value.quoted else None
        if number is not None and math.isfinite(number):
            return number
        self._problem(value, path, f"expected a number, got {value.shown()}")
        return None

    def _bool(self, value: Node, path: str) -> Optional[bool]:
        if value.kind == "scalar" and not value.quoted and value.scalar in ("true", "false"):
            return value.scalar == "true"
        self._problem(value, path, f"expected true or false, got {value.shown()}")
        return None

    def _enum(self, value: Node, path: str, kind: Any) -> Optional[int]:
        numbers = schema.enum_numbers(kind)
        if value.kind == "scalar" and value.scalar in numbers:
            return numbers[value.scalar]
        names = list(numbers)
        choices = ("one of " if len(names) > 1 else "") + ", ".join(names)
        hint = _hint(value.scalar, names)
        self._problem(value, path, f"expected {choices}, got {value.shown()}{hint}")
        return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name[:40]}" if path else name[:40]


def job_spec(node: Node, filename: str) -> Any:
    """A JobSpec as it is written: no default is filled in. InvalidSpec: what is wrong, by line."""
    spec = schema.message("JobSpec")
    converter = Converter(filename)
    converter.fill(node, "", spec)
    converter.check()
    return spec
