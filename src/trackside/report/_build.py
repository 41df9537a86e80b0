"""Build a report from logs."""

from __future__ import annotations

import gc
import itertools
import math
import os
import statistics
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final

import attrs

from trackside.core import text as words
from trackside.events import (
    ConfigError,
    Event,
    GpuTimingUnavailable,
    KernelWindow,
    ProcessExited,
    SectionWindow,
    Source,
    UnreadableError,
    span_names,
)
from trackside.handlers import Replay, replay
from trackside.handlers.eventlog import unwritten_steps
from trackside.handlers.models import CounterTotals, SpanReport
from trackside.handlers.models.goodput import AFTER_STEPS, BEFORE_STEPS, AttemptTimes, GoodputAccumulator, GoodputResult
from trackside.handlers.models.liveness import ENDED, LifeSigns, is_gone, liveness, worst
from trackside.handlers.models.scores import RELATIVE, ScoreAggregator, ScoreReport, Straggler
from trackside.handlers.models.spans import NameTotals
from trackside.handlers.models.steps import OTHER, WAITING
from trackside.report._gather import (
    LIMITING,
    MOST_WINDOWS,
    Gatherer,
    Mark,
    StepLengths,
    Stood,
    Trace,
    Watched,
    is_out_of_memory,
)
from trackside.report._report import (
    AttemptBar,
    CounterRow,
    ErrorRow,
    Growth,
    Heatmap,
    Losses,
    NotFinite,
    OpenRow,
    OwnRow,
    Part,
    RankRow,
    Report,
    Slowdown,
    StallRow,
    Standstill,
    StepQuantiles,
    Unwritten,
)
from trackside.report._runs import unified
from trackside.report._statistics import TRIM, Difference, difference
from trackside.report._verdict_rules import LEAST_STOOD_S, STOPPED_AFTER_STEPS, judge
from trackside.report._whatif import (
    OUTSIDE,
    STANDSTILLS,
    LateRank,
    Pause,
    WhatIf,
    by_attempt,
    compare_all,
    find_pause,
    is_gap,
    kind_of,
    tiles_of,
)
from trackside.wire import FrameView

_FEWEST_STEPS: Final = 100
_LEAST_SLOWDOWN: Final = 0.05
_MARGIN: Final = 0.1
"""The share of all steps that must lie on either side of a change."""
_FEWEST_POINTS: Final = 16
_LEAST_GROWTH: Final = 0.1
_WARM_UP: Final = 0.25


@attrs.frozen
class Change:
    """A lasting rise of a series: the index where it begins, and the means before and after it."""

    place: int
    before: float
    after: float


