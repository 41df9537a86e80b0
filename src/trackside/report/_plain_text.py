"""A report as lines of styled text: a terminal shows the styles, a pipe only the text."""

from __future__ import annotations

import itertools
import math
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from trackside.core import text as words
from trackside.report._report import PRODUCTIVE, Finding, Heatmap, Report, shown
from trackside.report._verdict_rules import (
    explained,
    limited_words,
    loss_words,
    lost_words,
    not_drawn_words,
    waited_words,
    whole_step_words,
)
from trackside.report._whatif import since_words

Line = list[tuple[str, str]]
"""The pieces of a line: a text and the name of its style in rich, empty for no style."""

_PIPE_WIDTH: Final = 100
_MOST_COLUMNS: Final = 1000

BLOCKS: Final = "▁▂▃▄▅▆▇█"
_MOST: Final = 10
_MOST_ATTEMPTS: Final = 20
_MOST_SETTINGS: Final = 40
_LEAST_SHARE: Final = 0.0005
"""Smaller shares would be shown as 0.0 %, and are left out."""
_SLOW: Final = 0.75
_VERDICT_STYLES: Final = {"good": "bold green", "bad": "bold red", "running": "bold yellow"}
_NARROW: Final = 40
_MARKS: Final = {"end": "bad end"}
"""The words for kinds of marks that the kind alone does not explain."""
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|(?:ns|µs|ms|s|min|h|days?|[KMG]iB|steps?)\b))")


def pipe_width() -> int:
    """Return the width of lines that go to a pipe or a file, in columns: ``COLUMNS``, or 100."""
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isdecimal() and 0 < int(given) <= _MOST_COLUMNS else _PIPE_WIDTH


def report_lines(report: Report, width: int = 100, *, is_explained: bool = False) -> Iterator[Line]:
    """
    Yield *report* line by line: the verdict, then its evidence.

    Args:
        report: The report.
        width: The columns to use, 40 or more.
        is_explained: Whether to explain for each rule why it reported something or did not.
    """
    width = max(_NARROW, width)
    for line in _lines(report, width, is_explained=is_explained):
        yield [(words.printable(text), style) for text, style in line]


def _lines(report: Report, width: int, *, is_explained: bool) -> Iterator[Line]:
    yield from _identity(report, width)
    yield []
    yield from _verdict(report, width)
    if is_explained:
        yield from _heading("The rules, and why each found something or nothing")
        for line in explained(report.verdict.rulings):
            yield from _wrapped(line, width, "  ", " " * 25, "bold" if "  found  " in line else "")
    yield from _heading("Where the time went")
    yield from _attempts(report, width)
    if report.steps:
        yield from _heading("Step time")
        yield from _steps(report, width)
    if report.parts:
        yield from _heading("What a step is made of")
        yield from _parts(report)
    if report.heatmap is not None and report.heatmap.names:
        yield from _heading("Ranks compared")
        yield from _compared(report.heatmap, report, width)
    yield from _tables(report, width)
    yield from _heading("What is missing")
    yield from _losses(report, width)


def _heading(text: str) -> Iterator[Line]:
    yield []
    yield [(text, "bold underline")]


