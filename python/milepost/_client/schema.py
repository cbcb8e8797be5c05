"""The coordinator's messages and methods, made from schema.binpb when this is imported.

scripts/checks/python_schema.py makes that file of proto/milepost/v1. They live in a pool of their
own, so they disturb no other code of the process that has messages of the same names.
"""

import base64
import datetime
import math
import os
import struct
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "milepost.v1."
# The options of job_spec.proto, by their numbers there.
_FLAGS = {50001: "may_be_auto", 50002: "is_bytes", 50003: "is_duration"}
AUTO = -1  # what `auto` is in a message


@dataclass(frozen=True)
class Method:
    """One method of the coordinator's."""

    name: str  # "JobService/GetJob"
    path: str  # "/milepost.v1.JobService/GetJob"
    request: Any  # classes of messages
    response: Any
    streams: bool  # the answer is a stream


def _varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def _flags_of(options: bytes) -> List[str]:
    """Fields have no other options than those, which are true: pairs of tag and value."""
    numbers = list(_varints(options))
    return [_FLAGS[tag >> 3] for tag in numbers[::2] if tag >> 3 in _FLAGS]


class _Schema:
    def __init__(self, data: bytes) -> None:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
        self.pool: Any = descriptor_pool.DescriptorPool()
        self.flags: Dict[str, List[str]] = {}
        self.methods: Dict[str, Method] = {}
        for file in files.file:
            self.pool.AddSerializedFile(file.SerializeToString())
            for message in file.message_type:
                self._note_flags(f"{file.package}.{message.name}", message)
        for file in files.file:
            for service in file.service:
                for method in service.method:
                    self._note_method(file.package, service.name, method)

    def _note_flags(self, name: str, message: Any) -> None:
        for field in message.field:
            flags = _flags_of(field.options.SerializeToString())
            if flags:
                self.flags[f"{name}.{field.name}"] = flags
        for nested in message.nested_type:
            self._note_flags(f"{name}.{nested.name}", nested)

    def _note_method(self, package: str, service: str, method: Any) -> None:
        if method.client_streaming:  # a worker's
            return
        name = f"{service}/{method.name}"
        self.methods[name] = Method(
            name,
            f"/{package}.{name}",
            self.type_of(method.input_type[1:]),
            self.type_of(method.output_type[1:]),
            method.server_streaming,
        )

    def type_of(self, full_name: str) -> Any:
        descriptor = self.pool.FindMessageTypeByName(full_name)
        if hasattr(message_factory, "GetMessageClass"):
            return message_factory.GetMessageClass(descriptor)
        return message_factory.MessageFactory(self.pool).GetPrototype(descriptor)  # before 4.22


def _read() -> bytes:
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "schema.binpb"), "rb") as f:
        return f.read()


_schema = _Schema(_read())
METHODS: Mapping[str, Method] = _schema.methods


def message(name: str, /, **fields: Any) -> Any:
    """A new message of milepost.v1: message("GetJobRequest", name="jobs/7")."""
    return _schema.type_of(_PACKAGE + name)(**fields)


def has_flag(field: Any, flag: str) -> bool:
    """Whether a field's descriptor has an option of job_spec.proto: "may_be_auto", ..."""
    return flag in _schema.flags.get(field.full_name, ())


def is_map(field: Any) -> bool:
    """Whether a field's descriptor is of a map."""
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def is_repeated(field: Any) -> bool:
    """Whether a field's descriptor is of a list, or of a map."""
    if hasattr(type(field), "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # before protobuf 6


def _has_presence(field: Any) -> bool:
    if hasattr(field, "has_presence"):
        return bool(field.has_presence)
    return field.message_type is not None or field.containing_oneof is not None


def enum_name(kind: Any, number: int) -> str:
    """What the command line calls an enum's value: "RUNNING"; "bf16" of a job spec's."""
    value = kind.values_by_number.get(number)
    if value is None:
        return str(number)
    prefix, name = str(kind.values_by_number[0].name), str(value.name)
    if prefix.endswith("UNSPECIFIED") and name.startswith(prefix[: -len("UNSPECIFIED")]):
        name = name[len(prefix) - len("UNSPECIFIED") :]
    return name.lower() if kind.file.name.endswith("job_spec.proto") else name


def enum_numbers(kind: Any) -> Dict[str, int]:
    """By the command line's names, without the zero value, which says that none is given."""
    return {enum_name(kind, v.number): int(v.number) for v in kind.values if v.number != 0}


def time_of(timestamp: Any) -> Optional[datetime.datetime]:
    """In UTC; None: it is not set."""
    if timestamp.seconds == 0 and timestamp.nanos == 0:
        return None
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return start + datetime.timedelta(
        seconds=int(timestamp.seconds), microseconds=int(timestamp.nanos) // 1000
    )


def seconds_of(timestamp: Any) -> float:
    """Since 1970; minus infinity: it is not set."""
    if timestamp.seconds == 0 and timestamp.nanos == 0:
        return -math.inf
    return float(timestamp.seconds) + float(timestamp.nanos) * 1e-9


def set_time(timestamp: Any, seconds: float) -> None:
    """Sets a message's timestamp to seconds since 1970."""
    whole = math.floor(seconds)
    timestamp.seconds = whole
    timestamp.nanos = min(999_999_999, int((seconds - whole) * 1e9))


def _shortest(value: float) -> float:
    """The shortest decimal number that is this 32-bit float: 0.001, not 0.0010000000474974513."""
    for digits in range(6, 10):
        text = float(f"{value:.{digits}g}")
        if struct.pack("f", text) == struct.pack("f", value):
            return text
    return value


def _number(value: float, single: bool, duration: bool) -> Any:
    if not math.isfinite(value):
        return None
    if duration and value == int(value) and abs(value) < 1e15:
        return int(value)
    return _shortest(value) if single else value


def _json_value(field: Any, value: Any, defaults: bool) -> Any:
    if field.message_type is not None:
        return to_json(value, defaults)
    if field.enum_type is not None:
        return enum_name(field.enum_type, value)
    if field.type == field.TYPE_BYTES:
        return base64.b64encode(value).decode()
    if isinstance(value, int) and value == AUTO and has_flag(field, "may_be_auto"):
        return "auto"
    if isinstance(value, float):
        return _number(value, field.type == field.TYPE_FLOAT, has_flag(field, "is_duration"))
    return value


def _json_items(proto: Any, defaults: bool) -> Iterator[Tuple[str, Any]]:
    for field in proto.DESCRIPTOR.fields:
        value = getattr(proto, field.name)
        if is_map(field):
            kind = field.message_type.fields_by_name["value"]
            if value:
                yield field.name, {k: _json_value(kind, value[k], defaults) for k in sorted(value)}
        elif is_repeated(field):
            if value or defaults:
                yield field.name, [_json_value(field, one, defaults) for one in value]
        elif _has_presence(field):
            if proto.HasField(field.name):
                yield field.name, _json_value(field, value, defaults)
        elif defaults or value != field.default_value:
            yield field.name, _json_value(field, value, defaults)


def to_json(proto: Any, defaults: bool = False) -> Any:
    """A message as the command line's `-o json` has it: names of values without their prefix,
    times as text, NaN and infinities as None. `defaults`: also zeros and empty texts and lists,
    as the command line prints what it lists."""
    if proto.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        at = time_of(proto) or datetime.datetime(1970, 1, 1)
        return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"
    return dict(_json_items(proto, defaults))