def find_change(lengths: Sequence[float]) -> Change | None:
    """
    Return the lasting rise of *lengths*; None if there is none of at least 5 %.

    It begins where the sum of deviations from the mean is lowest (Page's CUSUM). For this sum, the shortest and the
    longest twentieth are limited, so that a few long steps do not count. `difference` decides whether it is a rise.
    """
    count = len(lengths)
    if count < _FEWEST_STEPS:
        return None
    ordered = sorted(lengths)
    low, high = ordered[count // 20], ordered[-1 - count // 20]
    pulled = [min(max(one, low), high) for one in lengths]
    mean = statistics.fmean(pulled)
    total, lowest, place = 0.0, 0.0, 0
    for at, value in enumerate(pulled):
        if total < lowest:
            lowest, place = total, at
        total += value - mean
    margin = max(20, int(count * _MARGIN))
    if not margin <= place <= count - margin:
        return None
    found = difference([lengths[:place]], [lengths[place:]], TRIM)
    if found.change is None or found.low is None or found.change < _LEAST_SLOWDOWN or found.low < _LEAST_SLOWDOWN / 2:
        return None
    return Change(place, found.before, found.after)


def joined(runs: Iterable[StepLengths]) -> tuple[list[float], list[int]]:
    """Return lengths and numbers of the steps of *runs* in turn, without the first two of each: startup is in them."""
    lengths: list[float] = []
    numbers: list[int] = []
    for run in runs:
        lengths += run.lengths_ns[2:]
        numbers += run.numbers[2:]
    return lengths, numbers


@attrs.frozen
class Rise:
    """A figure that rose steadily, and was still rising at the end."""

    process: Watched
    name: str
    first: float
    last: float
    since_ns: int
    until_ns: int


def find_rises(processes: Iterable[Watched]) -> list[Rise]:
    """Return the memory figures that rose steadily, the largest rise first."""
    found = [
        rise
        for process in processes
        for name, trace in process.memory.items()
        if (rise := _rise(process, name, trace)) is not None
    ]
    return sorted(found, key=lambda rise: rise.first - rise.last)


def _rise(process: Watched, name: str, trace: Trace) -> Rise | None:
    start = int(len(trace.values) * _WARM_UP)
    values, times = trace.values[start:], trace.times_ns[start:]
    if len(values) < _FEWEST_POINTS:
        return None
    size = len(values) // 4
    quarters = [statistics.median(values[at * size : (at + 1) * size]) for at in range(4)]
    rose = [after - before for before, after in itertools.pairwise(quarters)]
    total = quarters[-1] - quarters[0]
    # A cache levels off once it is full; a leak continues to grow.
    if min(rose) <= 0 or rose[-1] < total / 6 or quarters[0] <= 0 or total / quarters[0] < _LEAST_GROWTH:
        return None
    return Rise(process, name, values[0], values[-1], times[0], times[-1])


def against(before: Iterable[Watched], after: Iterable[Watched]) -> Difference:
    """Return how the step times of *after* differ from those of *before*, from the first rank of each attempt."""
    return difference(_runs(before), _runs(after), TRIM)


def _runs(processes: Iterable[Watched]) -> list[list[float]]:
    kept = [process.lengths for process in processes if process.lengths is not None]
    return [lengths for run in kept if (lengths := joined([run])[0])]


@attrs.define
class Episode:
    """The slowness of one rank in one section, with its cost."""

    rank: int
    node: str
    what: str
    since_step: int
    since_ns: int
    until_step: int = -1
    steps: int = 0
    """The number of steps in the windows; those between them are not known."""
    lost_s: float = 0.0


class Episodes:
    """Collects the slow ranks from the last report of each window, in the order of the windows."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], Episode] = {}
        self.latest: ScoreReport | None = None
        self._starts: dict[tuple[int, int], int] = {}
        """The start of each window in ns since the epoch, by attempt and window."""

    def add(self, report: ScoreReport) -> None:
        """Add the report of one window."""
        self._starts[report.attempt, report.window] = report.start_ns
        if report.is_closed or self.latest is None:
            self.latest = report
        for one in report.stragglers:
            if one.kind == RELATIVE:
                self._note(one, report)

    def _note(self, one: Straggler, report: ScoreReport) -> None:
        what = one.what.removeprefix("section ")
        episode, first_step = self.found.get((one.rank, what)), report.first_step
        if episode is None:
            # The rank was slow from the first window of its streak on, though it counts as a straggler only now.
            first_step = min(first_step, one.since_step)
            since_ns = self._starts.get((report.attempt, one.since_window), report.start_ns)
            episode = self.found[one.rank, what] = Episode(one.rank, one.node, what, first_step, since_ns)
        episode.until_step = report.last_step
        steps = max(1, report.last_step - first_step + 1)
        episode.steps += steps
        episode.lost_s += one.lost_s_per_step * steps


_MOST_LATE: Final = 100
_SHOWN_FROM: Final = 0.02
"""Parts that take a smaller share of a step on every rank are left out: their scores are noise."""


def heatmap_of_windows(report: ScoreReport) -> Heatmap:
    """Return the relative scores of one window."""
    columns = [(name.removeprefix("section "), scores) for name, scores in report.relative.columns() if any(scores)]
    return Heatmap(
        basis=f"the relative scores of window {report.window}, steps {report.first_step} to {report.last_step}",
        ranks=report.ranks,
        nodes=report.nodes,
        names=[name for name, _ in columns],
        scores=[scores for _, scores in columns],
    )


def late_by_windows(episodes: Episodes, waits: set[str]) -> tuple[LateRank, ...]:
    """
    Return the stragglers of the windows, for a job whose steps cannot be compared.

    Sections in which ranks wait for each other are left out: a rank that is long there waits for a slow one.
    """
    found = [
        LateRank(
            rank=one.rank,
            node=one.node,
            what=one.what,
            where=one.what,
            own_ns=0.0,
            peers_ns=0.0,
            lateness_ns=one.lost_s * 1e9 / one.steps,
            since_step=one.since_step,
            since_ns=one.since_ns,
            until_step=one.until_step,
            is_over=False,
            lost_s=one.lost_s,
            excess_s=one.lost_s,
            chance=None,
        )
        for one in episodes.found.values()
        if kind_of(one.what, waits) != WAITING
    ]
    return tuple(sorted(found, key=lambda one: (-one.lost_s, one.rank, one.what))[:_MOST_LATE])


def heatmap_of_tiles(mains: Sequence[Watched], what_if: WhatIf) -> Heatmap | None:
    """Return scores by part and rank of the latest attempt: the fastest rank's mean time divided by the rank's."""
    found = tiles_of(mains)
    last = found[-1][0].source if found else None
    found = [
        (one, tiles)
        for one, tiles in found
        if last is not None and (one.source.run_id, one.source.attempt) == (last.run_id, last.attempt)
    ]
    if len(found) < 2 or not what_if.step_ns:  # noqa: PLR2004
        return None
    found.sort(key=lambda item: item[0].source.rank)
    means: dict[str, list[float]] = {}
    for place, (_, tiles) in enumerate(found):
        steps = sum(tiles.steps) or 1
        for name, column in tiles.took.items():
            if name in STANDSTILLS or name in what_if.waits_in:
                continue
            known = OUTSIDE if is_gap(name) else name
            means.setdefault(known, [0.0] * len(found))[place] += math.fsum(column) / steps
    means = {name: own for name, own in means.items() if max(own) >= _SHOWN_FROM * what_if.step_ns and min(own) > 0}
    if not means:
        return None
    return Heatmap(
        basis=(
            "the mean times of the parts of all steps of the latest attempt; left out are parts in which ranks wait "
            f"for each other, and those below {words.percent(_SHOWN_FROM, 0)} of a step"
        ),
        ranks=[one.source.rank for one, _ in found],
        nodes=[one.source.host for one, _ in found],
        names=list(means),
        scores=[[min(own) / value for value in own] for own in means.values()],
    )


PRODUCTIVE: Final = "PRODUCTIVE"
LEAST_EXCHANGE_NS: Final = 2e7
"""A shorter exchange is not reported if no span or section measures it."""
_MOST_RANKS: Final = 64
_MOST_ROWS: Final = 200
_MOST_GROWTHS: Final = 8


def rank_rows(
    processes: Sequence[Watched], exit_status: int | None = None, exits: Mapping[str, ProcessExited] | None = None
) -> list[RankRow]:
    """Return every rank of every attempt, with its state; *exit_status* is the launcher's."""
    newest_ns = max(process.last_ns for process in processes)
    mains = [process for process in processes if process.is_rank]
    latest: dict[int, int] = {}
    for process in mains:
        latest[process.source.rank] = max(process.first_ns, latest.get(process.source.rank, 0))
    return [
        _rank(process, newest_ns, latest[process.source.rank], exit_status, (exits or {}).get(process.source.id))
        for process in mains
    ]


def _rank(
    process: Watched, newest_ns: int, latest_ns: int, exit_status: int | None, own: ProcessExited | None
) -> RankRow:
    own_status = None if own is None else own.exit_status
    signs = LifeSigns(
        last_ns=process.last_ns,
        heartbeat_interval_ns=process.heartbeat_interval_ns,
        end_reason=process.end_reason,
        exit_status=exit_status if own_status is None and process.end_reason is None else own_status,
    )
    source = process.source
    life = liveness(signs, newest_ns, is_replaced=latest_ns > process.last_ns, is_gone=is_gone(source))
    return RankRow(
        rank=source.rank,
        attempt=source.attempt,
        host=source.host,
        pid=source.pid,
        state=life.state,
        reason=life.reason,
        first_ns=process.first_ns,
        last_ns=process.last_ns,
        steps=process.steps,
        last_step=process.last_step,
        stepped_ns=process.step_ended_ns,
        mean_step_ns=process.mean_step_ns,
        has_good_end=life.has_good_end,
        error=life.error,
        interval_s=(process.heartbeat_interval_ns or 10**9) / 1e9,
        before_start_s=process.source.before_start_s,
        exited_ns=None if own is None else own.at_ns,
        exit_status=own_status,
    )


def _state_of(rows: Iterable[RankRow]) -> str:
    """Return the state of an attempt: the worst of its ranks' states."""
    return worst(row.state for row in rows)


def _worth_a_look(rows: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """Return the ranks to show: those without a good end first, then the furthest behind, then the slowest."""

    def worth(row: RankRow) -> tuple[bool, int, float, int]:
        return row.has_good_end, row.last_step, -(row.mean_step_ns or 0.0), row.rank

    return tuple(sorted(rows, key=worth)[:_MOST_RANKS])


def _attempts(model: GoodputAccumulator, session: str, rows: Sequence[RankRow]) -> tuple[AttemptBar, ...]:
    """Return the attempts, each with its time by bucket."""
    attempts = model.attempts(session=session)
    in_attempts = _in_attempts([attempt.start_ns for attempt in attempts], rows)
    bars = []
    for number, attempt in enumerate(attempts):
        own = [rows[place] for place in in_attempts[number]]
        out = [row for row in own if not row.has_good_end]
        latest = max(own, key=lambda row: row.before_start_s, default=None)
        bars.append(
            AttemptBar(
                number=number,
                start_ns=attempt.start_ns,
                end_ns=attempt.end_ns,
                goodput=attempt.goodput,
                buckets_s=_buckets(attempt),
                ranks=len(own),
                before_start_s=0.0 if latest is None else latest.before_start_s,
                before_start_rank=0 if latest is None else latest.rank,
                first_out=min(out, key=lambda row: row.last_ns, default=None),
            )
        )
    return tuple(bars)


def _in_attempts(starts_ns: Sequence[int], rows: Sequence[RankRow]) -> dict[int, list[int]]:
    """
    Return the indices of *rows* by the attempt in which they began, as its index in *starts_ns*, which is in order.

    The time of its start decides, because different runs of a session may use the same attempt numbers.
    """
    found: dict[int, list[int]] = {number: [] for number in range(-1, len(starts_ns))}
    for place, row in enumerate(rows):
        found[bisect_right(starts_ns, row.first_ns) - 1].append(place)
    return found


def _buckets(attempt: AttemptTimes) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, length in attempt.named_badput_s.items():
        found.update(length if isinstance(length, dict) else {name: length})
    found = dict(sorted(found.items(), key=lambda item: -item[1]))
    return {PRODUCTIVE: attempt.productive_s, **{name: length for name, length in found.items() if length > 0}}


def _marks(found: Iterable[Mark], bars: Sequence[AttemptBar]) -> tuple[Mark, ...]:
    """Return the marks on the time axis, in order; restarts and ends of attempts are among them."""
    every = list(found)
    for bar in bars:
        if bar.number:
            every.append(Mark(bar.start_ns, "restart", f"attempt {bar.number} began", 0))
        if bar.first_out is not None:
            one = bar.first_out
            label = f"rank {one.rank} fell silent" if one.state != ENDED else f"rank {one.rank} ended: {one.reason}"
            every.append(Mark(one.last_ns, "end", label, one.rank, one.last_step))
    return tuple(sorted(every, key=lambda mark: mark.at_ns))


def _pauses(mains: Sequence[Watched], what_if: WhatIf) -> Pause | None:
    """Return the pauses that make steps of the last attempt longer, as `find_pause` finds them."""
    attempts = by_attempt(mains)
    last = {rank: tiles for rank, (_, tiles) in attempts[-1].items()} if attempts else {}
    return find_pause(last, what_if.waits_in)


def _first_batch_s(mains: Sequence[Watched], parts: Sequence[Part]) -> float:
    """Return by how many seconds the longest wait for a first batch, in the first attempt, exceeds a usual wait."""
    first = [process.first_batch_ns or 0 for process in mains if process.source.attempt == mains[0].source.attempt]
    usual_ns = sum(part.mean_ns for part in parts if part.name == span_names.DATA_LOADING)
    return max(0.0, max(first, default=0) - usual_ns) / 1e9


def _parts(gathered: Gatherer, mains: Sequence[Watched]) -> tuple[Part, ...]:
    """
    Return the parts of a step, the largest first; together they are as long as the step.

    They are means without the first step of each process, if it has others: what starts up in it is no usual part.
    """
    found = tiles_of(mains)
    steps = sum(sum(tiles.steps[tiles.usual_from :]) for _, tiles in found)
    totals: dict[str, float] = {}
    for _, tiles in found:
        for name, column in tiles.took.items():
            if name not in STANDSTILLS:
                known = OUTSIDE if is_gap(name) else name
                totals[known] = totals.get(known, 0.0) + math.fsum(column[tiles.usual_from :])
    if not steps or set(totals) <= {OUTSIDE}:
        return ()
    for name in gathered.waits - totals.keys():  # a section in which ranks wait, beside spans
        windows = [one.record.windows for one, _ in found if name in one.record.windows.took]
        mean_ns = math.fsum(math.fsum(own.took[name][own.usual_from :]) for own in windows) / (
            sum(sum(own.steps[own.usual_from :]) for own in windows) or 1
        )
        waited = mean_ns * steps
        if 0 < waited <= 1.1 * totals.get(OUTSIDE, 0.0):  # otherwise the section lies within a part
            totals[name] = min(waited, totals[OUTSIDE])
            totals[OUTSIDE] -= totals[name]
    whole = math.fsum(totals.values()) or 1.0
    made_of = [
        Part(name=name, kind=kind_of(name, gathered.waits), mean_ns=total / steps, share=total / whole)
        for name, total in totals.items()
        if total > 0
    ]
    return tuple(sorted(made_of, key=lambda part: -part.mean_ns))


def part_series(gathered: Gatherer) -> dict[str, list[float]]:
    """Return each part's mean time over all ranks in each block of steps, in seconds per step."""
    sums: dict[str, dict[int, float]] = {}
    counts: dict[int, int] = {}
    ranked = tiles_of(process for process in gathered.processes if process.is_rank)
    block = max((tiles.block for _, tiles in ranked), default=1)
    for _, tiles in ranked:
        tiles.coarsen(block)
        for place, count in zip(tiles.places, tiles.steps, strict=True):
            counts[place] = counts.get(place, 0) + count
        for name, column in tiles.took.items():
            if name not in STANDSTILLS:
                own = sums.setdefault(OUTSIDE if is_gap(name) else name, {})
                for place, value in zip(tiles.places, column, strict=True):
                    own[place] = own.get(place, 0.0) + value
    return {
        name: [own.get(place, 0.0) / counts[place] / 1e9 for place in sorted(counts) if counts[place]]
        for name, own in sums.items()
    }


def _waited_share(what_if: WhatIf, made_of: Sequence[Part]) -> float | None:
    """Return the share of a step that the exchange between ranks takes, if possible without waiting for late ranks."""
    waiting = {part.name: part.share for part in made_of if part.kind == WAITING}  # by their names
    is_compared = not waiting.keys().isdisjoint(what_if.waits_in)  # the rest of such a part is waiting for one rank
    if what_if.step_ns and (is_compared or what_if.exchanged_ns >= (1 if waiting else LEAST_EXCHANGE_NS)):
        return what_if.exchanged_ns / what_if.step_ns
    return sum(waiting.values()) if waiting else None


def _slowdown(gathered: Gatherer, mains: Sequence[Watched]) -> Slowdown | None:
    """Return the lasting increase of the step time, and the part that grew most; None if there is no increase."""
    leads = [process for process in mains if process.lengths is not None]
    runs = [process.lengths for process in leads if process.lengths is not None]
    lengths, numbers = joined(runs)
    change = find_change(lengths)
    if change is None:
        return None
    step = numbers[change.place]
    at_ns = next((at for at, one in gathered.steps.points() if one.last_step >= step), 0)
    blocks = max(run.block for run in runs)
    grew = _around(gathered, leads, step)
    name = max(grew, key=lambda part: grew[part][1] - grew[part][0], default="")
    before, after = grew.get(name, (0.0, 0.0))
    if after - before < (change.after - change.before) / 3:
        name = ""
    return Slowdown(
        step=step,
        at_ns=at_ns,
        before_ns=change.before,
        after_ns=change.after,
        cost_s=(change.after - change.before) * (len(lengths) - change.place) * blocks / 1e9,
        part=name,
        part_before_ns=before,
        part_after_ns=after,
        kind=kind_of(name, gathered.waits) if name else OTHER,
    )


def _around(gathered: Gatherer, mains: Sequence[Watched], step: int) -> dict[str, tuple[float, float]]:
    """Return each part's mean time per step before *step* and from *step* on, in ns."""
    sums: dict[str, list[float]] = {}
    counts = [0, 0]
    for _, tiles in tiles_of(mains):
        usual = tiles.usual_from
        sides = [int(tiles.first_step(at) >= step) for at in range(usual, len(tiles.places))]
        for side, count in zip(sides, tiles.steps[usual:], strict=True):
            counts[side] += count
        for name, column in tiles.took.items():
            if name not in STANDSTILLS:
                own = sums.setdefault(OUTSIDE if is_gap(name) else name, [0.0, 0.0])
                for side, value in zip(sides, column[usual:], strict=True):
                    own[side] += value
    for name in {name for one in mains for name in one.record.windows.took} & gathered.waits - sums.keys():
        own = [0.0, 0.0]
        for one in mains:
            for at, value in enumerate(one.record.windows.took.get(name, ())):
                own[int(one.record.windows.first_step(at) >= step)] += value
        outside = sums.setdefault(OUTSIDE, [0.0, 0.0])
        if sum(own) <= 1.1 * sum(outside):  # otherwise the section lies within a part
            sums[name] = own
            sums[OUTSIDE] = [max(0.0, of_all - waited) for of_all, waited in zip(outside, own, strict=True)]
    return {name: (own[0] / (counts[0] or 1), own[1] / (counts[1] or 1)) for name, own in sums.items()}


def _growth(mains: Sequence[Watched]) -> tuple[Growth, ...]:
    """Return the memory counters that kept growing, each with the rank of its largest rise."""
    rises = find_rises(mains)
    by_name: dict[str, list[Any]] = {}
    for rise in rises:
        by_name.setdefault(rise.name, []).append(rise)
    return tuple(
        Growth(
            name=name,
            rank=found[0].process.source.rank,
            first=found[0].first,
            last=found[0].last,
            since_ns=found[0].since_ns,
            until_ns=found[0].until_ns,
            ranks=len({rise.process.source.rank for rise in found}),
        )
        for name, found in list(by_name.items())[:_MOST_GROWTHS]
    )


def _spans(report: SpanReport, gathered: Gatherer, mains: Sequence[Watched]) -> tuple[NameTotals, ...]:
    """Return the totals of all spans by name, the largest total time first."""
    totals: dict[str, list[int]] = {}
    for source in report.sources:
        for row in source.totals:
            known = totals.setdefault(row.name, [0, 0, 0, row.min_ns, row.max_ns])
            known[0] += row.count
            known[1] += row.failed
            known[2] += row.total_ns
            known[3] = min(known[3], row.min_ns)
            known[4] = max(known[4], row.max_ns)
    stepped = sum(one.steps for one in mains)
    if stepped:  # iterations are counted apart from other spans
        extremes = [one for _, one in gathered.steps.points()]
        totals[span_names.TRAINING_ITERATION] = [
            stepped,
            0,
            sum(one.steps_ns for one in mains),
            round(min(one.low for one in extremes)),
            round(max(one.high for one in extremes)),
        ]
    found = [
        NameTotals(name=name, count=own[0], failed=own[1], total_ns=own[2], min_ns=own[3], max_ns=own[4])
        for name, own in totals.items()
    ]
    return tuple(sorted(found, key=lambda row: -row.total_ns)[:_MOST_ROWS])


def _open_spans(report: SpanReport, mains: Sequence[Watched]) -> tuple[OpenRow, ...]:
    """Return the innermost span of each process that did not end, the longest open first."""
    known = {process.source.id: process for process in mains}
    found = []
    for source in report.sources:
        process = known.get(source.source_id)
        if process is None or process.end_reason is not None:
            continue
        stepped_ns = process.step_ended_ns
        inside = [one for one in source.open if one.name != span_names.TRAINING_ITERATION or one.seen_ns > stepped_ns]
        if inside:
            last = inside[-1]
            found.append(OpenRow(rank=source.rank, name=last.name, start_ns=last.start_ns, seen_ns=process.last_ns))
    return tuple(sorted(found, key=lambda row: row.start_ns - row.seen_ns)[:_MOST_ROWS])


def _errors(mains: Sequence[Watched], rows: Sequence[RankRow]) -> tuple[ErrorRow, ...]:
    """Return the errors that were recorded or that ended a process, each once; fatal ones first, then by time."""
    last = {(row.rank, row.attempt): row for row in rows}
    found = []
    for process in mains:
        row = last.get((process.source.rank, process.source.attempt))
        for place, one in enumerate(process.raised):
            is_last = place == len(process.raised) - 1
            ended_by = row is not None and row.error == one.type
            stepped_on = process.step_ended_ns > one.at_ns
            found.append(
                ErrorRow(
                    rank=one.rank,
                    attempt=process.source.attempt,
                    name=one.span,
                    step=one.step,
                    at_ns=one.at_ns,
                    type=one.type,
                    message=one.message,
                    is_out_of_memory=one.is_out_of_memory,
                    is_fatal=ended_by or (is_last and not stepped_on and (row is None or not row.has_good_end)),
                )
            )
        if row is not None and row.error and not any(one.type == row.error for one in process.raised):
            found.append(
                ErrorRow(
                    rank=row.rank,
                    attempt=row.attempt,
                    name="",
                    step=-1,
                    at_ns=row.last_ns,
                    type=row.error,
                    message="",
                    is_out_of_memory=is_out_of_memory(row.error, ""),
                    is_fatal=True,
                )
            )
    return tuple(sorted(found, key=lambda row: (not row.is_fatal, row.at_ns))[:_MOST_ROWS])


def _standstills(mains: Sequence[Watched]) -> Iterator[Standstill]:
    """Yield the saves, and then the evaluations, of the rank and attempt that spent most time on them."""
    for kind in ("checkpoint", "validation"):
        found = [(process, process.standstills[kind]) for process in mains if kind in process.standstills]
        if not found:
            continue
        longest, own = max(found, key=lambda item: item[1].took.total)
        place = longest.source.run_id, longest.source.attempt
        peers = [one for one in mains if (one.source.run_id, one.source.attempt) == place]
        least = min(peers, key=lambda one: one.standstills[kind].took.total if kind in one.standstills else 0.0)
        shortest = least.standstills.get(kind)
        yield Standstill(
            kind=kind,
            rank=longest.source.rank,
            count=own.took.count,
            took_s=own.took.total / 1e9,
            longest_s=own.took.high / 1e9,
            longest_step=own.took.high_step,
            since_ns=own.since_ns,
            least_s=shortest.took.total / 1e9 if shortest is not None else 0.0,
            waited_for=least.source.rank if shortest is not None and _end_together(own, shortest) else None,
        )


def _end_together(longest: Stood, shortest: Stood) -> bool:
    """Return whether the *shortest* standstills began later than the *longest*, and ended with them: those waited."""
    count = longest.took.count
    longer_ns = (longest.took.total - shortest.took.total) / count
    return count == shortest.took.count and abs(longest.mean_end_ns - shortest.mean_end_ns) < longer_ns / 4


def _stalls(mains: Sequence[Watched]) -> tuple[StallRow, ...]:
    """Return the stalls that ranks recorded, by time."""
    found = [
        StallRow(
            rank=process.source.rank,
            attempt=process.source.attempt,
            step=one.step,
            at_ns=one.began_ns,
            usual_s=one.usual_s,
            lasted_s=((process.last_ns if one.ended_ns is None else one.ended_ns) - one.began_ns) / 1e9,
            is_over=one.ended_ns is not None,
            span=one.span,
            where=one.where,
            waits=one.waits,
            collective=one.collective,
        )
        for process in mains
        for one in process.stalls
    ]
    return tuple(sorted(found, key=lambda row: (row.at_ns, row.rank))[:_MOST_ROWS])


def _not_finite(mains: Sequence[Watched]) -> NotFinite | None:
    """
    Return the loss that was NaN or infinite, and the ranks on which it was; None if there was none.

    Of several it is one that stayed so, if possible the iterations' own, and the first.
    """
    found = []
    for process in mains:
        rank = process.source.rank
        later = [one for one in mains if one.source.rank == rank and one.first_ns > process.last_ns]
        for name, run in process.not_finite.items():
            finite_after = run.finite_after + sum(one.finite[name] for one in later)
            found.append((finite_after > 0, name, run.step, rank, finite_after, run))
    if not found:
        return None
    is_over, name, step, rank, finite_after, run = min(found, key=lambda one: (one[0], bool(one[1]), *one[2:4]))
    same = [one for one in found if one[:2] == (is_over, name)]
    return NotFinite(
        name=name,
        value=run.value,
        steps=run.steps,
        step=step,
        last_step=run.last_step,
        count=run.count,
        earlier=run.earlier,
        finite_after=finite_after,
        at_ns=run.at_ns,
        ranks=tuple(sorted({one[3] for one in same})),
        first_rank=rank,
        first_ranks=tuple(sorted({one[3] for one in same if one[2] == step})),
    )


def _mark_not_finite(found: NotFinite | None) -> list[Mark]:
    if found is None:
        return []
    label = f"{found.name or 'the loss'} is {found.value or 'not finite'}"
    return [Mark(found.at_ns, "error", label, found.first_rank, found.step)]


def _counters(gathered: Gatherer) -> tuple[CounterRow, ...]:
    """Return all counters by name."""
    totals = gathered.counters.result().counters
    names = sorted({*totals, *gathered.latest})[:_MOST_ROWS]
    return tuple(_counter(name, totals.get(name), gathered) for name in names)


def _counter(name: str, totals: CounterTotals | None, gathered: Gatherer) -> CounterRow:
    """Return one counter; *totals* is None if the job ended before the first window of its values."""
    bins = gathered.levels.get(name)
    level = bins.coarse(80) if bins is not None else []
    low = min((one.low for _, one in level), default=None)
    high = max((one.high for _, one in level), default=None)
    count, total = sum(one.count for _, one in level), sum(one.total for _, one in level)
    last = level[-1][1].median if level else None
    if name in gathered.latest:
        last = gathered.latest[name][1]
    elif totals is not None:
        count, total = totals.count, totals.sum
        if totals.kind == "counter":
            last = totals.sum
        if totals.kind != "gauge":
            low, high = totals.minimum, totals.maximum
    quantiles = totals.quantiles if totals is not None else {}
    return CounterRow(
        name=name,
        unit=totals.unit if totals is not None else "",
        count=count,
        sum=total,
        mean=total / count if count else None,
        last=last,
        minimum=low,
        maximum=high,
        p50=quantiles.get("p50"),
        p99=quantiles.get("p99"),
        level=level,
    )


def _own_events(gathered: Gatherer) -> tuple[OwnRow, ...]:
    """Return the events that the job declared itself, by name."""
    return tuple(
        OwnRow(
            name=own.name,
            count=own.count,
            ranks=len(own.ranks),
            last_ns=own.last_ns,
            last_step=own.last_step,
            last=own.last,
            levels={name: level.coarse(80) for name, level in own.levels.items()},
        )
        for own in sorted(gathered.own.values(), key=lambda own: own.name)
    )


def _losses(gathered: Gatherer, recorded: Replay, too_late: int, unwritten: Iterable[Unwritten]) -> Losses:
    """Return the losses: the events, bytes, files, windows and steps that the report lacks."""
    own = {process.source.id for process in gathered.processes}

    def counted(name: str) -> int:
        counts = (process.counts.get(name, 0) for process in gathered.processes)
        return sum(number for number in counts if isinstance(number, int))

    return Losses(
        dropped=dict(gathered.dropped),
        missing=sum(tracker.missing for source_id, tracker in recorded.trackers.items() if source_id in own),
        damaged_bytes=recorded.damaged_bytes,
        suspended=dict(gathered.suspended),
        invalid=counted("invalid"),
        failed=counted("failed"),
        suppressed=counted("suppressed"),
        unread=tuple(str(problem) for problem in recorded.problems),
        too_late=too_late,
        unwritten=tuple(unwritten),
        limited_s=_limited_s(process for process in gathered.processes if process.is_rank),
    )


def _limited_s(ranks: Iterable[Watched]) -> dict[str, float]:
    """Return, for each verb that limited what was recorded, the longest time for which it did on any rank."""
    longest_ns: Counter[str] = Counter()
    for process in ranks:
        own: Counter[str] = Counter()
        for one in process.limits:
            one.end(process.last_ns)
            own[one.verb] += max(0, (one.until_ns or 0) - one.since_ns)
        longest_ns |= own
    return {verb: longest_ns[verb] / 1e9 for verb in LIMITING if longest_ns[verb]}


def _unwritten(mains: Sequence[Watched], rows: Sequence[RankRow], bars: Sequence[AttemptBar]) -> Iterator[Unwritten]:
    """
    Yield how many steps the log of each rank without an end may lack, if they took as long as those before.

    They reach to the furthest rank's last step, and one further if a rank ended. If none ended, `unwritten_steps` is
    the least number, but of a rank that ended none for long: it hung.
    """
    in_attempts = _in_attempts([bar.start_ns for bar in bars], rows)
    for bar in bars:
        own = in_attempts[bar.number]
        furthest = max((rows[place].last_step for place in own), default=-1)
        is_any_ended = any(rows[place].state == ENDED for place in own)
        for place in own:
            row = rows[place]
            if row.state == ENDED or not row.steps:
                continue
            ahead = furthest - row.last_step
            stood_ns = row.last_ns - row.stepped_ns
            is_hung = stood_ns >= max(LEAST_STOOD_S * 1e9, STOPPED_AFTER_STEPS * (row.mean_step_ns or 0.0))
            least = 0 if is_hung else unwritten_steps(mains[place].ends_ns)
            steps = ahead + 1 if is_any_ended else max(ahead, least)
            yield Unwritten(bar.number, row.rank, steps)


def step_time(mains: Iterable[Watched]) -> StepQuantiles:
    """Return quantiles (nearest-rank method) of the step times of the first rank of each attempt."""
    leads = [(process.source.rank, process.lengths.lengths_ns) for process in mains if process.lengths is not None]
    times_ns = sorted(itertools.chain.from_iterable(lengths_ns for _, lengths_ns in leads))
    if not times_ns:
        return StepQuantiles(None, None, None)
    count = len(times_ns)
    p50_s, p90_s, p99_s = (times_ns[max(0, math.ceil(share * count) - 1)] / 1e9 for share in (0.5, 0.9, 0.99))
    ranks = {rank for rank, lengths_ns in leads if lengths_ns}
    return StepQuantiles(p50_s, p90_s, p99_s, rank=ranks.pop() if len(ranks) == 1 else None)


def _rates(mains: Sequence[Watched], result: GoodputResult) -> tuple[float | None, float | None]:
    """Return samples and tokens per second of step time; each rank reports those of all ranks together."""
    lead = [process for process in mains if process.lengths is not None]
    seconds = sum(process.steps_ns for process in lead) / 1e9
    if not seconds or not result.productive_s:
        return None, None
    samples, tokens = sum(process.samples for process in lead), sum(process.tokens for process in lead)
    return samples / seconds if samples else None, tokens / seconds if tokens else None


MOST_POINTS: Final = 600
_MANY_OBJECTS: Final = 100_000

Progress = Callable[[int, int, int], None]
"""Called with the number of sources already read, the number of all sources, and the number of events so far."""


@attrs.frozen
class Chosen:
    """The sources of one session."""

    session: str
    others: tuple[str, ...]
    sources: list[tuple[Source, Iterator[Sequence[Event]]]]
    """Ordered by start of the attempt, ranks before their workers, and rank."""


def read_report(
    *paths: str | os.PathLike[str],
    session: str | None = None,
    run: str | None = None,
    baseline: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Report:
    """
    Read logs, and return the report on them.

    Args:
        paths: Log files, or directories that contain log files at any depth.
        session: The tag of the session or, without one, its run id; by default the session that started last.
        run: The id of the only run of the session to read; by default all of its runs.
        baseline: Logs of runs whose step times the session is expected to match.
        progress: Called with the progress of the reading.

    Raises:
        UnreadableError: There is nothing to read.
        ConfigError: There is no such session, or no such run in it.
    """
    with _few_collections():
        return _read_report(paths, session, run, baseline, progress)


def _read_report(
    paths: Sequence[Any], session: str | None, run: str | None, baseline: Sequence[Any], progress: Progress | None
) -> Report:
    recorded = replay(*paths)
    chosen = choose(recorded, session, run)
    gathered = gather(chosen.sources, progress)
    report = _report(gathered, chosen, _episodes(gathered, recorded, paths), recorded)
    report = attrs.evolve(report, paths=tuple(map(os.fspath, paths)), age_s=time.time() - report.goodput.end_ns / 1e9)
    if baseline:
        reference = replay(*baseline)
        earlier = gather(choose(reference, None).sources, progress)
        report = attrs.evolve(report, baseline=against(earlier.processes, gathered.processes))
    return attrs.evolve(report, verdict=judge(report))


def choose(recorded: Replay, session: str | None, run: str | None = None) -> Chosen:
    """
    Return the sources of *session*, by default of the one that started last; if *run* is given, only those of *run*.

    Raises:
        UnreadableError: No log holds anything.
        ConfigError: There is no such session, or no such run in it.
    """
    sessions: dict[str, list[tuple[Source, Iterator[Sequence[Event]]]]] = {}
    found = recorded.by_source()
    known = unified(source for source, _ in found)
    for recorded_source, frames in found:
        source = known.get(recorded_source.id)
        if source is not None:
            batches = _events_of(frames, source if source != recorded_source else None)
            sessions.setdefault(source.session_tag or source.run_id, []).append((source, batches))
    if not sessions:
        raise recorded.problems[0] if recorded.problems else UnreadableError("the logs", "hold nothing yet", "wait")
    ordered = sorted(sessions, key=lambda name: min(source.anchor.wall_ns for source, _ in sessions[name]))
    name = ordered[-1] if session is None else session
    if name not in sessions:
        raise ConfigError("--session", session, f"there is {', '.join(ordered[-20:])}")
    own = [item for item in sessions[name] if run in {None, item[0].run_id}]
    if not own:
        raise ConfigError("run", run, f"session {name} has {', '.join({one.run_id for one, _ in sessions[name]})}")
    starts: dict[tuple[str, int], int] = {}
    for source, _ in own:
        place = source.run_id, source.attempt
        starts[place] = min(source.anchor.wall_ns, starts.get(place, source.anchor.wall_ns))
    own.sort(key=lambda item: (starts[item[0].run_id, item[0].attempt], item[0].role != "main", item[0].rank))
    return Chosen(name, tuple(other for other in ordered if other != name), own)


def _events_of(frames: Iterator[FrameView], source: Source | None) -> Iterator[Sequence[Event]]:
    """Yield the events of each frame; if *source* is given, it replaces the source of the events."""
    for frame in frames:
        events = frame.events
        if source is not None:
            for event in events:
                event._source = source  # noqa: SLF001  the decoder's own slot
        yield events


def gather(sources: Sequence[tuple[Source, Iterator[Sequence[Event]]]], progress: Progress | None) -> Gatherer:
    """Read all of *sources*."""
    gathered = Gatherer(len(sources))
    with _few_collections():
        for place, (source, batches) in enumerate(sources):
            gathered.consume(
                source, _reported(batches, place, len(sources), gathered, progress) if progress else batches
            )
    return gathered


@contextmanager
def _few_collections() -> Iterator[None]:
    """Run the garbage collector less often: events form no reference cycles, and it took a fifth of the time."""
    before = gc.get_threshold()
    if before[0]:  # 0 says that it is off
        gc.set_threshold(max(before[0], _MANY_OBJECTS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _reported(
    batches: Iterator[Sequence[Event]], place: int, of: int, gathered: Gatherer, progress: Progress
) -> Iterator[Sequence[Event]]:
    for batch in batches:
        yield batch
        progress(place, of, gathered.events)


def _episodes(gathered: Gatherer, recorded: Replay, paths: Sequence[Any]) -> tuple[Episodes, ScoreAggregator]:
    """Score the windows in the order of time; if they are too many to be kept in memory, read the logs once more."""
    episodes = Episodes()
    aggregator = ScoreAggregator(on_leave=episodes.add)
    events: Iterable[Event]
    if gathered.windows_seen <= MOST_WINDOWS:
        events = sorted(gathered.windows, key=attrgetter("at_ns"))
    else:
        ids = {process.source.id for process in gathered.processes}
        kinds = (SectionWindow, KernelWindow, GpuTimingUnavailable)
        events = replay(*paths, to=kinds, sources=lambda source: source.id in ids)
    try:
        for event in events:
            aggregator(event)
    except UnreadableError as problem:
        recorded.problems.append(problem)
    for report in aggregator.result().windows:
        episodes.add(report)
    return episodes, aggregator


def _report(gathered: Gatherer, chosen: Chosen, scored: tuple[Episodes, ScoreAggregator], recorded: Replay) -> Report:
    episodes, aggregator = scored
    if chosen.session not in gathered.goodput.sessions():
        raise UnreadableError(f"session {chosen.session}", "holds nothing of any rank", "give the logs of its ranks")
    result = gathered.goodput.result(session=chosen.session)
    mains = [process for process in gathered.processes if process.is_rank]
    every_rank = rank_rows(gathered.processes, gathered.exit_status, gathered.exits)
    attempts = _attempts(gathered.goodput, chosen.session, every_rank)
    last = [row for row in every_rank if row.last_ns >= attempts[-1].start_ns] or every_rank
    spans = gathered.spans.result()
    parts = _parts(gathered, mains)
    what_if = compare_all(mains, gathered.waits)
    late = what_if.late if not what_if.why_not else late_by_windows(episodes, gathered.waits)
    world_size = max([row.rank + 1 for row in last] + [one.source.world_size for one in mains[-1:]])
    first = chosen.sources[0][0]
    not_finite = _not_finite(mains)
    not_drawn = [one.not_finite.get("") for one in mains if one.lengths is not None]
    samples_per_s, tokens_per_s = _rates(mains, result)
    configured = tuple(gathered.configured.perf_tag) if gathered.configured else ()
    return Report(
        session=chosen.session,
        paths=(),
        others=chosen.others,
        application=first.application,
        runs=tuple(dict.fromkeys(source.run_id for source, _ in chosen.sources)),
        perf_tags=first.perf_tags or configured,
        ranks_total=world_size,
        hosts=len({process.source.host for process in mains}),
        state=_state_of(last),
        events=gathered.events,
        goodput=result,
        attempts=attempts,
        ranks=_worth_a_look(last),
        missing_ranks=tuple(sorted(set(range(world_size)) - {row.rank for row in last})),
        exit_status=gathered.exit_status,
        age_s=0.0,
        step_time=step_time(mains),
        steps=gathered.steps.coarse(MOST_POINTS),
        step_width_ns=gathered.steps.width_of(MOST_POINTS),
        loss=gathered.loss.coarse(MOST_POINTS // 2),
        marks=_marks([*gathered.marks, *_mark_not_finite(not_finite)], attempts),
        marks_left_out=gathered.marks_left_out,
        parts=parts,
        is_start_left_out=any(tiles.usual_from for _, tiles in tiles_of(mains)),
        waited_share=_waited_share(what_if, parts),
        heatmap=heatmap_of_tiles(mains, what_if)
        or (heatmap_of_windows(episodes.latest) if episodes.latest is not None else None),
        what_if=attrs.evolve(what_if, late=()),
        late=late,
        standstills=tuple(_standstills(mains)),
        stalls=_stalls(mains),
        not_finite=not_finite,
        losses_not_drawn=sum(run.count + run.earlier for run in not_drawn if run is not None),
        pauses=_pauses(mains, what_if),
        startup_s=attempts[0].buckets_s.get(BEFORE_STEPS, 0.0),
        shutdown_s=attempts[-1].buckets_s.get(AFTER_STEPS, 0.0),
        first_batch_s=_first_batch_s(mains, parts),
        slowdown=_slowdown(gathered, mains),
        growth=_growth(mains),
        baseline=None,
        spans=_spans(spans, gathered, mains),
        open=_open_spans(spans, mains),
        errors=_errors(mains, every_rank),
        counters=_counters(gathered),
        own=_own_events(gathered),
        config={name: value for own in gathered.configs.values() for name, value in own.items()},
        losses=_losses(gathered, recorded, aggregator.too_late, _unwritten(mains, every_rank, attempts)),
        samples_per_s=samples_per_s,
        tokens_per_s=tokens_per_s,
    )
