"""What a program gives as a job spec, as the JobSpec message that the coordinator takes.

Of files it does what common/spec/spec_file.cc does, and for `set` what common/spec/overrides.cc
does. Defaults are the coordinator's to fill in, and rules its to check.
"""

import os
import re
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from milepost._client import schema, tree
from milepost._client.convert import Converter, job_spec
from milepost.errors import FieldViolation, InvalidSpec

SpecLike = Union[str, "os.PathLike[str]", Mapping[str, Any], Any]
_LONGEST_NAME = 63
_PATH = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,15}")
_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_+./-]*|[+-]?[0-9.]+([eE][+-]?[0-9]+)?")
_BATCH = (
    "train.batch.global",
    "train.batch.micro",
    "resources.ranks",
    "resources.mesh",
    "resources.mesh.tensor",
    "resources.mesh.pipeline",
    "resources.mesh.context",
    "resources.mesh.expert",
)


class Template(NamedTuple):
    """A stored part of a spec, over which specs are laid."""

    name: str
    text: str


def normal_path(folder: str, path: str) -> str:
    """`path` of `folder`, absolute and without "." and ".."; a last slash stays."""
    joined = os.path.join(os.path.abspath(folder), path)
    normal = re.sub("^//", "/", os.path.normpath(joined))
    return normal + "/" if joined.rsplit("/", 1)[1] in ("", ".", "..") and normal != "/" else normal


def _each_path(spec: Any, change: Callable[[str], str]) -> None:
    """Changes every path of a spec: common/spec/paths.cc names them."""
    places: List[Tuple[Any, str]] = []
    if spec.HasField("model"):
        places.append((spec.model, "hugging_face"))
    if spec.HasField("data"):
        places += [(spec.data, "train"), (spec.data, "validation")]
        for source in spec.data.mixture:
            places += [(source, "path"), (source, "loss_mask")]
        for validation in spec.data.validation_sets:
            places += [(validation, "path"), (validation, "loss_mask")]
            places += [(labels, "path") for labels in validation.labels]
        if spec.data.HasField("loss_mask"):
            places += [(spec.data.loss_mask, "train"), (spec.data.loss_mask, "validation")]
        for labels in spec.data.labels:
            places += [(labels, "train"), (labels, "validation")]
    if spec.HasField("train"):
        places.append((spec.train, "init_from"))
        if spec.train.HasField("offload"):
            places.append((spec.train.offload, "path"))
    if spec.HasField("script"):
        places += [(spec.script, "folder"), (spec.script, "files"), (spec.script, "wheels")]
    if spec.HasField("report"):
        places.append((spec.report, "tensorboard"))
    for owner, name in places:
        if getattr(owner, name):
            setattr(owner, name, change(getattr(owner, name)))


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(tree.MAX_BYTES + 1)
    except OSError as error:
        raise InvalidSpec(f"job spec: cannot read {path}: {error.strerror}") from error
    if len(data) > tree.MAX_BYTES:
        raise InvalidSpec(f"job spec: {path}: a spec has at most {tree.MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidSpec(f"{path}:{line}: not UTF-8 text") from error


class _Source(NamedTuple):
    node: Optional[tree.Node]  # None: only the template
    called: str
    folder: str
    name: str  # of the job, where the spec has none


def _source_of(spec: SpecLike) -> _Source:
    here = os.getcwd()
    if isinstance(spec, Mapping):
        return _Source(tree.of_value(spec, "spec"), "spec", here, "")
    if isinstance(spec, str) and "\n" in spec:
        return _Source(tree.parse_yaml(spec, "spec"), "spec", here, "")
    if not isinstance(spec, (str, os.PathLike)):
        raise TypeError(
            f"spec: expected a path, YAML text of several lines, a dict or a JobSpec, got "
            f"{type(spec).__name__}"
        )
    path = os.fspath(spec)
    stem = os.path.splitext(os.path.basename(path))[0][:_LONGEST_NAME]
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", stem)
    folder = os.path.dirname(os.path.abspath(path))
    return _Source(tree.parse_yaml(_read(path), path), path, folder, name)


def _as_written(source: _Source, template: Optional[Template]) -> Any:
    """Each text is read by itself first: what is wrong is told with its own name and line."""
    if template is not None:
        called = f"template {template.name}"
        base = tree.parse_yaml(template.text, called)
        written = job_spec(base, called)
        if source.node is not None:
            job_spec(source.node, source.called)
            written = job_spec(tree.lay_over(source.node, base), f"{source.called} over {called}")
    else:
        assert source.node is not None
        written = job_spec(source.node, source.called)
    _each_path(written, lambda path: normal_path(source.folder, path))
    written.name = written.name or source.name
    return written


def load(
    spec: Optional[SpecLike],
    set: Optional[Mapping[str, Any]] = None,
    template: Optional[Template] = None,
) -> Any:
    """The JobSpec, as it is written but for its paths, which are absolute."""
    if spec is None and template is None:
        raise InvalidSpec("a spec is required, or a template")
    message: Any = spec
    if getattr(getattr(spec, "DESCRIPTOR", None), "full_name", "") == "milepost.v1.JobSpec":
        loaded = schema.message("JobSpec")
        loaded.ParseFromString(message.SerializeToString())
        if template is not None:
            raise InvalidSpec("template: a spec that is a message is not laid over a template")
    elif spec is None:
        assert template is not None
        loaded = _as_written(_Source(None, "", os.getcwd(), template.name), template)
    else:
        loaded = _as_written(_source_of(spec), template)
    for path, value in (set or {}).items():
        _apply(path, value, loaded)
    if set:
        _drop_derived(tuple(set), loaded)
        _each_path(loaded, lambda one: normal_path(os.getcwd(), one))
    return loaded


def value_text(value: Any) -> str:
    """A value of `set` as the coordinator reads one: YAML in one line. A str is YAML already."""
    if isinstance(value, str):
        return value
    return _flow(tree.of_value(value, "set"))


def _flow(node: tree.Node) -> str:
    if node.kind == "sequence":
        return "[" + ", ".join(_flow(one) for one in node.items) + "]"
    if node.kind == "mapping":
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in node.fields) + "}"
    if node.kind == "null":
        return "null"
    plain = _PLAIN.fullmatch(node.scalar) and node.scalar.lower() != "null"
    return node.scalar if plain else _quoted(node.scalar)


