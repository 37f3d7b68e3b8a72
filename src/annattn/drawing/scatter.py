"""Scatter charts as SVG text: labelled points, and a line through those on the frontier."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from annattn.drawing.chart import Axis
from annattn.drawing.style import Theme, begin, text

__all__ = ["Point", "scatter"]

_TOP, _BOTTOM, _LETTER, _BOLD, _LINE = 30, 46, 7.0, 8.0, 14.0


@dataclass(frozen=True)
class Point:
    """A labelled point; kind "accent" for the subject of the chart, "plain" or "faint" for others."""

    label: str
    x: float
    y: float
    kind: str = "plain"
    is_frontier: bool = False


def scatter(
    points: Sequence[Point], x: Axis, y: Axis, *,
    title: str, description: str, width: int, height: int, theme: Theme = "page",
) -> str:  # fmt: skip
    """Points with their labels beside them, moved so that none covers another, and the frontier as a dashed line.

    >>> ticks = [(1, "1"), (2, "2")]
    >>> point = Point("a", 1, 2)
    >>> scatter([point], Axis("x", ticks), Axis("y", ticks), title="t", description="d", width=300, height=200)[:4]
    '<svg'
    """
    left, right, bottom = 12 + 7 * max(len(words) for _, words in y.ticks), width - 16, height - _BOTTOM

    def at(px: float, py: float) -> tuple[float, float]:
        return left + (right - left) * x.share(px), bottom - (bottom - _TOP) * y.share(py)

    parts = [begin(width, height, f"{title}. {description}", theme)]
    for value, words in y.ticks:
        grid_y = at(x.ticks[0][0], value)[1]
        parts.append(f'<path class="grid" d="M{left:.1f} {grid_y:.1f}H{right:.1f}"/>')
        parts.append(text(left - 8, grid_y + 4, words, "end"))
    for value, words in x.ticks:
        parts.append(text(at(value, y.ticks[0][0])[0], bottom + 18, words, "middle"))
    parts.append(text(left, 14, y.label, "start", "axis"))
    parts.append(text((left + right) / 2, height - 8, x.label, "middle", "axis"))
    line = [at(*one) for one in sorted((point.x, point.y) for point in points if point.is_frontier)]
    if len(line) > 1:
        steps = " ".join(f"L{px:.1f} {py:.1f}" for px, py in line)
        parts.append(f'<path class="frontier" d="M{steps[1:]}"/>')
    places = [at(point.x, point.y) for point in points]
    for point, (px, py) in zip(points, places, strict=True):
        parts.append(f'<circle class="dot {point.kind}" cx="{px:.1f}" cy="{py:.1f}" r="4.5"/>')
    for point, dot, (px, py, anchor) in zip(
        points, places, _labels(points, places, _boxes(places, line), left, right, bottom), strict=True
    ):
        if abs(py - 4 - dot[1]) > _LINE:
            parts.append(f'<path class="leader" d="M{dot[0]:.1f} {dot[1]:.1f}L{px:.1f} {py - 4:.1f}"/>')
        parts.append(text(px, py, point.label, anchor, f"name {point.kind}"))
    return "".join([*parts, "</svg>"])


def _boxes(places: Sequence[tuple[float, float]], line: Sequence[tuple[float, float]]) -> list[tuple[float, ...]]:
    """What no label may cover: the points, and the line in short pieces."""
    found: list[tuple[float, ...]] = [(px - 5, py - 5, px + 5, py + 5) for px, py in places]
    for (ax, ay), (bx, by) in pairwise(line):
        count = max(1, round(max(abs(bx - ax), abs(by - ay)) / 6))
        pieces = [(ax + (bx - ax) * k / count, ay + (by - ay) * k / count) for k in range(count + 1)]
        found += [(px - 2, py - 2, px + 2, py + 2) for px, py in pieces]
    return found


def _labels(
    points: Sequence[Point], places: Sequence[tuple[float, float]], taken: list[tuple[float, ...]],
    left: float, right: float, bottom: float,
) -> list[tuple[float, float, str]]:  # fmt: skip
    """Where each label stands: beside its point, on the side and at the height nearest to it that is free."""
    found: list[tuple[float, float, str]] = []
    for point, (px, py) in zip(points, places, strict=True):
        width = (_BOLD if point.kind == "accent" else _LETTER) * len(point.label)
        choices = []
        for shift in range(16):
            for sign in (1, -1):
                for anchor in ("start", "end"):
                    begin = px + 8 if anchor == "start" else px - 8 - width
                    middle = py + sign * shift * _LINE / 2
                    choices.append((begin, middle - _LINE / 2, begin + width, middle + _LINE / 2, anchor))
        inside = [
            one for one in choices if one[0] >= left and one[2] <= right + 12 and _TOP - 12 <= one[1] <= bottom - _LINE
        ]
        box = next(
            (one for one in inside or choices if not any(_overlap(one[:4], other) for other in taken)), choices[0]
        )
        taken.append(box[:4])
        at = box[0] if box[4] == "start" else box[2]
        found.append((at, (box[1] + box[3]) / 2 + 4, box[4]))
    return found


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
