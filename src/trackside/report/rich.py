"""Reports and the live view in a terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trackside.core import text as words
from trackside.report._report import PRODUCTIVE, Report, shown
from trackside.report._text import cells, report_lines, spark
from trackside.report._top import TopView

_WIDTH: Final = 100
"""Where there is no terminal to say how wide it is."""


def make_console(*, width: int | None = None, file: Any = None) -> Console:
    """Return a console on *file*, stdout unless given; 100 columns wide where it is no terminal."""
    file = file or sys.stdout
    console = Console(file=file, highlight=False, markup=False, emoji=False, width=width)
    if width is None and not console.is_terminal:
        console = Console(file=file, highlight=False, markup=False, emoji=False, width=_WIDTH)
    return console


def print_report(report: Report, console: Console | None = None, *, is_explained: bool = False) -> None:
    """Print *report*: the verdict, then what it rests on."""
    console = console or make_console()
    for line in report_lines(report, console.width, is_explained=is_explained):
        console.print(Text.assemble(*line), soft_wrap=True)


def _text(text: str, style: str = "") -> Text:
    return Text(words.printable(text), style=style)


@contextmanager
def live_top(console: Console | None = None) -> Iterator[Callable[[TopView], None]]:
    """Take over the terminal; yield what draws a view in it."""
    console = console or make_console()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        def show(view: TopView) -> None:
            live.update(_top(view, console.width, console.height), refresh=True)

        yield show


def print_top(view: TopView, console: Console | None = None) -> None:
    """Print one view."""
    console = console or make_console()
    console.print(_top(view, console.width, 24))


def top_svg(view: TopView, *, width: int = 80, height: int = 24, title: str = "trackside top") -> str:
    """Return *view* as a terminal of that size would show it, as an SVG."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(_top(view, width, height))
    # The fonts would be fetched from elsewhere.
    return re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)


def _top(view: TopView, width: int, height: int) -> RenderableType:
    """Return the view, in at most *height* lines."""
    if not view.session:
        return _text("waiting for a job …", "dim")
    state = "ended" if view.has_ended else f"{view.alive} of {words.plural(view.ranks, 'rank')} alive"
    style = "green" if view.has_ended or view.alive >= view.ranks else "bold red"
    head = _text(f"{view.session}  {view.application}  ", "bold").append_text(_text(state, style))
    if view.behind_s is not None and not view.has_ended:
        head.append_text(_text(f"  newest event {words.seconds(max(0.0, view.behind_s))} ago", "dim"))
    rate = "–" if view.steps_per_s is None else f"{view.steps_per_s:.2f}"
    steps = _text(f"step {view.step:,}   {rate} steps/s   {words.duration(view.step_ns)} a step   ")
    steps.append(spark(view.lengths_ns, max(0, width - len(steps) - 2)), style="green")
    lines: list[RenderableType] = [head, steps, _goodput_line(view, width)]
    lost = _text(f"lost {view.lost:,}", "bold red" if view.lost else "green")
    if view.suspended:
        lost.append_text(_text(f"   set aside: {', '.join(view.suspended)}", "bold red"))
    blocks = [
        (
            f"worst ranks{_since(view, 'ScoreAggregator')}",
            [(f"rank {one.rank}", one.host, one.why) for one in view.worst],
        ),
        (
            f"open spans{_since(view, 'OpenSpans')}",
            [(f"rank {one.rank}", one.name, words.duration(max(0, view.at_ns - one.since_ns))) for one in view.open],
        ),
        (
            f"counters{_since(view, 'CounterBoard')}",
            [(one.name, words.amount(one.level, one.unit), f"Σ {one.total:.5g}") for one in view.counters],
        ),
    ]
    room = max(3, height - len(lines) - 2 - 2 * sum(bool(rows) for _, rows in blocks))
    shares = _shared(room, [len(rows) for _, rows in blocks])
    for (name, rows), share in zip(blocks, shares, strict=True):
        if rows:
            more = f", {share} of {len(rows)}" if share < len(rows) else ""
            lines.append(_text(f"{name}{more}", "bold underline"))
            table = Table.grid(padding=(0, 2))
            for row in rows[:share]:
                table.add_row(*(Text(words.printable(cell), overflow="ellipsis", no_wrap=True) for cell in row))
            lines.append(table)
    return Group(*lines, lost)


def _since(view: TopView, model: str) -> str:
    """Return what to add to what *model* says, if the job does not keep it and it began here."""
    return " since attached" if model in view.partial else ""


def _shared(room: int, wanted: Sequence[int]) -> list[int]:
    """Return how many of *room* lines each gets: what one does not need is the others'."""
    shares = [0] * len(wanted)
    while room > 0 and any(share < want for share, want in zip(shares, wanted, strict=True)):
        for place, want in enumerate(wanted):
            if shares[place] < want and room > 0:
                shares[place] += 1
                room -= 1
    return shares


def _goodput_line(view: TopView, width: int) -> Text:
    since = _since(view, "GoodputAccumulator") or f" of {words.seconds(view.elapsed_s)}"
    line = _text(f"goodput {words.percent(view.goodput)}{since}  ")
    most = ""
    if view.badput:
        name, share = view.badput[0]
        most = f"  {shown(name).name} {words.percent(share)}"
    room = max(5, min(30, width - len(line) - len(most) - 1))
    parts = [(PRODUCTIVE, view.goodput or 0.0), *view.badput]
    left = max(0.0, 1.0 - sum(share for _, share in parts))
    for (name, _), size in zip([*parts, ("OTHER", left)], cells([*(s for _, s in parts), left], room), strict=True):
        line.append("█" * size, style=shown(name).terminal)
    return line.append_text(_text(most, "dim"))
