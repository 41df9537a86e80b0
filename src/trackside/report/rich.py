"""Reports and the live view in a terminal."""

from __future__ import annotations

import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trackside.core import text as words
from trackside.report._plain_text import cells, chart, pipe_width, report_lines, spark
from trackside.report._report import PRODUCTIVE, Report
from trackside.report._report import shown as bucket
from trackside.report._top import RankNow, TopView
from trackside.report._whatif import OUTSIDE


def make_console(*, width: int | None = None, file: Any = None) -> Console:
    """Return a console on *file*, stdout unless given; without *width*, as wide as its terminal or as `pipe_width`."""
    file = file or sys.stdout
    console = Console(file=file, highlight=False, markup=False, emoji=False, width=width)
    if width is None and not console.is_terminal:
        console = Console(file=file, highlight=False, markup=False, emoji=False, width=pipe_width())
    console.on_broken_pipe = _end
    return console


def _end() -> None:
    raise BrokenPipeError  # rich would exit with an error, but the reader only stopped reading


def print_report(report: Report, console: Console | None = None, *, is_explained: bool = False) -> None:
    """Print *report*: the verdict, then its evidence."""
    console = console or make_console()
    for line in report_lines(report, console.width, is_explained=is_explained):
        console.print(Text.assemble(*line), soft_wrap=True)


def _text(text: str, style: str = "") -> Text:
    return Text(words.printable(text), style=style)


@contextmanager
def live_top(console: Console | None = None) -> Iterator[Callable[[TopView, ScreenState], None]]:
    """Take over the terminal; yield a function that draws a view in it."""
    console = console or make_console()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        def show(view: TopView, screen: ScreenState) -> None:
            live.update(_top(view, console.width, console.height, screen), refresh=True)

        yield show


def print_top(view: TopView, console: Console | None = None) -> None:
    """Print one view."""
    console = console or make_console()
    console.print(_top(view, console.width, max(24, len(view.rows) + 24)))


