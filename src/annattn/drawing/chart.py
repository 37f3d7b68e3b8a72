"""Line charts as SVG text."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from annattn.drawing.style import Theme, begin, text

__all__ = ["Axis", "Line", "chart"]

_TOP, _BOTTOM, _GAP, _LETTER, _BOLD = 30, 46, 15, 7.0, 8.0
_NEARLY = 0.9  # of the way: lines that end there are named in the margin


@dataclass(frozen=True)
class Axis:
    """A label, ticks as (value, text), and whether it is logarithmic; the axis spans from the first tick to the last.

    >>> Axis("tokens", [(1, "1"), (4, "4")], log=True).share(2)
    0.5
    """

    label: str
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies on the axis: 0 at the first tick, 1 at the last."""
        low, high = self.ticks[0][0], self.ticks[-1][0]
        if low == high:
            return 0.5
        if self.log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


@dataclass(frozen=True)
class Line:
    """Points of one series, and how it looks.

    kind: "accent" for the subject of the chart, "plain" or "faint" for what it is compared with. spread: half the
    height of the band around each point. ring: the x of a point to mark.
    """

    label: str
    points: Sequence[tuple[float, float]]
    kind: str = "plain"
    dashed: bool = False
    spread: Sequence[float] = field(default=())
    ring: float | None = None


def chart(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    *,
    title: str,
    description: str,
    width: int,
    height: int,
    theme: Theme = "page",
) -> str:
    """Lines with their labels at their right ends; `description` is read to those who cannot see the chart.

    >>> line = Line("a", [(1, 1), (2, 2)])
    >>> ticks = [(1, "1"), (2, "2")]
    >>> chart([line], Axis("x", ticks), Axis("y", ticks), title="t", description="d", width=300, height=200)[:4]
    '<svg'
    """
    left = 12 + _LETTER * max(len(words) for _, words in y.ticks)
    right = width - 14 - max((_BOLD if line.kind == "accent" else _LETTER) * len(line.label) for line in lines)
    bottom = height - _BOTTOM

    def at(point: tuple[float, float]) -> tuple[float, float]:
        return left + (right - left) * x.share(point[0]), bottom - (bottom - _TOP) * y.share(point[1])

    parts = [begin(width, height, f"{title}. {description}", theme)]
    for value, words in y.ticks:
        grid_y = at((x.ticks[0][0], value))[1]
        parts.append(f'<path class="grid" d="M{left:.1f} {grid_y:.1f}H{right:.1f}"/>')
        parts.append(text(left - 8, grid_y + 4, words, "end"))
    every = math.ceil(len(x.ticks) * (1 + max(len(words) for _, words in x.ticks)) * _LETTER / (right - left))
    for number, (value, words) in enumerate(x.ticks):
        # Ticks that would overlap are left out, counting from the last, which always stays.
        if (len(x.ticks) - 1 - number) % every == 0:
            parts.append(text(at((value, y.ticks[0][0]))[0], bottom + 18, words, "middle"))
    parts.append(text(left, 14, y.label, "start", "axis"))
    parts.append(text((left + right) / 2, height - 8, x.label, "middle", "axis"))
    for line in lines:
        parts += _draw_line(line, at)
    whole = [line for line in lines if x.share(line.points[-1][0]) > _NEARLY]
    ends = _separate([at(line.points[-1])[1] for line in whole], _TOP, bottom)
    for line, end in zip(whole, ends, strict=True):
        parts.append(text(right + 9, end + 4, line.label, "start", f"name {line.kind}"))
    early = [line for line in lines if line not in whole]
    ends = _separate([at(line.points[-1])[1] for line in early], _TOP, bottom)
    for line, end in zip(early, ends, strict=True):
        parts.append(text(at(line.points[-1])[0] + 6, end + 4, line.label, "start", f"name {line.kind}"))
    return "".join([*parts, "</svg>"])


def _draw_line(line: Line, at: Callable[[tuple[float, float]], tuple[float, float]]) -> list[str]:
    parts = []
    if line.spread:
        upper = [at((px, py + s)) for (px, py), s in zip(line.points, line.spread, strict=True)]
        lower = [at((px, max(0.0, py - s))) for (px, py), s in zip(line.points, line.spread, strict=True)]
        parts.append(f'<path class="band {line.kind}" d="M{_path([*upper, *reversed(lower)])}Z"/>')
    dashed = " dashed" if line.dashed else ""
    parts.append(f'<path class="line {line.kind}{dashed}" d="M{_path([at(point) for point in line.points])}"/>')
    for point in line.points:
        px, py = at(point)
        if line.kind == "accent":
            parts.append(f'<circle class="dot {line.kind}" cx="{px:.1f}" cy="{py:.1f}" r="2.6"/>')
        if point[0] == line.ring:
            parts.append(f'<circle class="ring" cx="{px:.1f}" cy="{py:.1f}" r="7"/>')
    return parts


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{px:.1f} {py:.1f}" for px, py in points)


def _separate(heights: Sequence[float], low: float, high: float) -> list[float]:
    """Heights of labels, moved just enough that none covers another."""
    order = sorted(range(len(heights)), key=lambda one: heights[one])
    placed = [heights[one] for one in order]
    for number in range(1, len(placed)):
        placed[number] = max(placed[number], placed[number - 1] + _GAP)
    if placed and placed[-1] > high:
        placed[-1] = high
        for number in range(len(placed) - 2, -1, -1):
            placed[number] = min(placed[number], placed[number + 1] - _GAP)
    found = [0.0] * len(heights)
    for one, height in zip(order, placed, strict=True):
        found[one] = height
    return found
