"""Reports and the live view in a terminal."""

from __future__ import annotations

import io
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from trackside.views import _words as words
from trackside.views._buckets import PRODUCTIVE, shown
from trackside.views._report import Heatmap, Report
from trackside.views._top import TopView

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_MOST: Final = 10
_MOST_ATTEMPTS: Final = 20
_LEAST_SHARE: Final = 0.0005
"""A share that would be shown as 0.0 % is left out."""
_WIDTH: Final = 100
"""Where there is no terminal to say how wide it is."""
_SLOW: Final = 0.75


def make_console(*, width: int | None = None, file: Any = None) -> Console:
    """Return a console on *file*, stdout unless given; 100 columns wide where it is no terminal."""
    file = file or sys.stdout
    console = Console(file=file, highlight=False, markup=False, emoji=False, width=width)
    if width is None and not console.is_terminal:
        console = Console(file=file, highlight=False, markup=False, emoji=False, width=_WIDTH)
    return console


def print_report(report: Report, console: Console | None = None) -> None:
    """Print *report*: the verdict, then what it rests on."""
    console = console or make_console()
    for part in _sections(report, console.width):
        console.print(part)


def _text(text: str, style: str = "") -> Text:
    return Text(words.printable(text), style=style)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold underline")


def _sections(report: Report, width: int) -> Iterator[RenderableType]:
    yield _identity(report)
    yield _verdict(report)
    yield _heading("Where the time went")
    yield from _attempts(report, width)
    if report.steps:
        yield _heading("Step time")
        yield from _steps(report, width)
    if report.parts:
        yield _heading("What a step is made of")
        yield _parts(report)
    if report.heatmap is not None and report.heatmap.names:
        yield _heading("Slow ranks")
        yield from _stragglers(report.heatmap, report)
    yield from _tables(report)
    yield _heading("What is missing")
    yield from (Text("  ").append_text(line) for line in _losses(report))


def _identity(report: Report) -> Text:
    ranks = f"{words.plural(report.ranks_total, 'rank')} on {words.plural(report.hosts, 'host')}"
    state = {"ended": "ended", "died": "died", "unknown": "running, or died"}[report.state]
    result = report.goodput
    told = _text(report.session, "bold")
    told.append_text(
        _text(f"  {report.application}  {ranks}, {words.plural(len(report.attempts), 'attempt')}, {state}")
    )
    told.append("\n")
    told.append_text(
        _text(
            f"{words.clock(result.start_ns)} to {words.clock(result.end_ns)}, {words.seconds(result.elapsed_s)}, "
            f"{words.plural(report.events, 'event')}"
        )
    )
    if report.others:
        names = ", ".join(report.others[-3:])
        told.append("\n")
        told.append_text(_text(f"of {len(report.others) + 1} sessions the latest; --session shows others: {names}"))
    return told


def _verdict(report: Report) -> Panel:
    verdict = report.verdict
    lines: list[RenderableType] = [] if verdict.findings else [_text(verdict.headline, "bold green")]
    lines.append(_text(verdict.summary))
    for number, finding in enumerate(verdict.findings, 1):
        told = Text(f"\n{number}. ", style="bold").append_text(_text(f"[{finding.kind}] ", "cyan"))
        lines.append(told.append_text(_text(finding.title, "bold red" if number == 1 else "bold")))
        lines += [Padding(_text(f"· {line}", "dim"), (0, 0, 0, 3)) for line in finding.evidence]
        lines.append(Padding(Text("→ ", "bold").append_text(_text(finding.look)), (0, 0, 0, 3)))
    return Panel(
        Group(*lines), title="verdict", title_align="left", border_style="red" if verdict.findings else "green"
    )


