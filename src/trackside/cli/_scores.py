"""``trackside scores``: which rank is slow, where and since when."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from trackside.cli._print import add_paths, json_text, readable, report_unread
from trackside.core import text as words
from trackside.core.text import printable, ranges
from trackside.events import (
    ConfigError,
    Event,
    GpuTimingUnavailable,
    KernelWindow,
    SectionWindow,
    TrainingConfigured,
    UnreadableError,
)
from trackside.handlers import replay
from trackside.handlers.models.scores import (
    INDIVIDUAL,
    LEAST_WINDOWS,
    RELATIVE,
    KindScores,
    Missing,
    ScoreAggregator,
    ScoreReport,
    Straggler,
    Thresholds,
    below,
)
from trackside.handlers.models.steps import LEAST_LATE_NS, WAITING, kind_by_name, least_late_share

_READ: Final[tuple[type[Event], ...]] = (SectionWindow, KernelWindow, GpuTimingUnavailable, TrainingConfigured)
_MOST_RANKS: Final = 32
_ENDS: Final = 10
"""The number of the worst and of the best ranks that are shown if not all fit."""

_REFERENCES: Final = {RELATIVE: "the fastest rank's time", INDIVIDUAL: "the rank's shortest time so far"}

Add = Callable[[str, ScoreReport], None]

HELP = "say which rank is slow, where and since when"
DESCRIPTION = (
    "Compare what the ranks measured of their sections and kernels. A straggler has a score below 0.75 in two windows "
    "in a row, or each time in one, at a cost that matters."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_paths(parser)
    parser.add_argument(
        "--window",
        metavar="N",
        type=int,
        help="show the window of this number; unless given the latest closed one "
        "that is at least half as long as those before",
    )
    parser.add_argument("--group", metavar="KEY", default="", help="compare ranks that share the value of this key")
    parser.add_argument("--json", action="store_true", help="print JSON: all windows, unless one is named")


def run(options: argparse.Namespace) -> int:
    """Replay the windows and print their scores."""
    recorded = replay(*options.path, to=_READ)
    shown = _Json(options.window) if options.json else _Text(options.window)
    keys = _score(readable(recorded), options.group, shown.add)
    shown.finish()
    code = report_unread("scores", recorded)
    if options.group and options.group not in keys and shown.count:
        there = f"there is {', '.join(sorted(keys))}" if keys else "no window has a key"
        raise ConfigError("--group", options.group, f"{there}: all ranks were compared")
    if not shown.count and not code:
        what = "any window" if options.window is None else f"a window {options.window}"
        raise UnreadableError(
            " ".join(map(str, options.path)), f"does not hold {what} of sections", "record one with trackside.section"
        )
    return code


def _score(events: Iterator[Event], group: str, add: Add) -> set[str]:
    """
    Call *add* with the last report of each window, in each run in the order in which they become final.

    Returns:
        The keys of the windows' groups.
    """
    runs: dict[str, ScoreAggregator] = {}
    keys: set[str] = set()
    for event in events:
        if isinstance(event, (SectionWindow, KernelWindow)):
            keys.update(event.groups)
        run_id = event.source.run_id
        aggregator = runs.get(run_id)
        if aggregator is None:

            def leave(report: ScoreReport, run_id: str = run_id) -> None:
                add(run_id, report)

            aggregator = runs[run_id] = ScoreAggregator(group=group, on_leave=leave)
        aggregator(event)
    for run_id, aggregator in runs.items():
        for report in aggregator.result().windows:
            add(run_id, report)
    return keys


class _Json:
    """Prints every window, as soon as it is final."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self.count = 0

    def add(self, run_id: str, report: ScoreReport) -> None:
        if self._window in {None, report.window}:
            sys.stdout.write('{"windows": [' if not self.count else ", ")
            sys.stdout.write(json_text({"run": run_id, **_plain(report)}))
            self.count += 1

    def finish(self) -> None:
        sys.stdout.write("]}\n" if self.count else '{"windows": []}\n')


def _plain(report: ScoreReport) -> dict[str, Any]:
    return {
        "attempt": report.attempt,
        "window": report.window,
        "steps": [report.first_step, report.last_step],
        "revision": report.revision,
        "closed": report.is_closed,
        **{kind: _scores(report, scores) for kind, scores in report.kinds()},
        "waited_s_per_step": dict(zip(report.ranks, report.waited_s_per_step, strict=True)),
        "nccl_s_per_step": dict(zip(report.ranks, report.left_out_s_per_step, strict=True)),
        "missing": [{"rank": one.rank, "what": one.what, "why": one.why} for one in report.missing],
        "stragglers": [attrs.asdict(one) for one in report.stragglers],
        "below_threshold": _sorted_ids(report.identify_stragglers()),
    }


def _scores(report: ScoreReport, scores: KindScores) -> dict[str, Any]:
    def by_rank(column: list[float | None]) -> dict[int, float | None]:
        return dict(zip(report.ranks, column, strict=True)) if column else {}

    return {
        "sections": {name: by_rank(column) for name, column in scores.sections.items()},
        "gpu": by_rank(scores.gpu),
    }