def _wrapped(text: str, width: int, first: str, rest: str, style: str = "") -> Iterator[Line]:
    """
    Yield *text* in lines. A word that is longer than a line, such as a path, is not broken, so that it can be pasted.

    A figure and its unit stay in one line.
    """
    wrapped = textwrap.wrap(
        _BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", words.printable(text)),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in wrapped:
        yield [(line.replace("\N{NO-BREAK SPACE}", " "), style)]


def _identity(report: Report, width: int) -> Iterator[Line]:
    ranks = f"{words.plural(report.ranks_total, 'rank')} on {words.plural(report.hosts, 'host')}"
    result = report.goodput
    facts = [report.application, ranks, words.plural(len(report.attempts), "attempt"), report.outcome]
    yield [(report.session, "bold"), (f"  {', '.join(fact for fact in facts if fact)}", "")]
    yield [
        (
            (
                f"{words.clock(result.start_ns)} to {words.clock(result.end_ns)}, {words.seconds(result.elapsed_s)}, "
                f"{words.plural(report.events, 'event')}"
            ),
            "",
        )
    ]
    if report.others:
        names = ", ".join(report.others[-3:])
        text = f"of {len(report.others) + 1} sessions the latest; --session shows others: {names}"
        yield from _wrapped(text, width, "", "")


def _verdict(report: Report, width: int) -> Iterator[Line]:
    verdict = report.verdict
    if not verdict.findings:
        yield [(verdict.headline, _VERDICT_STYLES[verdict.state])]
    yield from _wrapped(verdict.summary, width, "", "")
    for number, finding in enumerate(verdict.findings, 1):
        yield from _finding(number, finding, width)


def _finding(number: int, finding: Finding, width: int) -> Iterator[Line]:
    yield []
    style = "bold red" if number == 1 else "bold"
    yield from _wrapped(f"{number}. [{finding.kind}] {finding.title}", width, "", "   ", style)
    for text in finding.evidence:
        yield from _wrapped(f"· {text}", width, "   ", "     ", "dim")
    advice, command = finding.advice
    yield from _wrapped(f"→ {advice}", width, "   ", "     ")
    if command:  # in a line of its own, never broken
        yield [(f"     {command}", "cyan")]


def _attempts(report: Report, width: int) -> Iterator[Line]:
    room = max(20, width - 28)
    names: dict[str, float] = {}
    for bar in report.attempts[-_MOST_ATTEMPTS:]:
        line: Line = [(f"  attempt {bar.number:<3} {words.percent(bar.goodput):>7}  ", "")]
        for bucket, size in zip(bar.buckets_s, cells(list(bar.buckets_s.values()), room), strict=True):
            # Without colours the productive part still differs from the rest.
            line.append((("█" if bucket == PRODUCTIVE else "▒") * size, shown(bucket).terminal))
        yield line
    for bar in report.attempts:
        for bucket, length in bar.buckets_s.items():
            names[bucket] = names.get(bucket, 0.0) + length
    whole = sum(names.values()) or 1.0
    rows = [
        ("█" if bucket == PRODUCTIVE else "▒", shown(bucket).name, words.seconds(length), words.percent(length / whole),
         bucket)
        for bucket, length in sorted(names.items(), key=lambda item: (item[0] != PRODUCTIVE, -item[1]))
        if length / whole >= _LEAST_SHARE
    ]  # fmt: skip
    for row, line in zip(rows, table_lines((), rows, right={2, 3}), strict=True):
        line[0] = (line[0][0], shown(row[4]).terminal)
        line[-1] = (line[-1][0], "dim")
        yield line
    for note in (waited_words(report), *(bar.before_start for bar in report.attempts[-_MOST_ATTEMPTS:])):
        if note:
            yield from _wrapped(note, width, "  ", "  ")


def cells(lengths: Sequence[float], room: int) -> list[int]:
    """Return how many of *room* cells each of *lengths* gets; no cell is left over unless all lengths are 0."""
    total = sum(lengths)
    if not total:
        return [0] * len(lengths)
    bounds, so_far = [0], 0.0
    for length in lengths:
        so_far += length
        bounds.append(round(room * so_far / total))
    return [after - before for before, after in itertools.pairwise(bounds)]


def _steps(report: Report, width: int) -> Iterator[Line]:
    points = report.steps
    medians = [one.median for _, one in points]
    slowest = max((one for _, one in points), key=lambda one: one.high)
    times = report.step_time
    bars = sparks(medians, width - 4)
    yield [("  ", ""), (bars.lines[0], "green")]
    yield from _wrapped(
        f"p50 {words.seconds(times.p50_s)}, p90 {words.seconds(times.p90_s)}, p99 {words.seconds(times.p99_s)}"
        f"{times.whose(report.ranks_total)}; "
        f"the longest {words.duration(slowest.high)}: step {slowest.high_step} on rank {slowest.high_rank}; "
        f"the bars reach from {words.duration(bars.low)} to {words.duration(bars.high)}",
        width,
        "  ",
        "  ",
    )
    rates = [
        f"{words.amount(round(rate, 1))} {unit}"
        for rate, unit in ((report.samples_per_s, "samples/s"), (report.tokens_per_s, "tokens/s"))
        if rate
    ]
    if rates:
        yield [(f"  {', '.join(rates)}", "")]
    if len(report.loss) > 1:
        course = f"  loss {loss_words(report)}"
        bars = sparks([one.median for _, one in report.loss], min(40, width - 4))
        if len(course) + len(bars.lines[0]) + 2 <= width:
            yield [(f"{course}  ", ""), (bars.lines[0], "green")]
        else:
            yield from _wrapped(course, width, "", "    ")
            yield [("  ", ""), (bars.lines[0], "green")]
    if report.losses_not_drawn:
        yield [(f"  {not_drawn_words(report)}", "bold red")]
    kinds: dict[str, int] = {}
    for mark in report.marks:
        kind = _MARKS.get(mark.kind, mark.kind)
        kinds[kind] = kinds.get(kind, 0) + 1
    if kinds:
        yield [("  " + ", ".join(words.plural(count, kind) for kind, count in kinds.items()), "dim")]


def spark(values: Sequence[float], room: int) -> str:
    """Return the finite *values* as a line of blocks, of at most *room* characters."""
    return sparks(values, room).lines[0]


def sparks(values: Sequence[float], room: int) -> Chart:
    """Return the finite *values* as one line of bars, of at most *room* characters."""
    # If the bars began at the least value, values that hardly differ would look far apart.
    return chart(values, room, 1, low=max(filter(math.isfinite, values), default=0.0) / 2)


@attrs.frozen
class Chart:
    """Values as bars of blocks."""

    lines: tuple[str, ...]
    """From top to bottom, without spaces at their ends."""
    low: float
    high: float
    """The values at which the lowest line begins and the highest one ends."""


def chart(values: Sequence[float], room: int, height: int, *, low: float | None = None) -> Chart:
    """
    Return the finite *values* as bars, of at most *room* characters in *height* lines.

    The bars begin at *low* if all values are above it, and else at the least value.
    """
    values = [value for value in values if math.isfinite(value)]
    if not values or room < 1:
        return Chart(("",) * height, 0.0, 0.0)
    size = max(1.0, len(values) / room)
    held = [
        max(values[int(at * size) : max(int(at * size) + 1, int((at + 1) * size))])
        for at in range(min(room, len(values)))
    ]
    low, high = min(held if low is None else (low, *held)), max(held)
    span = high / 2 - low / 2  # halved, because the whole difference may overflow a float
    most = len(BLOCKS) * height
    levels = [1 + (round((value / 2 - low / 2) / span * (most - 1)) if span else 0) for value in held]
    lines = []
    for below in range(most - len(BLOCKS), -1, -len(BLOCKS)):
        filled = (min(len(BLOCKS), level - below) for level in levels)
        lines.append("".join(BLOCKS[count - 1] if count > 0 else " " for count in filled).rstrip())
    return Chart(tuple(lines), low, high)


def _parts(report: Report) -> Iterator[Line]:
    yield [(f"  together {whole_step_words(report)}", "dim")]
    rows = [
        (part.name, words.duration(part.mean_ns), words.percent(part.share), part.kind, "█" * round(part.share * 30))
        for part in report.parts[:_MOST]
        if part.share >= _LEAST_SHARE
    ]
    for line in table_lines((), rows, right={1, 2}):
        line[-2], line[-1] = (line[-2][0], "dim"), (line[-1][0], "cyan")
        yield line


def _compared(heatmap: Heatmap, report: Report, width: int) -> Iterator[Line]:
    yield from _wrapped(f"{heatmap.basis}; 1 is the fastest rank", width, "  ", "  ", "dim")
    worst = sorted(
        (min((score for column in heatmap.scores if (score := column[place]) is not None), default=2.0), place)
        for place in range(len(heatmap.ranks))
    )
    rows = [
        (str(heatmap.ranks[place]), heatmap.nodes[place],
         *("–" if (score := column[place]) is None else f"{score:.2f}" for column in heatmap.scores[:8]))
        for _, place in worst[:_MOST]
    ]  # fmt: skip
    names = ("rank", "host", *(name[:24] for name in heatmap.names[:8]))
    for line in table_lines(names, rows, right={0, *range(2, len(names))}):
        yield [(text, _score_style(text)) for text, _ in line]
    if len(worst) > _MOST:
        yield [(f"  the worst {_MOST} of {words.plural(len(worst), 'rank')}", "")]
    for one in report.late[:3]:
        place = one.where if one.what == one.where else f"{one.what}, {one.where}"
        text = (
            f"rank {one.rank} on {one.node}: {place}, {words.duration(one.lateness_ns)} late {since_words(one)}, "
            f"{words.seconds(one.lost_s)} lost"
        )
        yield from _wrapped(text, width, "  ", "    ")


def _score_style(text: str) -> str:
    try:
        score = float(text)
    except ValueError:
        return ""
    if "." not in text:
        return ""
    return "bold red" if score < _SLOW else "yellow" if score < 0.9 else "green"  # noqa: PLR2004


def _tables(report: Report, width: int) -> Iterator[Line]:
    if report.spans:
        yield from _heading("Spans")
        rows = [
            (row.name, f"{row.count:,}", words.duration(row.total_ns), words.duration(row.total_ns / row.count),
             words.duration(row.max_ns), f"{row.failed:,}" if row.failed else "")
            for row in report.spans[:_MOST]
        ]  # fmt: skip
        yield from table_lines(("span", "count", "total", "mean", "longest", "failed"), rows, right={1, 2, 3, 4, 5})
    if report.open:
        yield from _heading("Open when last heard of")
        opened = [(str(row.rank), row.name, words.duration(row.seen_ns - row.start_ns)) for row in report.open[:_MOST]]
        yield from table_lines(("rank", "span", "for"), opened, right={0, 2})
    if report.errors:
        yield from _heading("Exceptions")
        for row in report.errors[:_MOST]:
            where = [f"rank {row.rank}", f"step {row.step}" if row.step >= 0 else "", row.name]
            line = f"{', '.join(filter(None, where))}: {row.error[:200]}"
            yield from _wrapped(line, width, "  ", "    ", "bold red" if row.is_fatal else "")
    if report.counters:
        yield from _heading("Metrics")
        counted = [
            (row.name, words.amount(row.last, row.unit),
             words.amount(row.minimum, row.unit), words.amount(row.maximum, row.unit),
             spark([one.median for _, one in row.level], 20))
            for row in report.counters[:20] if row.count
        ]  # fmt: skip
        yield from table_lines(("metric", "last", "min", "max", "trend"), counted, right={1, 2, 3})
    if report.own:
        yield from _heading("Events of the job's own")
        own = [
            (row.name, f"{row.count:,}", words.clock(row.last_ns),
             ", ".join(f"{name}={value}" for name, value in row.last.items())[: max(20, width // 3)])
            for row in report.own
        ]  # fmt: skip
        yield from table_lines(("event", "count", "last", "with"), own, right={1})
    if report.config:
        yield from _heading("Hyper-parameters")
        shown_values = [f"{name}={value}" for name, value in itertools.islice(report.config.items(), _MOST_SETTINGS)]
        hidden = len(report.config) - len(shown_values)
        more = f" and {hidden} more: trackside report --html" if hidden else ""
        yield from _wrapped(", ".join(shown_values) + more, width, "  ", "  ")


def table_lines(names: Sequence[str], rows: Sequence[Sequence[str]], *, right: set[int]) -> Iterator[Line]:
    """Yield the lines of a table; columns in *right* are aligned right. Named columns without a value are left out."""
    shown_rows = [tuple(map(words.printable, row)) for row in ((names,) if names else ()) + tuple(rows)]
    if not rows:
        return
    kept = [at for at in range(len(rows[0])) if not names or any(row[at] not in {"", words.NOTHING} for row in rows)]
    widths = {at: max(len(row[at]) for row in shown_rows) for at in kept}
    for number, row in enumerate(shown_rows):
        style = "bold" if names and not number else ""
        line = [
            (f"  {row[at]:>{size}}" if at in right else f"  {row[at]:<{size}}", style) for at, size in widths.items()
        ]
        line[-1] = (line[-1][0].rstrip(), style)
        yield line


def _losses(report: Report, width: int) -> Iterator[Line]:
    losses = report.losses
    rows = [
        (sum(losses.dropped.values()), "event", "dropped for lack of room"),
        (losses.missing, "event", "in none of these files"),
        (losses.damaged_bytes, "byte", "damaged and passed over"),
        (losses.invalid, "event", "that could not be recorded"),
        (losses.failed, "call", "of handlers that raised"),
        (losses.too_late, "window", "too late to be scored"),
    ]
    found = [f"{words.plural(count, noun)} {what}" for count, noun, what in rows if count]
    found += [f"{name} was suspended {count} ×" for name, count in losses.suspended.items()]
    found += [*limited_words(report), *losses.unread]
    bound = lost_words(report)
    if bound and (losses.unwritten or report.missing_ranks):
        found.append(bound)
    for text in found:
        yield from _wrapped(text, width, "  ", "    ", "yellow")
    if not found:
        yield [("  nothing that is known of", "green" if report.verdict.state == "good" else "")]