def _attempts(report: Report, width: int) -> Iterator[RenderableType]:
    room = max(20, width - 28)
    names: dict[str, float] = {}
    for bar in report.attempts[-_MOST_ATTEMPTS:]:
        line = Text(f"  attempt {bar.number:<3} {words.percent(bar.goodput):>7}  ")
        for bucket, cells in zip(bar.buckets_s, _cells(list(bar.buckets_s.values()), room), strict=True):
            # Without colours the productive part is still told from the rest.
            line.append(("█" if bucket == PRODUCTIVE else "▒") * cells, style=shown(bucket).terminal)
        yield line
    for bar in report.attempts:
        for bucket, length in bar.buckets_s.items():
            names[bucket] = names.get(bucket, 0.0) + length
    whole = sum(names.values()) or 1.0
    table = Table.grid(padding=(0, 2))
    for bucket, length in sorted(names.items(), key=lambda item: (item[0] != PRODUCTIVE, -item[1])):
        look = shown(bucket)
        if length / whole < _LEAST_SHARE:
            continue
        table.add_row(
            Text("  █" if bucket == PRODUCTIVE else "  ▒", style=look.terminal),
            _text(look.name),
            Text(words.seconds(length), justify="right"),
            Text(words.percent(length / whole), justify="right"),
            _text(bucket, "dim"),
        )
    yield table


def _cells(lengths: Sequence[float], room: int) -> list[int]:
    """Return how many of *room* cells each of *lengths* gets: all of them together."""
    total = sum(lengths)
    if not total:
        return [0] * len(lengths)
    bounds, so_far = [0], 0.0
    for length in lengths:
        so_far += length
        bounds.append(round(room * so_far / total))
    return [after - before for before, after in itertools.pairwise(bounds)]


def _steps(report: Report, width: int) -> Iterator[RenderableType]:
    points = report.steps
    medians = [one.median for _, one in points]
    slowest = max((one for _, one in points), key=lambda one: one.high)
    times = report.goodput.step_time
    yield Text("  ").append(spark(medians, min(len(medians), width - 4)), style="green")
    yield _text(
        f"  p50 {words.seconds(times.p50_s)}, p90 {words.seconds(times.p90_s)}, p99 {words.seconds(times.p99_s)}; "
        f"the longest {words.duration(slowest.high)}: step {slowest.high_step} on rank {slowest.high_rank}"
    )
    rates = [
        f"{words.amount(round(rate, 1))} {unit}"
        for rate, unit in ((report.samples_per_s, "samples/s"), (report.tokens_per_s, "tokens/s"))
        if rate
    ]
    if rates:
        yield _text(f"  {', '.join(rates)} within steps")
    kinds: dict[str, int] = {}
    for mark in report.marks:
        kinds[mark.kind] = kinds.get(mark.kind, 0) + 1
    if kinds:
        yield _text("  " + ", ".join(words.plural(count, kind) for kind, count in kinds.items()), "dim")


def spark(values: Sequence[float], room: int) -> str:
    """Return *values* as a line of blocks of at most *room* characters."""
    if not values or room < 1:
        return ""
    size = max(1.0, len(values) / room)
    held = [
        max(values[int(at * size) : max(int(at * size) + 1, int((at + 1) * size))])
        for at in range(min(room, len(values)))
    ]
    low, high = min(held), max(held)
    # Of figures that hardly differ a picture would make mountains.
    low = min(low, high * 0.5) if high > 0 else low
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in held)


