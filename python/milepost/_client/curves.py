"""A job's curves: what it has reported over its steps."""

import datetime
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from milepost._client import schema
from milepost._client.svg import Line, curves_svg


@dataclass(frozen=True)
class Curve:
    """A number over a job's steps. A point may stand for several reports that follow each other."""

    name: str  # "train_loss"
    unit: str  # "nats", "tokens/s", "s"; empty: a plain number
    steps: Tuple[int, ...]  # of each point's last report
    means: Tuple[float, ...]  # of its finite reports; NaN: none was; the same below
    mins: Tuple[float, ...]
    maxs: Tuple[float, ...]
    seconds: Tuple[float, ...]  # time of each point's last report, since 1970
    not_finite: Tuple[int, ...]  # reports that were NaN or infinite; empty: none was
    proto: Any = field(repr=False, compare=False)


class Curves(Mapping[str, Curve]):
    """Curves by name: "train_loss", "validation_loss", "lr", ... A notebook draws the losses."""

    def __init__(self, job: str, proto: Any) -> None:
        self.job = job
        self.proto = proto
        self._curves: Dict[str, Curve] = {one.name: _curve(one) for one in proto.curves}

    def __getitem__(self, name: str) -> Curve:
        return self._curves[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._curves)

    def __len__(self) -> int:
        return len(self._curves)

    def __repr__(self) -> str:
        return f"Curves({self.job}: {', '.join(self._curves) or 'nothing yet'})"

    def to_dict(self) -> Dict[str, Any]:
        """As `milepost job curves -o json` prints it."""
        made: Dict[str, Any] = schema.to_json(self.proto, defaults=True)
        return made

    def frame(self) -> Any:
        """A pandas DataFrame: a row for each step at which something was reported, a column for
        each curve, with its means, and `time`. NaN: not reported at that step.

        ImportError: there is no pandas.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "frame() needs pandas: pip install pandas. Without it: curves['train_loss'].steps "
                "and .means"
            ) from error
        steps = sorted({step for curve in self.values() for step in curve.steps})
        index = pandas.Index(steps, name="step", dtype="int64")
        columns = {
            name: pandas.Series(curve.means, index=list(curve.steps), dtype="float64")
            for name, curve in self.items()
        }
        made = pandas.DataFrame(columns, index=index)
        times = [_last_time(self, step) for step in steps]
        made["time"] = pandas.to_datetime(times, utc=True)
        return made

    def svg(self, names: Sequence[str] = ("train_loss", "validation_loss")) -> str:
        """Curves of one plot as an SVG image: the losses, unless others are named."""
        return curves_svg(
            [
                Line(name, self[name].steps, self[name].means, "validation" in name)
                for name in names
                if name in self
            ]
        )

    def _repr_svg_(self) -> str:
        return self.svg()


def _curve(proto: Any) -> Curve:
    return Curve(
        proto.name,
        proto.unit,
        tuple(proto.steps),
        tuple(proto.means),
        tuple(proto.mins),
        tuple(proto.maxs),
        tuple(proto.seconds),
        tuple(proto.not_finite),
        proto,
    )


def _last_time(curves: Curves, step: int) -> datetime.datetime:
    """When the last of the reports at a step came."""
    found: List[float] = []
    for curve in curves.values():
        found += [at for s, at in zip(curve.steps, curve.seconds) if s == step]
    return datetime.datetime.fromtimestamp(max(found), datetime.timezone.utc)