def top_svg(view: TopView, *, width: int = 80, height: int = 24, title: str = "trackside top") -> str:
    """Return an SVG of *view* as a terminal of that size would show it."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(_top(view, width, height, ScreenState()))
    # The fonts are removed, because a browser would load them from another site.
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)


_ORDERS: Final[dict[str, Callable[[RankNow], float]]] = {
    "rank": lambda one: one.rank,
    "step": lambda one: one.step,
    "step time": lambda one: -(one.step_ns or 0),
    "age": lambda one: -(one.age_s or 0),
}
SORTS: Final = tuple(_ORDERS)
"""The columns that ranks can be sorted by: the first by number, the others with the worst rank first."""


@attrs.frozen
class ScreenState:
    """The state of a view that keys change."""

    sort: str = SORTS[0]
    is_paused: bool = False
    where: str = "–"
    """The place from which the view is read; it is shown until the first event of a rank comes."""


def _top(view: TopView, width: int, height: int, screen: ScreenState | None = None) -> RenderableType:
    """Return *view* in at most *height* lines; if *screen* is given, the last line shows the keys that change it."""
    if not view.session:
        return _text(f"waiting for the first event of a rank in {(screen or ScreenState()).where} …  q quit")
    lines: list[RenderableType] = [
        _head(view, width),
        _step_line(view, width),
        *_rates(view, width),
        *_goodput(view, width),
    ]
    lost = Text()  # without a style of its own, which would apply to the keys too
    lost.append_text(_text(f"lost {view.lost:,}", "bold red" if view.lost else "green"))
    if view.suspended:
        lost.append_text(_text(f"   suspended: {', '.join(view.suspended)}", "bold red"))
    if screen is not None:
        state = "PAUSED  " if screen.is_paused else ""
        lost.append_text(_text(f"   {state}q quit  p pause  s sort", "bold" if screen.is_paused else "dim"))
    sort = (screen or ScreenState()).sort
    blocks: list[tuple[str, Sequence[str], list[tuple[str, ...]]]] = [
        (
            f"findings{_since(view, 'ScoreAggregator')}",
            (),
            [
                (line,)
                for one in view.worst
                for line in textwrap.wrap(
                    f"rank {one.rank} on {one.host}: {one.why}", max(width, 20), subsequent_indent="  "
                )
            ],
        ),
        ("ranks" if sort == SORTS[0] else f"ranks by {sort}", *_ranks(view, sort, width)),
        (
            f"open spans{_since(view, 'OpenSpans')}",
            (),
            [(f"rank {one.rank}", one.name, words.duration(max(0, view.at_ns - one.since_ns))) for one in view.open],
        ),
        (
            f"counters{_since(view, 'CounterBoard')}",
            (),
            [
                (
                    one.name,
                    f"total {words.amount(one.total)}" if one.level is None else words.amount(one.level, one.unit),
                )
                for one in view.counters
            ],
        ),
    ]
    parts = ("parts of a step", *_parts(view, sort, width))
    if len(lines) + 2 + sum(1 + bool(names) + len(rows) for _, names, rows in (*blocks, parts) if rows) <= height:
        blocks.insert(2, parts)
    blocks = [block for block in blocks if block[2]]
    # The first blocks matter most: the last ones are left out if not every block can have a line.
    room = height - len(lines) - 2
    while blocks and room < sum(2 + bool(names) for _, names, _ in blocks):
        blocks.pop()
    room -= sum(1 + bool(names) for _, names, _ in blocks)
    shares = _shared(room, [len(rows) for _, _, rows in blocks])
    for (name, names, rows), share in zip(blocks, shares, strict=True):
        more = f", {share} of {len(rows)}" if share < len(rows) else ""
        lines.append(_text(f"{name}{more}", "bold underline"))
        table = Table.grid(padding=(0, 2))
        for place in range(len(names or rows[0])):
            table.add_column(justify="right" if names and names[place] not in {"host", "state"} else "left")
        for row in [names, *rows[:share]] if names else rows[:share]:
            style = "dim" if row is names else "red" if {"died", "silent"} & set(row) else ""
            table.add_row(*(Text(words.printable(cell), style, overflow="ellipsis", no_wrap=True) for cell in row))
        lines.append(table)
    used = sum(1 if isinstance(line, Text) else line.row_count for line in lines)
    lines += _history(view, width, height - used - 1)
    return Group(*(_cut(line, width) for line in [*lines[: height - 1], lost]))


def _cut(line: RenderableType, width: int) -> RenderableType:
    if isinstance(line, Text):
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return line


def _head(view: TopView, width: int) -> Text:
    error = next((one.error for one in view.rows if one.error), "")
    state = f"{view.alive} of {words.plural(view.ranks, 'rank')} alive"
    if view.has_ended:
        state = f"ended by {error}" if error else "ended"
    style = "green" if (view.has_ended and not error) or view.alive >= view.ranks else "bold red"
    head = _text(f"{view.session}  {view.application}".rstrip(), "bold")
    # The name of a run without a tag is a long id, so it is cut to make room for the state.
    head.truncate(max(8, width - len(state) - 2), overflow="ellipsis")
    head.append_text(_text(f"  {state}", style))
    if view.behind_s is not None:
        ago = f"{words.seconds(max(0.0, view.behind_s))} ago"
        age = f"  {ago}" if view.has_ended else f"  newest event {ago}"
        if len(head) + len(age) <= width:
            head.append_text(_text(age, "dim"))
    return head


def _step_line(view: TopView, width: int) -> Text:
    rate = words.NOTHING if view.steps_per_s is None else f"{view.steps_per_s:.3g}"
    line = _text(f"step {view.step:,}  " if view.step >= 0 else "no step yet  ")
    if view.is_stale and not view.has_ended:  # the last rate is out of date
        ago = words.seconds(view.rate_age_s)
        line.append_text(_text(f"no step for {ago}; before {rate} steps/s", "bold red"))
    else:
        at_end = " at the end" if view.has_ended else ""
        line.append_text(_text(f"{rate} steps/s{at_end}  {words.duration(view.step_ns)} a step  "))
        line.append(spark(view.lengths_ns, max(0, width - len(line) - 2)), style="green")
    return line


def _rates(view: TopView, width: int) -> Iterator[Text]:
    """Yield a line with loss, throughput and remaining time, as far as they are known."""
    known = [
        ("tokens/s", None if view.tokens_per_s is None else words.amount(float(f"{view.tokens_per_s:.3g}"))),
        ("MFU", None if view.mfu is None else words.percent(view.mfu)),
        ("left", None if view.eta_s is None or view.has_ended else words.seconds(view.eta_s)),
    ]
    rest = "".join(f"  {name} {value}" for name, value in known if value is not None)
    if not view.losses:
        if rest:
            yield _text(rest[2:])
        return
    line = _text(f"loss {words.amount(view.losses[-1])}  ")
    line.append(spark(view.losses, max(0, width - len(line) - len(rest))), style="green")
    line.append(rest)
    yield line


def _ranks(view: TopView, sort: str, width: int) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the names of the columns and a row for each rank."""
    names = ("rank", "state", "step", "a step", "last step", "loss", "GPU", "CPU", "memory", "host")
    rows = [
        (str(one.rank), one.state, f"{one.step:,}" if one.step >= 0 else words.NOTHING, words.duration(one.step_ns),
         words.NOTHING if one.age_s is None else f"{words.seconds(one.age_s)} ago",
         words.amount(one.loss), words.percent(one.gpu, 0), words.percent(one.cpu, 0),
         words.amount(one.memory, "By"), one.host)
        for one in sorted(view.rows, key=_ORDERS[sort])
    ]  # fmt: skip
    return _fitting(names, rows, width)