def _quoted(text: str) -> str:
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


def overrides(set: Optional[Mapping[str, Any]]) -> List[Any]:
    """As messages, for the coordinator to apply."""
    made = []
    for path, value in (set or {}).items():
        _check_path(path)
        made.append(schema.message("SpecOverride", path=path, value=value_text(value)))
    return made


def _check_path(path: str) -> List[str]:
    """Its parts. They lead through messages to a field of a spec."""
    if not _PATH.fullmatch(path) or len(path) > 256:
        _refuse(path, "expected the path of a field such as train.optimizer.lr")
    parts = path.split(".")
    kind = schema.message("JobSpec").DESCRIPTOR
    for i, part in enumerate(parts[:-1]):
        field = kind.fields_by_name.get(part) if kind is not None else None
        if field is None:
            break  # told by the converter, with what it may have meant
        if schema.is_repeated(field):
            place = ".".join(parts[: i + 1])
            _refuse(path, f"{place} is a list, which is given as a whole")
        kind = field.message_type
    return parts


def _refuse(path: str, problem: str) -> None:
    raise InvalidSpec(f"set: {path}: {problem}", [FieldViolation(path, problem)])


def _apply(path: str, value: Any, spec: Any) -> None:
    parts = _check_path(path)
    node = tree.parse_yaml(value, f"set {path}") if isinstance(value, str) else None
    if node is None:
        node = tree.of_value(value, f"set {path}")
    if node.kind == "null":
        _clear(spec, parts, path)
        return
    for part in reversed(parts):
        node = tree.Node("mapping", fields=[(tree.Node("scalar", scalar=part), node)])
    given = schema.message("JobSpec")
    converter = Converter("set")
    converter.fill(node, "", given)
    converter.check()
    _take(given, parts, spec)


def _clear(spec: Any, parts: Sequence[str], path: str) -> None:
    owner, there = spec, True
    for part in parts[:-1]:
        field = owner.DESCRIPTOR.fields_by_name.get(part)
        if field is None or field.message_type is None:
            _refuse(path, "unknown field")
        there = there and owner.HasField(part)
        owner = getattr(owner, part)
    if parts[-1] not in owner.DESCRIPTOR.fields_by_name:
        _refuse(path, "unknown field")
    if there:
        owner.ClearField(parts[-1])


def _take(given: Any, parts: Sequence[str], spec: Any) -> None:
    """Takes what `given` has at the path over."""
    for part in parts[:-1]:
        getattr(spec, part).SetInParent()
        given, spec = getattr(given, part), getattr(spec, part)
    only = type(given)()
    only.CopyFrom(given)
    for field, _ in only.ListFields():
        if field.name != parts[-1]:
            only.ClearField(field.name)
    spec.ClearField(parts[-1])
    spec.MergeFrom(only)


def _drop_derived(paths: Sequence[str], spec: Any) -> None:
    """A number that follows from others would contradict new ones."""
    mesh = spec.resources.mesh
    if "resources.mesh.schedule" in paths and "resources.mesh.chunks" not in paths:
        kind = mesh.DESCRIPTOR.fields_by_name["schedule"].enum_type
        if schema.enum_name(kind, mesh.schedule) != "interleaved":
            mesh.ClearField("chunks")
    batch = spec.train.batch if spec.HasField("train") and spec.train.HasField("batch") else None
    if batch is None or not (batch.HasField("global") and batch.HasField("micro")):
        return
    if "train.batch.accumulation" not in paths:
        if any(path in _BATCH for path in paths):
            batch.ClearField("accumulation")
    elif "train.batch.global" not in paths:
        batch.ClearField("global")
