"""A report as one HTML page: without scripts and external resources, and with every text escaped."""

from __future__ import annotations

import html
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from trackside.core import text as words
from trackside.events import __version__
from trackside.report._gather import Bin, Mark
from trackside.report._report import PRODUCTIVE, AttemptBar, Finding, Heatmap, Report, shown
from trackside.report._verdict_rules import (
    limited_words,
    loss_words,
    lost_words,
    not_drawn_words,
    waited_words,
    whole_step_words,
)

STYLE: Final = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1b2430; --dim: #5c6875; --line: #dfe4ea;
  --good: #1f8a5b; --bad: #c8322b; --warn: #b06f00; --mark: #3566c0; --band: #1f8a5b2e; --curve: #1f8a5b;
  --s0: #b3261e; --s1: #dd5b45; --s2: #f0a04b; --s3: #f5d58a; --s4: #cfe6c8; --s5: #a5d3ab; --s-: #e6e9ed; }
@media (prefers-color-scheme: dark) { :root { --ground: #12171d; --card: #1a2129; --ink: #e4e9ee; --dim: #97a3b0;
  --line: #2c3640; --good: #35b27b; --bad: #f07a70; --warn: #f0b03f; --mark: #6f9bf0; --band: #35b27b38;
  --curve: #35b27b; --s0: #ff6a5e; --s1: #d9583f; --s2: #b9772c; --s3: #8a7433; --s4: #35594a; --s5: #24453a;
  --s-: #2a323b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 48px; }
header h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 2px; }
header p { margin: 0; color: var(--dim); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin-top: 16px; }
h2 { font-size: 1.02rem; margin: 0 0 10px; }
h3 { font-size: .92rem; margin: 18px 0 6px; } h3 .dim { font-weight: 400; font-size: .86rem; margin-left: 6px; }
.dim, .note { color: var(--dim); } .note { font-size: .86rem; margin: 8px 0 0; }
#verdict { border-left: 5px solid var(--good); } #verdict.bad { border-left-color: var(--bad); }
#verdict .headline { font-size: 1.22rem; line-height: 1.35; font-weight: 650; margin: 0 0 6px; }
#verdict .summary { margin: 0; color: var(--dim); }
#verdict ol { margin: 14px 0 0; padding: 0; list-style: none; }
#verdict li { border-top: 1px solid var(--line); padding: 10px 0 8px; }
#verdict li:last-child { padding-bottom: 0; }
.title { font-weight: 600; } .title .kind { font-weight: 500; font-size: .78rem; color: var(--bad);
  border: 1px solid currentColor; border-radius: 999px; padding: 1px 8px; margin-right: 6px; white-space: nowrap; }
#verdict ul { margin: 4px 0; padding-left: 18px; color: var(--dim); font-size: .92rem; list-style: disc; }
#verdict ul li { border: 0; padding: 0; }
.look { margin: 4px 0 0; } .look::before { content: "→ "; color: var(--mark); font-weight: 700; }
.look code { display: block; margin: 2px 0 0 1.2em; overflow-wrap: anywhere; user-select: all; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(96px, 1fr)); gap: 8px; margin-top: 16px; }
.figures div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 9px 11px; }
.figures b { display: block; font-size: 1.1rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
.figures span { color: var(--dim); font-size: .82rem; }
.attempt { display: grid; grid-template-columns: 8.5rem 1fr; gap: 4px 12px; align-items: center; margin: 6px 0; }
.attempt .label { font-size: .86rem; line-height: 1.25; } .attempt .label small { color: var(--dim); display: block; }
.bar { display: flex; height: 26px; border-radius: 5px; overflow: hidden; background: var(--s-); }
.bar span { display: block; min-width: 1px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 10px 0 0; padding: 0; list-style: none;
  font-size: .86rem; } .legend i { display: inline-block; width: 11px; height: 11px; border-radius: 3px;
  margin-right: 6px; vertical-align: -1px; } .legend b { font-weight: 600; font-variant-numeric: tabular-nums; }
.plot { display: grid; grid-template-columns: auto 1fr; gap: 5px 8px; }
.plot .y { position: relative; min-width: 3.6rem; font-size: .74rem; color: var(--dim); }
.plot .y span { position: absolute; right: 0; transform: translateY(-50%); white-space: nowrap; }
.plot svg { width: 100%; display: block; border-bottom: 1px solid var(--line); }
.plot .axis, .plot .ticks { font-size: .74rem; color: var(--dim); line-height: 1.5; }
.plot .axis { text-align: right; } .plot .ticks { position: relative; height: 1.5em; }
.plot .tick { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.plot .first { transform: none; } .plot .last { transform: translateX(-100%); }
.plot .unit { grid-column: 1 / -1; font-size: .74rem; color: var(--dim); padding-bottom: 6px; }
.buckets { display: grid; grid-template-columns: auto auto auto 1fr; gap: 3px 14px; margin: 12px 0 0; font-size: .86rem;
  align-items: baseline; } .buckets div { display: contents; } .buckets i { display: inline-block; width: 11px;
  height: 11px; border-radius: 3px; margin-right: 7px; vertical-align: -1px; }
.buckets .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.i-curve { background: var(--curve); } .i-band { background: var(--band); }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .band { fill: var(--band); stroke: none; }
svg .curve { fill: none; stroke: var(--curve); stroke-width: 1.6; stroke-linejoin: round; }
svg .loss { fill: none; stroke: var(--mark); stroke-width: 1.6; stroke-linejoin: round; }
svg path, svg line { vector-effect: non-scaling-stroke; }
svg .checkpoint { stroke: #3566c0; } svg .restore { stroke: #6aa3e8; } svg .validation { stroke: #0f8f9e; }
svg .restart { stroke: var(--bad); stroke-width: 2; } svg .end { stroke: var(--bad); stroke-dasharray: 4 3; }
svg .error { stroke: #8e2c66; } svg .lost { stroke: var(--warn); }
svg .checkpoint, svg .restore, svg .validation { stroke-opacity: .55; }
.i-checkpoint { background: #3566c0; } .i-restore { background: #6aa3e8; } .i-validation { background: #0f8f9e; }
.i-restart, .i-end { background: var(--bad); } .i-error { background: #8e2c66; } .i-lost { background: var(--warn); }
.heat { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: 3px 10px; align-items: stretch; }
.heat .name { font-size: .84rem; max-width: 14rem; align-self: center; }
.heat svg { width: 100%; height: 26px; display: block; border-radius: 3px; }
.heat .x { grid-column: 2; display: flex; justify-content: space-between; font-size: .74rem; color: var(--dim); }
.s0 { fill: var(--s0); background: var(--s0); } .s1 { fill: var(--s1); background: var(--s1); }
.s2 { fill: var(--s2); background: var(--s2); } .s3 { fill: var(--s3); background: var(--s3); }
.s4 { fill: var(--s4); background: var(--s4); } .s5 { fill: var(--s5); background: var(--s5); }
.s- { fill: var(--s-); background: var(--s-); }
.part { display: grid; grid-template-columns: minmax(7rem, 15rem) 1fr 9.5rem; gap: 2px 10px; align-items: center;
  margin: 4px 0; font-size: .9rem; } .part .track { background: var(--s-); border-radius: 4px; height: 14px; }
.part .track i { display: block; height: 100%; border-radius: 4px; background: var(--mark); min-width: 1px; }
.part .num { font-variant-numeric: tabular-nums; text-align: right; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; }
th { text-align: left; color: var(--dim); font-weight: 500; } th, td { padding: 4px 10px 4px 0; vertical-align: top;
  border-bottom: 1px solid var(--line); } tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; } td.n { white-space: nowrap; }
.whole { white-space: nowrap; } td.name { min-width: 10rem; }
.trends { grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); margin: 0 0 14px; }
.trends .spark { width: 100%; height: 34px; display: block; margin-bottom: 4px; }
.wide { overflow-x: auto; } .wide th, .wide td { white-space: nowrap; }
.wide td:last-child { white-space: normal; min-width: 14rem; }
.wide td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
a { color: var(--mark); } .tag { font-size: .76rem; border: 1px solid var(--line); border-radius: 999px;
  padding: 1px 7px; color: var(--dim); white-space: nowrap; }
td .spark { width: 120px; height: 22px; display: block; }
.bad { color: var(--bad); } .ok { color: var(--good); } section.bad { color: inherit; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", monospace; }
footer { color: var(--dim); font-size: .82rem; margin-top: 20px; }
@media (max-width: 640px) { .opt { display: none; } .plot .tick:nth-child(even):not(.last) { display: none; }
  .buckets { grid-template-columns: 1fr auto auto; } .buckets .dim { grid-column: 1 / -1; padding: 0 0 5px 18px; }
  section { padding: 14px 12px; } main { padding: 14px 10px 32px; }
  .attempt { grid-template-columns: 1fr; } .part { grid-template-columns: 1fr auto; }
  .part .track { grid-column: 1 / -1; } th, td { padding-right: 6px; }
  td.name { min-width: 8rem; } td .spark { width: 90px; }
  .wide td:first-child { min-width: 6rem; } .wide td:last-child { min-width: 6.5rem; } }
@media print { :root { color-scheme: light; } body { background: #fff; font-size: 10.5pt; }
  main { max-width: none; padding: 0; } section, .figures div { border-color: #bbb; break-inside: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } tr { break-inside: avoid; } }
"""


Points = Sequence[tuple[int, Bin]]
_LEAST_GAP: Final = 0.09
"""The least distance between two labels of an axis, as a share of its width."""
_EDGE: Final = 0.04

WIDTH: Final = 1000
HEIGHT: Final = 260
_LOG_FROM: Final = 8.0
"""The ratio of the longest step to the median above which the axis is logarithmic, to keep other steps visible."""
_LOG_MARGIN: Final = 0.1
_LEAST_POWER: Final = sys.float_info.min_10_exp
"""The least exponent of ten at which a float has its full precision."""
_MOST_MARKS: Final = 150
_MOST_COLUMNS: Final = 256
_MOST_NAMES: Final = 32
SHADES: Final = (0.6, 0.75, 0.85, 0.92, 0.97)
"""The bounds between the shades of scores; a rank with a score below the second one is a straggler."""


def escaped(text: object) -> str:
    """Return *text* for a page: markup is escaped, and control characters are made visible."""
    return html.escape(words.printable(str(text)), quote=True)


class Axis:
    """Maps figures to positions between 0 at the top and *height* at the bottom."""

    def __init__(self, low: float, high: float, usual: float, height: float = HEIGHT, *, has_zero: bool = True) -> None:
        self.is_log = usual > 0 and low >= sys.float_info.min and high > _LOG_FROM * usual
        self._height = height
        if self.is_log:
            self._low, self._high = math.log(low) - _LOG_MARGIN, math.log(high) + _LOG_MARGIN
        elif has_zero or low < high / 2:
            self._low, self._high = min(0.0, low), min(max(high, high * 1.05), sys.float_info.max)
        else:  # on an axis from zero, figures that differ little would be a straight line
            margin = (high - low) / 20
            self._low, self._high = low - margin, min(high + margin, sys.float_info.max)
        if self._high - self._low < sys.float_info.min:
            self._high = min(self._low + max(1.0, abs(self._low) / 10), sys.float_info.max)

    def place(self, value: float) -> float:
        """Return the position of *value*."""
        at = math.log(max(value, sys.float_info.min)) if self.is_log else value
        # Halved, because the whole range may be more than a float holds.
        return self._height * (1 - (at / 2 - self._low / 2) / (self._high / 2 - self._low / 2))

    def ticks(self) -> list[float]:
        """Return round figures to write beside the axis."""
        if self.is_log:
            first, last = math.floor(self._low / math.log(10)), math.ceil(self._high / math.log(10))
            powers = range(max(first, _LEAST_POWER), min(last, sys.float_info.max_10_exp) + 1)
            found = [10.0**power * step for power in powers for step in (1, 2, 5)]
            found = [tick for tick in found if self._low <= math.log(tick) <= self._high]
            return found[:: max(1, len(found) // 4)]
        rough = self._high / 4 - self._low / 4
        power = 10.0 ** max(math.floor(math.log10(rough)) if rough else _LEAST_POWER, _LEAST_POWER)
        step = next(power * size for size in (1, 2, 5, 10) if power * size >= rough)
        first_tick = math.ceil(self._low / step)
        return [step * number for number in range(first_tick, math.floor(self._high / step) + 1)]


def curve(
    points: Points,
    kind: str,
    format_value: Callable[[float], str],
    marks: Sequence[Mark] = (),
    *,
    height: int = HEIGHT,
    has_zero: bool = True,
) -> str:
    """
    Return a chart over time: the median as a line, the range from lowest to highest as a band, *marks* as lines.

    Args:
        points: At least one.
        kind: The CSS class of the line.
        format_value: Formats a figure with its unit.
        marks: Marks to draw as vertical lines.
        height: The height of the chart, in pixels.
        has_zero: Whether the axis begins at zero even if all figures are far above it.
    """
    start, end = points[0][0], points[-1][0]
    start, end = min([start, *(mark.at_ns for mark in marks)]), max([end, *(mark.at_ns for mark in marks)])
    span = max(1, end - start)
    usual = sorted(one.median for _, one in points)[len(points) // 2]
    low, high = min(one.low for _, one in points), max(one.high for _, one in points)
    axis = Axis(low, high, usual, height, has_zero=has_zero)

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
    grid += "".join(
        f'<line class="grid" y1="0" y2="{height}" x1="{x:.1f}" x2="{x:.1f}"/>'
        for x in (across(at) for at, _ in words.clock_ticks(start, end))
    )
    lines = "".join(_mark(mark, across, height) for mark in _thinned(marks))
    peaks = "".join(_peak(across(at), axis.place(one.high), one, format_value, kind) for at, one in _peaks(points))
    labels = "".join(
        f'<span style="top:{100 * axis.place(tick) / height:.1f}%">{escaped(format_value(tick))}</span>'
        for tick in ticks
    )
    scale = ", logarithmic" if axis.is_log else ""
    times = [(across(at) / WIDTH, text) for at, text in words.clock_ticks(start, end)]
    steps = [(across(at) / WIDTH, f"{step:,}") for at, step in _step_ticks(points)]
    return (
        f'<div class="plot"><div class="y">{labels}</div>'
        f'<svg viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" style="height:{height}px" role="img" '
        f'aria-label="{kind} over time{scale}">{grid}{lines}<path class="band" d="{band}"/>'
        f'<path class="{kind}" d="{line}"/>{peaks}</svg>'
        f"{_ticks('step', steps)}{_ticks('time', times)}</div>"
    )


def _step_ticks(points: Points) -> list[tuple[int, int]]:
    """Return up to eight times at which steps with round numbers had ended, and these numbers; empty without steps."""
    known = [(at, one) for at, one in points if one.last_step >= 0]
    if len(known) < 2:  # noqa: PLR2004
        return []
    low, high = min(one.first_step for _, one in known), max(one.last_step for _, one in known)
    rough = max(1.0, (high - low) / 6)
    power = 10 ** math.floor(math.log10(rough))
    size = int(next(power * step for step in (1, 2, 5, 10) if power * step >= rough))
    found, due = [], -(-low // size) * size
    for at, one in known:
        if one.last_step >= due:
            due = one.last_step // size * size
            found.append((at, due))
            due += size
    return found


def _ticks(name: str, ticks: Sequence[tuple[float, str]]) -> str:
    """Return the labels of a horizontal axis, each at its share of the width."""
    if not ticks:
        return ""
    placed, last = "", -1.0
    for share, text in ticks:
        if share - last >= _LEAST_GAP:
            # Labels must not overlap on a phone, where every second one is hidden.
            edge = " first" if share < _EDGE else " last" if share > 1 - _EDGE else ""
            placed += f'<span class="tick{edge}" style="left:{100 * share:.2f}%">{escaped(text)}</span>'
            last = share
    return f'<div class="axis">{name}</div><div class="ticks">{placed}</div>'


def _stretches(points: Points) -> list[Points]:
    """Split *points* where nothing happened for long: a line across such a gap would suggest that something did."""
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


def _peak(x: float, y: float, one: Bin, format_value: Callable[[float], str], kind: str) -> str:
    text = f"{format_value(one.high)}: step {one.high_step}, rank {one.high_rank}"
    return f'<path class="{kind}" d="M{x - 3:.1f} {y:.1f}h6"><title>{escaped(text)}</title></path>'


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
    """Return a map of scores by section and, from left to right, rank; a cell of several ranks shows the worst."""
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
        # The width is a little above 1, so that no seams show between cells.
        cells.append(f'<rect class="{look}" x="{column}" width="1.03" height="1"><title>{escaped(text)}</title></rect>')
    return f'<svg viewBox="0 0 {len(columns)} 1" preserveAspectRatio="none" role="img">{"".join(cells)}</svg>'


def shade(score: object) -> str:
    """Return the CSS class of a score's shade."""
    if not isinstance(score, float):
        return "s-"
    return f"s{sum(score >= bound for bound in SHADES)}"


def spark(points: Points) -> str:
    """Return the course of a counter as a small line."""
    if len(points) < 2:  # noqa: PLR2004
        return ""
    values = [one.median for _, one in points]
    low, high = min(values), max(values)
    height = high / 2 - low / 2  # halved, because the difference may exceed the largest float
    start, span = points[0][0], max(1, points[-1][0] - points[0][0])
    placed = [
        f"{120 * (at - start) / span:.1f} {21 - 20 * ((value / 2 - low / 2) / height) if height else 11:.1f}"
        for (at, _), value in zip(points, values, strict=True)
    ]
    return (
        f'<svg class="spark" viewBox="0 0 120 22" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="loss" d="M{"L".join(placed)}"/></svg>'
    )


_MOST_ATTEMPTS: Final = 40
_MOST_ROWS: Final = 40
_MOST_TEXT: Final = 160
_LEAST_SHARE: Final = 0.0005
"""A smaller share would be shown as 0.0 %, and is left out."""
_MOST_PARTS: Final = 12
# The page may run nothing and fetch nothing, whatever a log contains.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def report_page(report: Report) -> str:
    """Return *report* as one HTML page, to be opened from disk."""
    return html_page(f"{report.session}: trackside report", _body(report))


def html_page(title: str, parts: Iterable[str]) -> str:
    """Return a page with this *title* and, one below the other, the *parts* that are not empty."""
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<title>{escaped(title)}</title>\n<style>{_style()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _style() -> str:
    return STYLE.strip()


def _body(report: Report) -> Iterator[str]:
    yield _header(report)
    yield _verdict(report)
    yield _figures(report)
    yield _goodput(report)
    yield _steps(report)
    yield _heatmap(report)
    yield _parts(report)
    yield _spans(report)
    yield _counters(report)
    yield _own(report)
    yield _config(report)
    yield _losses(report)
    yield _ranks(report)
    zone = words.clock(report.goodput.start_ns)[19:]
    yield (
        f"<footer>Made by trackside {escaped(__version__)} from {words.plural(report.events, 'event')} of "
        f"{words.plural(len(report.runs), 'run')}. Times are {'UTC' if zone == 'Z' else f'in UTC{zone}'}.</footer>"
    )


def section(name: str, title: str, content: str, note: str = "") -> str:
    footnote = f'<p class="note">{escaped(note)}</p>' if note else ""
    return f'<section id="{name}"><h2>{escaped(title)}</h2>{content}{footnote}</section>'


def _header(report: Report) -> str:
    result = report.goodput
    parts = [
        report.application,
        f"{words.plural(report.ranks_total, 'rank')} on {words.plural(report.hosts, 'host')}",
        words.plural(len(report.attempts), "attempt"),
        report.outcome,
        f"{words.clock(result.start_ns)} to {words.clock(result.end_ns)}",
        *report.perf_tags[:3],
    ]
    others = ""
    if report.others:
        others = f"<p>The latest of {len(report.others) + 1} sessions in these logs.</p>"
    return (
        f"<header><h1>{escaped(report.session)}</h1>"
        f"<p>{escaped(' · '.join(part for part in parts if part))}</p>{others}</header>"
    )


def _verdict(report: Report) -> str:
    verdict = report.verdict
    items = "".join(_finding(finding, is_headline=not place) for place, finding in enumerate(verdict.findings))
    return (
        f'<section id="verdict" class="{verdict.state}">'
        f'<p class="headline">{escaped(verdict.headline)}</p><p class="summary">{escaped(verdict.summary)}</p>'
        f"{f'<ol>{items}</ol>' if items else ''}</section>"
    )


def _finding(finding: Finding, *, is_headline: bool) -> str:
    """Return a finding, without its title if that is the headline of the page."""
    title = "" if is_headline else escaped(finding.title)
    evidence = "".join(f"<li>{escaped(line)}</li>" for line in finding.evidence)
    advice, command = finding.advice
    pasted = f"<code>{escaped(command)}</code>" if command else ""
    return (
        f'<li><div class="title"><span class="kind">{escaped(finding.kind)}</span>{title}</div>'
        f'<ul>{evidence}</ul><p class="look">{escaped(advice)}{pasted}</p></li>'
    )


def _figures(report: Report) -> str:
    result, times = report.goodput, report.step_time
    whose = times.whose(report.ranks_total)
    figures = [
        (words.percent(result.goodput), "goodput"),
        (words.seconds(result.elapsed_s), "elapsed"),
        (words.seconds(times.p50_s), f"step time{whose}, p50"),
        (words.seconds(times.p99_s), f"step time{whose}, p99"),
        ("–" if result.last_step is None else f"{result.last_step:,}", "last step"),
        (f"{result.disruptions:,}", "restarts"),
    ]
    for rate, unit in ((report.samples_per_s, "samples/s"), (report.tokens_per_s, "tokens/s")):
        if rate:
            figures.append((words.amount(float(f"{rate:.3g}")), unit))
    may_be_more = report.losses.unwritten or report.missing_ranks
    figures.append((f"{report.losses.total:,}", "events known lost" if may_be_more else "events lost"))
    cells = "".join(f"<div><b>{escaped(value)}</b><span>{escaped(name)}</span></div>" for value, name in figures)
    return f'<div class="figures">{cells}</div>'


def _goodput(report: Report) -> str:
    bars = report.attempts[-_MOST_ATTEMPTS:]
    totals: dict[str, float] = {}
    for bar in report.attempts:
        for name, length in bar.buckets_s.items():
            totals[name] = totals.get(name, 0.0) + length
    whole = sum(totals.values()) or 1.0
    legend = "".join(
        f'<div><span><i style="{_colour(name)}"></i>{escaped(shown(name).name)}</span>'
        f'<b class="n">{words.percent(length / whole)}</b><span class="n">{words.seconds(length)}</span>'
        f'<span class="dim">{escaped(shown(name).meaning)}</span></div>'
        for name, length in sorted(totals.items(), key=lambda item: (item[0] != PRODUCTIVE, -item[1]))
        if length / whole >= _LEAST_SHARE
    )
    note = f"The last {_MOST_ATTEMPTS} of {len(report.attempts)} attempts." if len(bars) < len(report.attempts) else ""
    note = " ".join(filter(None, [note, waited_words(report), *(bar.before_start for bar in bars)]))
    content = f'<div id="chart-goodput">{"".join(map(_bar, bars))}</div><div class="buckets">{legend}</div>'
    return section("goodput", "Where the time went", content, note)


def _colour(bucket: str) -> str:
    look = shown(bucket)
    return f"background:light-dark({look.light},{look.dark})"


def _bar(bar: AttemptBar) -> str:
    whole = sum(bar.buckets_s.values()) or 1.0
    pieces = "".join(
        f'<span style="flex:{length / whole:.6f} 0 0;{_colour(name)}" '
        f'title="{escaped(shown(name).name)}: {words.seconds(length)}, {words.percent(length / whole)}"></span>'
        for name, length in bar.buckets_s.items()
        if length > 0
    )
    took = words.duration(bar.end_ns - bar.start_ns)
    return (
        f'<div class="attempt"><div class="label">attempt {bar.number}<small>{words.percent(bar.goodput)} of {took}'
        f'</small></div><div class="bar">{pieces}</div></div>'
    )


def _steps(report: Report) -> str:
    if not report.steps:
        return section("steps", "Step time", '<p id="chart-steps" class="dim">No training step ended.</p>')
    kinds: dict[str, int] = {}
    for mark in report.marks:
        kinds[mark.kind] = kinds.get(mark.kind, 0) + 1
    legend = "".join(
        f'<li><i class="i-{escaped(kind)}"></i>{escaped(words.plural(count, kind))}</li>'
        for kind, count in kinds.items()
    )
    legend = (
        '<li><i class="i-curve"></i>median of all ranks</li><li><i class="i-band"></i>shortest to longest</li>' + legend
    )
    chart = curve(report.steps, "curve", words.duration, report.marks)
    content = f'<div id="chart-steps">{chart}</div><ul class="legend">{legend}</ul>'
    if report.losses_not_drawn:
        content += f'<p class="bad">{escaped(not_drawn_words(report))}</p>'
    if len(report.loss) > 1:
        course = f'<span class="dim">{escaped(loss_words(report))}</span>'
        content += (
            f"<h3>Training loss {course}</h3>{curve(report.loss, 'loss', words.amount, height=130, has_zero=False)}"
        )
    width = words.duration(report.step_width_ns)
    note = f"A point of the step time is the median of all steps that ended within {width}; the band spans them all."
    return section("steps", "Step time", content, note)


def _heatmap(report: Report) -> str:
    found = report.heatmap
    if report.ranks_total == 1:  # there is no other rank to compare it with
        return ""
    if found is None or not found.names:
        notice = "No sections were timed on more than one rank: nothing compares them."
        empty = f'<p id="chart-heatmap" class="dim">{notice}</p>'
        return section("ranks-map", "Slow ranks", empty)
    bounds = ["below 0.60", "below 0.75: slow", "below 0.85", "below 0.92", "below 0.97", "the fastest"]
    assert len(bounds) == len(SHADES) + 1
    legend = "".join(f'<li><i class="s{place}"></i>{bound}</li>' for place, bound in enumerate(bounds))
    rows = [
        (f"{one.rank}", one.node, one.what if one.what == one.where else f"{one.what}, {one.where}",
         words.duration(one.lateness_ns), f"{'about ' if one.began else ''}{one.since_step} to {one.until_step}",
         words.seconds(one.lost_s))
        for one in report.late[:12]
    ]  # fmt: skip
    table = rows_table(
        ("rank", "host", "slow in", "late, a step", "steps", "lost"), rows, numbers="rank late lost", optional="host"
    )
    content = f'<div id="chart-heatmap">{heat(found)}</div><ul class="legend">{legend}</ul>{table and "<br>" + table}'
    return section(
        "ranks-map",
        "Slow ranks",
        content,
        f"Shown: {found.basis}. A score is the fastest rank's time over the rank's own.",
    )


def _parts(report: Report) -> str:
    if not report.parts:
        return ""
    shown_parts = [part for part in report.parts[:_MOST_PARTS] if part.share >= _LEAST_SHARE]
    rows = "".join(
        f'<div class="part"><span>{escaped(part.name)} <span class="dim">{escaped(part.kind)}</span></span>'
        f'<span class="track"><i style="width:{100 * part.share:.1f}%"></i></span>'
        f'<span class="num">{words.duration(part.mean_ns)} · {words.percent(part.share)}</span></div>'
        for part in shown_parts
    )
    shorter = report.parts[len(shown_parts) :]
    rest = sum(part.share for part in shorter)
    if rest >= _LEAST_SHARE:
        rows += (
            f'<div class="part"><span>{len(shorter)} shorter ones</span><span class="track">'
            f'<i style="width:{100 * rest:.1f}%"></i></span><span class="num">{words.percent(rest)}</span></div>'
        )
    return section("parts", "What a step is made of", rows, f"Together {whole_step_words(report)}.")


_WHOLE: Final = "rank step count failed score state"
"""Columns whose cells are never wrapped: numbers and words that are short, whatever names a job uses."""


def rows_table(
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: str = "",
    optional: str = "",
    most: int = _MOST_ROWS,
) -> str:
    """Return a table of the first *most* rows, without the columns that are empty in every row."""
    if not rows:
        return ""
    kept = [place for place in range(len(names)) if any(row[place] not in {"", words.NOTHING} for row in rows)]
    names, rows = [names[place] for place in kept], [[row[place] for place in kept] for row in rows]
    kinds = (("n", numbers), ("opt", optional), ("whole", _WHOLE), ("name", "span metric field"))
    looks = [" ".join(look for look, own in kinds if name in own.split()) for name in names]
    head = "".join(f'<th class="{look}">{escaped(name)}</th>' for name, look in zip(names, looks, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{look}">{cell}</td>' for cell, look in zip(row, looks, strict=True)) + "</tr>"
        for row in ([_cell(cell) for cell in row] for row in rows[:most])
    )
    more = f'<p class="note">The first {most} of {len(rows):,}.</p>' if len(rows) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


class Markup(str):
    """Markup made by this package, which is not escaped."""

    __slots__ = ()


def _cell(cell: str) -> str:
    return cell if isinstance(cell, Markup) else escaped(cell)


def _spans(report: Report) -> str:
    rows = [
        (row.name, f"{row.count:,}", words.duration(row.total_ns), words.duration(row.total_ns / max(1, row.count)),
         words.duration(row.max_ns), f"{row.failed:,}" if row.failed else "")
        for row in report.spans
    ]  # fmt: skip
    names = ("span", "count", "total", "mean", "longest", "failed")
    content = rows_table(names, rows, numbers="count total mean longest failed", optional="count failed longest")
    if report.open:
        opened = [
            (str(row.rank), row.name, words.duration(row.seen_ns - row.start_ns), words.clock(row.start_ns))
            for row in report.open
        ]
        table = rows_table(("rank", "span", "for", "since"), opened, numbers="rank for", optional="since")
        content += f"<h3>Open when last heard of</h3>{table}"
    if report.errors:
        errors = [
            (str(row.rank), str(row.step) if row.step >= 0 else "", row.name, row.error[:300]) for row in report.errors
        ]
        content += f"<h3>Errors</h3>{rows_table(('rank', 'step', 'span', 'error'), errors, numbers='rank step')}"
    return section("spans", "Spans", content) if content else ""


def _counters(report: Report) -> str:
    rows = [
        (row.name, words.amount(row.last, row.unit),
         words.amount(row.minimum, row.unit), words.amount(row.maximum, row.unit), Markup(spark(row.level)))
        for row in report.counters if row.count
    ]  # fmt: skip
    table = rows_table(("metric", "last", "min", "max", "trend"), rows, numbers="last min max", optional="min max")
    return section("counters", "Metrics", table) if table else ""


def _own(report: Report) -> str:
    """Return the events that the job declared itself, with their fields; numbers are shown like metrics."""
    content = ""
    for row in report.own:
        step = f", step {row.last_step:,}" if row.last_step >= 0 else ""
        seen = f"{row.count:,} on {words.plural(row.ranks, 'rank')}; the last at {words.clock(row.last_ns)}{step}"
        fields = [
            (name, words.amount_of(name, value) if points else str(value)[:_MOST_TEXT],
             words.amount_of(name, min(one.low for _, one in points)) if points else "",
             words.amount_of(name, max(one.high for _, one in points)) if points else "", Markup(spark(points)))
            for name, value in row.last.items()
            for points in [row.levels.get(name, [])]
        ]  # fmt: skip
        table = rows_table(("field", "last", "min", "max", "trend"), fields, numbers="min max", optional="min max")
        content += f'<h3>{escaped(row.name)} <span class="dim">{escaped(seen)}</span></h3>{table}'
    return section("own", "Events of the job's own", content) if content else ""


def _config(report: Report) -> str:
    rows = [(name, str(value)[:_MOST_TEXT]) for name, value in report.config.items()]
    return section("config", "Hyper-parameters", rows_table(("name", "value"), rows)) if rows else ""


def _losses(report: Report) -> str:
    losses = report.losses
    bound = lost_words(report) if losses.unwritten or report.missing_ranks else ""
    unwritten = sum(one.steps for one in losses.unwritten)
    rows = [
        ("steps that may be in no log, if they took as long as those before", unwritten, bound),
        ("ranks without a log", len(report.missing_ranks), words.ranges(report.missing_ranks, most=8)),
        ("events dropped for lack of room", sum(losses.dropped.values()), ", ".join(sorted(losses.dropped))),
        ("events in none of these files", losses.missing, ""),
        ("bytes damaged and passed over", losses.damaged_bytes, ""),
        ("events that could not be recorded", losses.invalid, ""),
        ("calls of handlers that raised", losses.failed, ", ".join(sorted(losses.suspended))),
        ("windows too late to be scored", losses.too_late, ""),
        ("files that could not be read", len(losses.unread), "; ".join(losses.unread[:5])),
    ]
    body = "".join(
        f'<tr><td>{escaped(what)} <span class="dim">{escaped(detail)}</span></td><td class="n bad">{count:,}</td></tr>'
        for what, count, detail in rows
        if count
    )
    body += "".join(f"<tr><td>{escaped(text)}</td><td></td></tr>" for text in limited_words(report))
    content = f"<table><tbody>{body}</tbody></table>" if body else '<p class="ok">Nothing that is known of.</p>'
    return section("losses", "What is missing", content)


def _ranks(report: Report) -> str:
    rows = [
        (str(row.rank), row.host, row.state, row.reason, f"{row.last_step:,}" if row.last_step >= 0 else "–",
         words.duration(row.mean_step_ns), words.clock(row.last_ns))
        for row in report.ranks
    ]  # fmt: skip
    names = ("rank", "host", "state", "how", "last step", "mean step", "last heard of")
    table = rows_table(names, rows, numbers="rank", optional="how host")
    note = "Those that did not end, are behind or are slow come first." if len(rows) > 1 else ""
    return section("ranks", "Ranks of the last attempt", table, note) if table else ""