def _parts(view: TopView, sort: str, width: int) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return column names and, for each rank in the order of the ranks' table, a row with the parts of its steps."""
    names = [name for name in dict.fromkeys(name for one in view.rows for name in one.parts) if name != OUTSIDE]
    if not names:
        return (), []
    rows = [
        (str(one.rank), *(words.duration(one.parts.get(name)) for name in (*names, OUTSIDE)))
        for one in sorted(view.rows, key=_ORDERS[sort])
    ]
    return _fitting(["rank", *names, "rest"], rows, width)


def _fitting(
    names: Sequence[str], rows: Sequence[tuple[str, ...]], width: int
) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Return the table without the columns that are empty or do not fit into *width*."""
    kept, used = [], 0
    for place, name in enumerate(names):
        if any(row[place] not in {"", words.NOTHING} for row in rows):
            used += 2 + max(len(name), *(len(row[place]) for row in rows))
            if used <= width + 2:
                kept.append(place)
    return tuple(names[place] for place in kept), [tuple(row[place] for place in kept) for row in rows]


def _history(view: TopView, width: int, height: int) -> Iterator[Text]:
    """Yield the curves over the whole job and the latest events, as far as *height* lines have room."""
    count = max(0, min(len(view.happened), _MOST_HAPPENED, height // 3 - 1))
    height -= count + 1 if count else 0
    curves = [
        (name, curve, low, shows)
        for name, curve, low, shows in (
            ("step time", view.step_curve, 0.0, words.duration),
            ("loss", view.loss_curve, None, words.amount),
        )
        if curve is not None and len(curve.values) > 1
    ][: max(0, height // (1 + _LEAST_CHART))]
    for name, curve, low, shows in curves:
        yield _text(f"{name}, steps {curve.first_step:,} to {curve.last_step:,}", "bold underline")
        drawn = chart(curve.values, width - _LABEL, min(_MOST_CHART, height // len(curves) - 1), low=low)
        for place, line in enumerate(drawn.lines):
            label = shows(drawn.high) if place == 0 else shows(drawn.low) if line is drawn.lines[-1] else ""
            yield Text.assemble((f"{label[: _LABEL - 1]:>{_LABEL - 1}} ", "dim"), (line, "green"))
    if count:
        yield _text("recent events", "bold underline")
    for one in view.happened[:count]:
        yield _text(f"{words.clock(one.at_ns, has_ms=True)[11:19]}  rank {one.rank}  {one.text}")


_LABEL: Final = 10
"""The room for the values beside a curve."""
_LEAST_CHART: Final = 3
_MOST_CHART: Final = 12
_MOST_HAPPENED: Final = 8


def _since(view: TopView, model: str) -> str:
    """Return a remark if the figures of *model* began when this view attached; empty if they cover the whole job."""
    return " since attached" if model in view.partial else ""


def _shared(room: int, wanted: Sequence[int]) -> list[int]:
    """Return how many of *room* lines each block gets; lines that a block does not need go to the others."""
    shares = [0] * len(wanted)
    while room > 0 and any(share < want for share, want in zip(shares, wanted, strict=True)):
        for place, want in enumerate(wanted):
            if shares[place] < want and room > 0:
                shares[place] += 1
                room -= 1
    return shares


def _goodput(view: TopView, width: int) -> Iterator[Text]:
    """Yield a bar of the buckets of time, and its legend."""
    since = _since(view, "GoodputAccumulator") or f" of {words.seconds(view.elapsed_s)}"
    line = _text(f"goodput {words.percent(view.goodput)}{since}  ")
    parts = [(PRODUCTIVE, view.goodput or 0.0), *view.badput]
    left = max(0.0, 1.0 - sum(share for _, share in parts))
    room = max(5, min(100, width - len(line)))
    for (name, _), size in zip([*parts, ("OTHER", left)], cells([*(s for _, s in parts), left], room), strict=True):
        # Without colours the productive part still differs from the rest.
        line.append(("█" if name == PRODUCTIVE else "▒") * size, style=bucket(name).terminal)
    yield line
    names = Text()
    for name, share in [(PRODUCTIVE, view.goodput or 0.0), *view.badput]:
        text = f"{words.printable(bucket(name).name)} {words.percent(share)}"
        if share < _LEAST_SHARE:
            continue
        if names and len(names) + len("  █ ") + len(text) > width:
            yield names
            names = Text()
        names.append("  " if names else "")
        names.append("█ " if name == PRODUCTIVE else "▒ ", style=bucket(name).terminal)
        names.append(text)
    yield names


_LEAST_SHARE: Final = 0.001