def _sorted_ids(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _sorted_ids(value) for key, value in found.items()}
    return [{"rank": one.rank, "node": one.node} for one in sorted(found)]


class _Text:
    """Prints one window of each run: the one asked for, or the latest closed one that is not cut short."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._chosen: dict[str, ScoreReport] = {}

    @property
    def count(self) -> int:
        return len(self._chosen)

    def add(self, run_id: str, report: ScoreReport) -> None:
        if self._window is None:
            known = self._chosen.get(run_id)
            if known is None or (report.is_closed and 2 * _steps(report) >= _steps(known)):
                self._chosen[run_id] = report
        elif self._window == report.window:
            self._chosen[run_id] = report

    def finish(self) -> None:
        for run_id, report in sorted(self._chosen.items()):
            for line in _lines(run_id, report):
                print(printable(line))


def _steps(report: ScoreReport) -> int:
    return report.last_step - report.first_step + 1


def _lines(run_id: str, report: ScoreReport) -> Iterator[str]:
    silent = sum(one.what == "all" for one in report.missing)
    ranks = f"{len(report.ranks) - silent} of {len(report.ranks)} rank(s)"
    yield (
        f"run {run_id}: window {report.window}, steps {report.first_step} to {report.last_step}, "
        f"attempt {report.attempt}, {ranks}{'' if report.is_closed else ', still open'}"
    )
    yield ""
    yield "stragglers"
    yield from map(_straggler, report.stragglers)
    if not report.stragglers:
        share = least_late_share(len(report.ranks) - silent)
        least = f"{words.seconds(LEAST_LATE_NS / 1e9)} and {share * 100:.0f} % of a step"
        yield f"  none: no score is low in {LEAST_WINDOWS} windows in a row, or each time, and costs {least}"
        yield "  trackside report also compares what is outside of these sections"
    waiting = list(_waiting(report))
    if waiting:
        yield ""
        yield "not slow, but waiting for others"
        yield from waiting
    for kind, scores in report.kinds():
        yield ""
        yield from _table(kind, report, scores)
    for what, waited in (("", report.waited_s_per_step), (" on the GPU, in NCCL", report.left_out_s_per_step)):
        if any(waited):
            yield ""
            yield _waited(what, report.ranks, waited)
    has_gpus = any(any(scores.gpu) for _, scores in report.kinds())
    missing = [one for one in report.missing if has_gpus or (one.what, one.why) != ("gpu", "no samples")]
    if missing:
        yield ""
        yield "missing"
        yield from _missing(missing)
    yield ""


def _straggler(one: Straggler) -> str:
    return (
        f"  rank {one.rank} on {one.node}: {one.what}, {one.kind} score {one.score:.3f}, low since window "
        f"{one.since_window}, which began at step {one.since_step}; {words.seconds(one.lost_s_per_step)} lost per step"
    )


def _waiting(report: ScoreReport) -> Iterator[str]:
    for what, column in report.relative.columns():
        name = what.removeprefix("section ")
        if kind_by_name(name) == WAITING:
            for place in below(column, Thresholds().section_relative):
                rank = f"rank {report.ranks[place]} on {report.nodes[place]}"
                yield f"  {rank}: {what}, {RELATIVE} score {column[place]:.3f}"


def _table(kind: str, report: ScoreReport, scores: KindScores) -> Iterator[str]:
    columns = [(name, column) for name, column in [("gpu", scores.gpu), *scores.sections.items()] if any(column)]
    if not columns:
        return
    found = ([column[place] for _, column in columns] for place in range(len(report.ranks)))
    worst = [min((score for score in row if score is not None), default=None) for row in found]
    scored = sorted((score, place) for place, score in enumerate(worst) if score is not None)
    yield f"{kind} scores, the lowest first: {_REFERENCES[kind]} over the rank's own"
    yield f"  {'rank':>6}  {'node':<16}" + "".join(f"  {name[:16]:>16}" for name, _ in columns)
    shown = [place for _, place in scored]
    if len(shown) > _MOST_RANKS:
        yield f"  ({_ENDS} worst and {_ENDS} best of {len(shown)})"
        shown = shown[:_ENDS] + shown[-_ENDS:]
    for place in shown:
        cells = "".join(f"  {_cell(column[place]):>16}" for _, column in columns)
        yield f"  {report.ranks[place]:>6}  {report.nodes[place][:16]:<16}{cells}"


def _waited(what: str, ranks: list[int], seconds_of: list[float | None]) -> str:
    waited = sorted((seconds, rank) for seconds, rank in zip(seconds_of, ranks, strict=True) if seconds is not None)
    return (
        f"waiting for others{what}: least rank {waited[0][1]}, {words.seconds(waited[0][0])} per step;"
        f" most rank {waited[-1][1]}, {words.seconds(waited[-1][0])} per step"
    )


def _cell(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"


def _missing(missing: list[Missing]) -> Iterator[str]:
    """Yield a line for each reason, with the ranks that it holds for."""
    together: dict[tuple[str, str], list[int]] = {}
    for one in missing:
        together.setdefault((one.what, one.why), []).append(one.rank)
    for (what, why), ranks in together.items():
        yield f"  {what}: {why}, rank(s) {ranges(ranks)}"