def _parts(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    for part in report.parts[:_MOST]:
        bar = "█" * round(part.share * 30)
        table.add_row(
            Text("  "),
            _text(part.name),
            Text(words.duration(part.mean_ns), justify="right"),
            Text(words.percent(part.share), justify="right"),
            Text(bar, style="cyan"),
            _text(part.kind, "dim"),
        )
    return table


def _stragglers(heatmap: Heatmap, report: Report) -> Iterator[RenderableType]:
    yield _text(f"  {heatmap.basis}; 1 is the fastest rank", "dim")
    worst = sorted(
        (min((score for column in heatmap.scores if (score := column[place]) is not None), default=2.0), place)
        for place in range(len(heatmap.ranks))
    )
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    table.add_column("rank", justify="right")
    table.add_column("host")
    for name in heatmap.names[:8]:
        table.add_column(_text(name), justify="right", overflow="fold")
    for _, place in worst[:_MOST]:
        cells = [_score(column[place]) for column in heatmap.scores[:8]]
        table.add_row(str(heatmap.ranks[place]), _text(heatmap.nodes[place]), *cells)
    yield table
    if len(worst) > _MOST:
        yield _text(f"  the worst {_MOST} of {words.plural(len(worst), 'rank')}", "dim")
    for one in report.slow[:3]:
        yield _text(
            f"  rank {one.rank} on {one.node}: {one.what}, down to {one.score:.2f} from step {one.since_step} to "
            f"{one.until_step}, {words.seconds(one.lost_s)} lost"
        )


def _score(score: float | None) -> Text:
    if score is None:
        return Text("–", style="dim")
    style = "bold red" if score < _SLOW else "yellow" if score < 0.9 else "green"  # noqa: PLR2004
    return Text(f"{score:.2f}", style=style)


def _tables(report: Report) -> Iterator[RenderableType]:
    if report.spans:
        yield _heading("Spans")
        rows = [
            (row.name, f"{row.count:,}", words.duration(row.total_ns), words.duration(row.total_ns / row.count),
             words.duration(row.max_ns), f"{row.failed:,}" if row.failed else "")
            for row in report.spans[:_MOST]
        ]  # fmt: skip
        yield _table(("span", "count", "total", "mean", "longest", "failed"), rows)
    if report.open:
        yield _heading("Open when last heard of")
        rows_open = [
            (str(row.rank), row.name, words.duration(row.seen_ns - row.start_ns)) for row in report.open[:_MOST]
        ]
        yield _table(("rank", "span", "for"), rows_open)
    if report.errors:
        yield _heading("Errors")
        rows_errors = [(str(row.rank), str(row.step), row.name, row.error[:200]) for row in report.errors[:_MOST]]
        yield _table(("rank", "step", "span", "error"), rows_errors)
    if report.counters:
        yield _heading("Counters")
        rows_counters = [
            (row.name, f"{row.count:,}", words.amount(row.mean, row.unit), words.amount(row.minimum, row.unit),
             words.amount(row.maximum, row.unit), spark([one.median for _, one in row.level], 20))
            for row in report.counters[:20]
        ]  # fmt: skip
        yield _table(("counter", "count", "mean", "min", "max", "over time"), rows_counters)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=True)
    numbers = {"count", "total", "mean", "longest", "failed", "min", "max", "for", "rank", "step"}
    for name in names:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _losses(report: Report) -> Iterator[Text]:
    losses = report.losses
    told = [
        (sum(losses.shed.values()), "event", "given up for lack of room"),
        (losses.missing, "event", "in none of these files"),
        (losses.damaged_bytes, "byte", "damaged and passed over"),
        (losses.invalid, "event", "that could not be recorded"),
        (losses.failed, "call", "of handlers that raised"),
        (losses.too_late, "window", "too late to be scored"),
    ]
    found = [f"{words.plural(count, noun)} {what}" for count, noun, what in told if count]
    found += [f"{name} was set aside {count} ×" for name, count in losses.rested.items()]
    found += list(losses.unread)
    for line in found:
        yield _text(line, "yellow")
    if not found:
        yield _text("nothing that is known of", "green")


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
    if view.rested:
        lost.append_text(_text(f"   set aside: {', '.join(view.rested)}", "bold red"))
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
    told = _text(f"goodput {words.percent(view.goodput)}{since}  ")
    most = ""
    if view.badput:
        name, share = view.badput[0]
        most = f"  {shown(name).name} {words.percent(share)}"
    room = max(5, min(30, width - len(told) - len(most) - 1))
    parts = [(PRODUCTIVE, view.goodput or 0.0), *view.badput]
    left = max(0.0, 1.0 - sum(share for _, share in parts))
    for (name, _), cells in zip([*parts, ("OTHER", left)], _cells([*(s for _, s in parts), left], room), strict=True):
        told.append("█" * cells, style=shown(name).terminal)
    return told.append_text(_text(most, "dim"))
