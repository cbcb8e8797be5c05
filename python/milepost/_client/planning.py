"""Plans of jobs, as the `milepost` program makes them: only it has the planner."""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional

from milepost import errors
from milepost._client import program, schema, spec
from milepost._client.progress import bytes_text, count_text


@dataclass(frozen=True)
class Plan:
    """What a job needs of each rank, and how long a step is expected to take.

    `print(plan)` shows the main figures; `data` has all that `milepost plan -o json` prints.
    """

    fits: bool
    problem: str  # why it does not fit or cannot run, and what would help; empty: nothing
    memory_bytes: Dict[str, int]  # per rank: "parameters", "gradients", ..., "total"
    required_bytes: int  # of a rank in all, also while it starts or saves a checkpoint
    step_seconds: float
    samples_per_second: float  # in `unit`
    unit: str  # "tokens" or "images"
    device: str
    parameters: int
    notes: str  # what the planner has to say besides
    data: Dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        lines = [f"parameters     {count_text(self.parameters)}"]
        for name, size in self.memory_bytes.items():
            lines.append(f"{name:<15}{bytes_text(size)} per rank")
        fits = "fits" if self.fits else "does not fit"
        lines.append(f"{'in all':<15}{bytes_text(self.required_bytes)} per rank: {fits}")
        lines.append(
            f"{'step':<15}{self.step_seconds * 1e3:.4g} ms expected on {self.device}, "
            f"{count_text(self.samples_per_second)} {self.unit}/s"
        )
        return "\n".join(lines + ([self.problem] if self.problem else []))


def _argument(given: spec.SpecLike) -> Any:
    """The spec's argument, and what stands on standard input."""
    if isinstance(given, str) and "\n" in given:
        return "-", given
    if isinstance(given, (str, os.PathLike)):
        return os.fspath(given), ""
    return "-", json.dumps(schema.to_json(spec.load(given)))  # JSON is YAML


def plan(
    executable: Optional[str],
    given: spec.SpecLike,
    set: Optional[Mapping[str, Any]],
    ranks: Optional[int],
    device: str,
) -> Plan:
    """Blocks while the program plans."""
    path, text = _argument(given)
    arguments: List[str] = ["plan", path, "-o", "json"]
    for field_path, value in (set or {}).items():
        arguments += ["--set", f"{field_path}={spec.value_text(value)}"]
    arguments += ["--ranks", str(ranks)] if ranks is not None else []
    arguments += ["--device", device] if device else []
    return _read(*program.run(executable, arguments, text, "plan()"))


def _read(code: int, stdout: str, stderr: str) -> Plan:
    said = program.said(stderr)
    try:
        data = json.loads(stdout)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        if code == 2:
            raise errors.InvalidSpec(said)
        raise errors.ClientError(f"milepost plan ended with exit code {code}: {said}")
    expected = data["expected"]
    rate = next((key for key in expected if key.endswith("s_per_second")), "tokens_per_second")
    return Plan(
        fits=bool(data["fits"]),
        problem=said if code != 0 else "",
        memory_bytes={str(k): int(v) for k, v in data["per_rank"].items()},
        required_bytes=int(data["required_bytes"]),
        step_seconds=float(expected["seconds"]),
        samples_per_second=float(expected.get(rate, 0.0)),
        unit=rate[: -len("_per_second")],
        device=str(expected["device"]),
        parameters=int(data["parameters"]),
        notes=said if code == 0 else "",
        data=data,
    )
