"""``trackside compare``: what changed between two sets of runs, and whether that can be chance."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Final

import attrs

from trackside.cli._print import ProgressLine, json_text, report_unread
from trackside.core import text as words
from trackside.core.text import printable
from trackside.events import ConfigError, Source, UnreadableError
from trackside.handlers.eventlog import is_stream, outline
from trackside.report import BETTER, WORSE, Comparison, Row, Selected, compare
from trackside.report._report import shown

_WORSE: Final = 1
"""The exit code if the result is worse."""
_MOST_NAME: Final = 41
_MOST_SETTINGS: Final = 40
_FIGURES: Final = {1, 2, 3}
"""The columns of the table with figures."""

HELP = "say whether runs got better or worse, and in what"
DESCRIPTION = (
    "Compare runs A with runs B. Each is a path, or the name of a run, a session or a perf tag below "
    "--in. Exit code 1 says that B is worse."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("runs", metavar="A B", nargs="+", help="the runs before and after; B alone with --baseline")
    parser.add_argument("--in", dest="where", metavar="PATH", action="append", default=[], help="where names are found")
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="compare with the runs that are marked as baseline and have B's perf tags",
    )
    parser.add_argument(
        "--least", metavar="PERCENT", type=float, default=1.0, help="the change of step time that matters (default: 1)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print what changed; return 1 if B is worse, 2 if part of the input could not be read."""
    if not 0 < options.least < 100:  # noqa: PLR2004
        raise ConfigError("--least", options.least, "give a percentage above 0")
    before, after = _sides(options)
    progress = ProgressLine("trackside compare")
    try:
        found = compare(before, after, least=options.least / 100, progress=progress)
    finally:
        progress.done()
    if options.json:
        print(json_text(found.to_json()))
    else:
        for line in _lines(found):
            print(printable(line))
    return report_unread("compare", found.before, found.after) or (_WORSE if found.verdict == WORSE else 0)


def _sides(options: argparse.Namespace) -> tuple[Selected, Selected]:
    names, where = options.runs, options.where
    if len(names) != 2 - options.baseline:
        wanted = "give B alone with --baseline" if options.baseline else "give A and B"
        raise ConfigError("compare", " ".join(names), wanted)
    after = _selected(names[-1], where)
    if not options.baseline:
        return _selected(names[0], where), after
    paths = where or after.paths
    seen = outline(*paths).sources
    chosen = {
        one.source.id for one in outline(*after.paths).sources if after.wanted is None or after.wanted(one.source)
    }
    tags = {one.perf_tags for one in seen if one.source.id in chosen and not one.source.baseline}
    ids = {one.source.id for one in seen if one.source.baseline and (one.perf_tags in tags or not tags)}
    if not ids:
        raise UnreadableError(" ".join(map(str, paths)), "holds no baseline with the same perf tags", "mark one")
    marked = Selected("the baseline", paths, lambda source: source.id in ids)
    own = after.wanted

    def is_new(source: Source) -> bool:
        return not source.baseline and (own is None or own(source))  # a path may hold baseline runs, too

    return marked, Selected(after.name, after.paths, is_new)


def _selected(name: str, where: list[str]) -> Selected:
    """
    Return the runs that *name* names.

    Raises:
        ConfigError: There are none.
    """
    if is_stream(name) or os.path.lexists(name):
        return Selected(name, [name])
    if not where:
        raise ConfigError("compare", name, "it is no path; name the logs with --in to look for a run of that name")
    seen = outline(*where).sources
    ids = {one.source.id for one in seen if name in {one.source.run_id, one.source.session_tag, *one.perf_tags} - {""}}
    if not ids:
        raise ConfigError("compare", name, "no run, session or perf tag has that name; see trackside runs")
    return Selected(name, where, lambda source: source.id in ids)


def _lines(found: Comparison) -> Iterator[str]:
    for label, side in (("A", found.before), ("B", found.after)):
        half = f", half of them in less than {words.seconds(side.step_p50_s)}" if side.step_p50_s is not None else ""
        yield f"{label}: {side.name}: {len(side.runs)} run(s), {side.ranks} rank(s), {side.steps:,} steps{half}"
    yield ""
    worse, better = ([row.name for row in found.judged if row.verdict == verdict] for verdict in (WORSE, BETTER))
    if worse and better:
        yield f"B is worse ({'; '.join(worse)}) and better ({'; '.join(better)})"
    else:
        yield f"B is {found.verdict}" if worse or better else found.verdict
    yield from (f"  {note}" for note in found.notes)
    yield ""
    # Buckets that are empty on both sides are in the JSON alone.
    buckets = [
        attrs.evolve(row, name=shown(row.name).name)
        for row in found.buckets
        if row.difference.before or row.difference.after
    ]
    tables = [
        [(title, "A", "B", "change", "between", ""), *map(_cells, rows)]
        for title, rows in (("", found.judged), ("buckets", buckets), ("a step's parts", found.parts))
        if rows
    ]
    widths = [max(map(len, column)) for column in zip(*chain(*tables), strict=True)]
    for table in tables:
        yield from (_line(cells, widths) for cells in table)
        yield ""
    if found.settings:
        yield "hyper-parameters that differ"
        for name, (before, after) in islice(found.settings.items(), _MOST_SETTINGS):
            yield f"  {name}: {_setting(before)} in A, {_setting(after)} in B"
        if len(found.settings) > _MOST_SETTINGS:
            yield f"  and {len(found.settings) - _MOST_SETTINGS} more: --json"
        yield ""


def _setting(values: Sequence[str]) -> str:
    return ", ".join(_shortened(value) for value in values) or "not set"


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_NAME else f"{text[: _MOST_NAME - 3]}..."


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return *cells* in columns: a name to the left, three figures to the right, and two texts to the left."""
    return "  ".join(
        f"{cell:>{width}}" if place in _FIGURES else f"{cell:<{width}}"
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _cells(row: Row) -> tuple[str, ...]:
    found = row.difference
    change = "–" if found.change is None else _change(found.change, row)
    bounds = "unknown"
    if found.low is not None and found.high is not None:
        bounds = f"{_change(found.low, row)} and {_change(found.high, row)}"
    verdict = row.verdict if row.verdict != "no difference shown" else ""
    return f"  {_shortened(row.name)}", _figure(found.before, row), _figure(found.after, row), change, bounds, verdict


def _figure(value: float, row: Row) -> str:
    return f"{100 * value:.1f} %" if row.is_share else words.seconds(value)


def _change(value: float, row: Row) -> str:
    return f"{100 * value:+.1f} pt" if row.is_share else f"{100 * value:+.2f} %"
