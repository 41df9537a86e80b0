"""Charts as SVG that stretches with the page; what is written beside them is text of the page."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from trackside.core import text as words
from trackside.report._bins import Bin
from trackside.report._gather import Mark
from trackside.report._report import Heatmap

Points = Sequence[tuple[int, Bin]]

WIDTH: Final = 1000
HEIGHT: Final = 260
_LOG_FROM: Final = 8.0
"""From so many times the median on, the axis is logarithmic: one long step would hide all others."""
_MOST_MARKS: Final = 150
_MOST_COLUMNS: Final = 256
_MOST_NAMES: Final = 32
SHADES: Final = (0.6, 0.75, 0.85, 0.92, 0.97)
"""Scores below each of these have a shade of their own; below the second one is a straggler."""


def escaped(text: object) -> str:
    """Return *text* for a page: nothing in it is markup, and control characters are shown."""
    return html.escape(words.printable(str(text)), quote=True)


class Axis:
    """From figures to places between 0 at the top and *height* at the bottom."""

    def __init__(self, low: float, high: float, usual: float, height: float = HEIGHT) -> None:
        self.is_log = usual > 0 and low > 0 and high > _LOG_FROM * usual
        self._height = height
        if self.is_log:
            self._low, self._high = math.log(low * 0.9), math.log(high * 1.1)
        else:
            self._low, self._high = min(0.0, low), high * 1.05 or 1.0
        if self._high <= self._low:
            self._high = self._low + 1.0

    def place(self, value: float) -> float:
        """Return where *value* is."""
        at = math.log(max(value, 1e-9)) if self.is_log else value
        # Halved, because the whole range may be more than a float holds.
        return self._height * (1 - (at / 2 - self._low / 2) / (self._high / 2 - self._low / 2))

    def ticks(self) -> list[float]:
        """Return round figures to write beside the axis."""
        if self.is_log:
            first, last = math.floor(self._low / math.log(10)), math.ceil(self._high / math.log(10))
            found = [10.0**power * step for power in range(first, last + 1) for step in (1, 2, 5)]
            found = [tick for tick in found if self._low <= math.log(tick) <= self._high]
            return found[:: max(1, len(found) // 4)]
        rough = self._high / 4 - self._low / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * size for size in (1, 2, 5, 10) if power * size >= rough)
        first_tick = math.ceil(self._low / step)
        return [step * number for number in range(first_tick, int(self._high / step) + 1)]


def curve(
    points: Points, kind: str, told: Callable[[float], str], marks: Sequence[Mark] = (), *, height: int = HEIGHT
) -> str:
    """
    Return figures over time: the median as a line, the lowest and the highest as a band, what happened as lines.

    Args:
        points: At least one.
        kind: The class of the line.
        told: Writes a figure with its unit.
        marks: What happened.
        height: Of the chart, in pixels.
    """
    start, end = points[0][0], points[-1][0]
    start, end = min([start, *(mark.at_ns for mark in marks)]), max([end, *(mark.at_ns for mark in marks)])
    span = max(1, end - start)
    usual = sorted(one.median for _, one in points)[len(points) // 2]
    axis = Axis(min(one.low for _, one in points), max(one.high for _, one in points), usual, height)

    def across(at_ns: int) -> float:
        return WIDTH * (at_ns - start) / span

    ticks = axis.ticks()
    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH}" y1="{axis.place(tick):.1f}" y2="{axis.place(tick):.1f}"/>'
        for tick in ticks
    )
    stretches = _stretches(points)
    band = " ".join(_band(stretch, across, axis) for stretch in stretches)
    line = " ".join(_line(stretch, across, axis) for stretch in stretches)
    lines = "".join(_mark(mark, across, height) for mark in _thinned(marks))
    peaks = "".join(_peak(at, one, across, axis, told) for at, one in _peaks(points))
    labels = "".join(
        f'<span style="top:{100 * axis.place(tick) / height:.1f}%">{escaped(told(tick))}</span>' for tick in ticks
    )
    scale = ", logarithmic" if axis.is_log else ""
    return (
        f'<div class="plot"><div class="y">{labels}</div>'
        f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" style="height:{height}px" role="img" '
        f'aria-label="{kind} over time{scale}">{grid}{lines}<path class="band" d="{band}"/>'
        f'<path class="{kind}" d="{line}"/>{peaks}</svg>'
        f'<div class="x"><span>{words.clock(start)}</span><span>{words.duration(span)}{scale}</span>'
        f"<span>{words.clock(end)}</span></div></div>"
    )


def _stretches(points: Points) -> list[Points]:
    """Part *points* where nothing happened for long: a line across a gap would say that something did."""
    gaps = sorted(after - before for (before, _), (after, _) in itertools.pairwise(points))
    if not gaps:
        return [points]
    most = 8 * max(gaps[len(gaps) // 2], 1)
    found: list[list[tuple[int, Bin]]] = [[]]
    for place, point in enumerate(points):
        if place and point[0] - points[place - 1][0] > most:
            found.append([])
        found[-1].append(point)
    return list(found)


def _line(points: Points, across: Callable[[int], float], axis: Axis) -> str:
    placed = [f"{across(at):.1f} {axis.place(one.median):.1f}" for at, one in points]
    # A point alone would not be drawn.
    return "M" + "L".join(placed if len(placed) > 1 else placed * 2)


def _band(points: Points, across: Callable[[int], float], axis: Axis) -> str:
    top = [f"{across(at):.1f} {axis.place(one.high):.1f}" for at, one in points]
    bottom = [f"{across(at):.1f} {axis.place(one.low):.1f}" for at, one in reversed(points)]
    return f"M{'L'.join(top + bottom)}Z"


def _peaks(points: Points) -> Points:
    return sorted(points, key=lambda point: -point[1].high)[:5]


def _peak(at_ns: int, one: Bin, across: Callable[[int], float], axis: Axis, told: Callable[[float], str]) -> str:
    x, y = across(at_ns), axis.place(one.high)
    text = f"{told(one.high)}: step {one.high_step}, rank {one.high_rank}"
    return f'<path class="curve" d="M{x - 3:.1f} {y:.1f}h6"><title>{escaped(text)}</title></path>'


def _thinned(marks: Sequence[Mark]) -> Iterator[Mark]:
    by_kind: dict[str, list[Mark]] = {}
    for mark in marks:
        by_kind.setdefault(mark.kind, []).append(mark)
    for own in by_kind.values():
        yield from own[:: -(-len(own) // _MOST_MARKS)]


def _mark(mark: Mark, across: Callable[[int], float], height: int) -> str:
    x = across(mark.at_ns)
    step = f", step {mark.step}" if mark.step >= 0 else ""
    lasted = f", {words.duration(mark.duration_ns)}" if mark.duration_ns else ""
    text = f"{mark.label}, rank {mark.rank}{step}{lasted}, {words.clock(mark.at_ns)}"
    return (
        f'<line class="{mark.kind}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}">'
        f"<title>{escaped(text)}</title></line>"
    )


def heat(heatmap: Heatmap) -> str:
    """Return scores by rank, from left to right, and section; of many ranks neighbours are one cell, by their worst."""
    ranks = len(heatmap.ranks)
    size = -(-ranks // _MOST_COLUMNS)
    rows = sorted(zip(heatmap.names, heatmap.scores, strict=True), key=lambda row: _worst(row[1]))[:_MOST_NAMES]
    shown = "".join(f'<div class="name">{escaped(name)}</div>{_row(heatmap, scores, size)}' for name, scores in rows)
    middle = heatmap.ranks[ranks // 2] if ranks > 2 else ""  # noqa: PLR2004
    ends = f"<span>rank {heatmap.ranks[0]}</span><span>{middle}</span><span>{heatmap.ranks[-1]}</span>"
    return f'<div class="heat">{shown}<div class="x">{ends if ranks > 1 else ends[:22]}</div></div>'


def _worst(scores: Sequence[float | None]) -> float:
    return min((score for score in scores if score is not None), default=2.0)


def _row(heatmap: Heatmap, scores: Sequence[float | None], size: int) -> str:
    cells = []
    columns = range(0, len(scores), size)
    for column, start in enumerate(columns):
        places = range(start, min(start + size, len(scores)))
        known = [(score, place) for place in places if (score := scores[place]) is not None]
        who = f"ranks {heatmap.ranks[places[0]]} to {heatmap.ranks[places[-1]]}" if size > 1 else ""
        if known:
            score, place = min(known)
            text = f"rank {heatmap.ranks[place]} on {heatmap.nodes[place]}: {score:.3f}"
            text = f"{who}: worst is {text}" if who else text
        else:
            text = f"{who or f'rank {heatmap.ranks[start]}'}: no score"
        look = shade(known and min(known)[0])
        # A little wider than one: no seams between cells.
        cells.append(f'<rect class="{look}" x="{column}" width="1.03" height="1"><title>{escaped(text)}</title></rect>')
    return f'<svg viewBox="0 0 {len(columns)} 1" preserveAspectRatio="none" role="img">{"".join(cells)}</svg>'


def shade(score: object) -> str:
    """Return the class of a score's shade."""
    if not isinstance(score, float):
        return "s-"
    return f"s{sum(score >= bound for bound in SHADES)}"


def spark(points: Points) -> str:
    """Return where a counter stood, as a small line."""
    if len(points) < 2:  # noqa: PLR2004
        return ""
    values = [one.median for _, one in points]
    low, high = min(values), max(values)
    scale = 20 / (high - low) if high > low else 0.0
    start, span = points[0][0], max(1, points[-1][0] - points[0][0])
    placed = [
        f"{120 * (at - start) / span:.1f} {21 - (value - low) * scale if scale else 11:.1f}"
        for (at, _), value in zip(points, values, strict=True)
    ]
    return (
        f'<svg class="spark" viewBox="0 0 120 22" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="loss" d="M{"L".join(placed)}"/></svg>'
    )
