"""Curves as a small SVG image. Pure."""

import html
import math
from dataclasses import dataclass
from typing import List, Sequence, Tuple

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 26, 30
_COLOURS = ("#1f6feb", "#d1572a", "#2da44e", "#8250df", "#9a6700", "#57606a")
_INK = "#8b949e"  # to be seen on light and on dark pages


@dataclass(frozen=True)
class Line:
    """A curve. Values that are not finite are left out. `points`: also with a dot for each."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    points: bool = False


def ticks(low: float, high: float, most: int) -> List[float]:
    """Round numbers within [low, high], at most `most`: steps of 1, 2 or 5 times a power of ten."""
    if not low < high:
        return [low]
    exponent = math.floor(math.log10((high - low) / most))
    scale = 10.0 ** abs(exponent)  # a power that is exact: 3 / 10 is 0.3, and 3 * 0.1 is not
    for factor in (1, 2, 5, 10, 20):
        step = factor * scale if exponent >= 0 else factor / scale
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first + 1 <= most:
            break
    numbers = [i * factor for i in range(first, last + 1)]
    return [i * scale if exponent >= 0 else i / scale for i in numbers]


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return text if "e" not in text else f"{value:.0f}" if abs(value) < 1e12 and value == int(
        value
    ) else text


def _bounds(values: Sequence[float]) -> Tuple[float, float]:
    low, high = min(values), max(values)
    if low < high:
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _text(x: float, y: float, anchor: str, text: str, colour: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{html.escape(text)}</text>"
    )


def _axes(xs: Tuple[float, float], ys: Tuple[float, float]) -> List[str]:
    parts = []
    for y in ticks(*ys, most=6):
        at = _y(y, ys)
        line = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"'
        parts.append(f'<line {line} stroke="{_INK}" stroke-opacity="0.25"/>')
        parts.append(_text(_LEFT - 6, at + 4, "end", _number(y)))
    for x in ticks(*xs, most=7):
        parts.append(_text(_x(x, xs), _HEIGHT - 10, "middle", _number(x)))
    return parts


def _x(value: float, xs: Tuple[float, float]) -> float:
    return _LEFT + (value - xs[0]) / (xs[1] - xs[0]) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, ys: Tuple[float, float]) -> float:
    return _HEIGHT - _BOTTOM - (value - ys[0]) / (ys[1] - ys[0]) * (_HEIGHT - _TOP - _BOTTOM)


def _drawn(
    line: Line, colour: str, xs: Tuple[float, float], ys: Tuple[float, float]
) -> List[str]:
    at = [(_x(x, xs), _y(y, ys)) for x, y in zip(line.xs, line.ys) if math.isfinite(y)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
    if line.points or len(at) == 1:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in at]
    return parts


def _last(line: Line) -> str:
    value = [y for y in line.ys if math.isfinite(y)][-1]
    return f"{line.name} {value:.4f}" if abs(value) < 1e4 else f"{line.name} {value:.4g}"


def curves_svg(lines: Sequence[Line]) -> str:
    """Over one pair of axes, with a legend that has the last values. Without a value: says so."""
    shown = [line for line in lines if any(math.isfinite(y) for y in line.ys)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
    )
    if not shown:
        return head + _text(_WIDTH / 2, _HEIGHT / 2, "middle", "no values yet") + "</svg>"
    xs = _bounds([x for line in shown for x, y in zip(line.xs, line.ys) if math.isfinite(y)])
    ys = _bounds([y for line in shown for y in line.ys if math.isfinite(y)])
    parts = _axes(xs, ys)
    left = float(_LEFT)
    for i, line in enumerate(shown):
        colour = _COLOURS[i % len(_COLOURS)]
        parts += _drawn(line, colour, xs, ys)
        label = _last(line)
        parts.append(_text(left, 16, "start", label, colour))
        left += 7.0 * len(label) + 18
    return head + "".join(parts) + "</svg>"
