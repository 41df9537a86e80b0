"""The parts of a report, each from what was gathered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from trackside.events import span_names
from trackside.handlers import Replay
from trackside.handlers.models import SpanReport
from trackside.handlers.models.goodput import GoodputAccumulator, GoodputResult
from trackside.views._bins import Bins
from trackside.views._episodes import Episodes
from trackside.views._gather import Gatherer, Mark
from trackside.views._parts import OTHER, kind_of
from trackside.views._report import (
    AttemptBar,
    CounterRow,
    ErrorRow,
    Growth,
    Losses,
    OpenRow,
    Part,
    RankRow,
    Slowdown,
    SpanRow,
)
from trackside.views._trends import find_change, find_rises, joined
from trackside.views._watched import DIED, ENDED, UNKNOWN, Watched

PRODUCTIVE: Final = "PRODUCTIVE"
_MOST_RANKS: Final = 64
_MOST_ROWS: Final = 200
_MOST_GROWTHS: Final = 8
_SILENT_NS: Final = 60 * 10**9
"""As `read_runs`: so long after its last event a process has died if others were heard of."""
_SECTION: Final = "section "


def ranks(processes: Sequence[Watched]) -> list[RankRow]:
    """Return every rank of every attempt, with what became of it."""
    newest_ns = max(process.last_ns for process in processes)
    mains = [process for process in processes if process.is_rank]
    latest: dict[int, int] = {}
    for process in mains:
        latest[process.source.rank] = max(process.first_ns, latest.get(process.source.rank, 0))
    return [_rank(process, newest_ns, latest[process.source.rank]) for process in mains]


def _rank(process: Watched, newest_ns: int, latest_ns: int) -> RankRow:
    state, reason = ENDED, process.end_reason or ""
    if process.end_reason is None:
        silent_ns = newest_ns - process.last_ns
        if latest_ns > process.first_ns:
            state, reason = DIED, "no end record, and its rank was launched again"
        elif process.last_beat_ns and silent_ns > _SILENT_NS:
            state, reason = DIED, "no end record, and others were heard of long after"
        else:
            state, reason = UNKNOWN, "no end record"
    source = process.source
    return RankRow(
        rank=source.rank,
        attempt=source.attempt,
        host=source.host,
        pid=source.pid,
        state=state,
        reason=reason,
        first_ns=process.first_ns,
        last_ns=process.last_ns,
        steps=process.steps,
        last_step=process.last_step,
        stepped_ns=process.step_ended_ns,
        mean_step_ns=process.mean_step_ns,
    )


def state_of(rows: Iterable[RankRow]) -> str:
    """Return what became of an attempt: the worst of its ranks' states."""
    states = {row.state for row in rows}
    return next((state for state in (DIED, UNKNOWN) if state in states), ENDED)


def worth_a_look(rows: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """Return those that did not end, that are behind, that are slow, and then the others, as many as fit."""

    def worth(row: RankRow) -> tuple[bool, int, float, int]:
        return row.state == ENDED, row.last_step, -(row.mean_step_ns or 0.0), row.rank

    return tuple(sorted(rows, key=worth)[:_MOST_RANKS])


def attempts(model: GoodputAccumulator, whole: GoodputResult, rows: Sequence[RankRow]) -> tuple[AttemptBar, ...]:
    """Return each attempt's time by bucket."""
    stretches = model.attempts(session=whole.session)
    bars = []
    for number, (start_ns, end_ns) in enumerate(stretches):
        result = whole
        if len(stretches) > 1:
            result = model.result(session=whole.session, start_ns=start_ns, end_ns=end_ns)
        own = [row for row in rows if start_ns <= row.first_ns < end_ns or row.first_ns == start_ns]
        out = [row for row in own if row.state != ENDED or row.reason not in {"", "closed", "exit"}]
        bars.append(
            AttemptBar(
                number=number,
                start_ns=start_ns,
                end_ns=end_ns,
                goodput=result.goodput,
                buckets_s=_buckets(result),
                ranks=len(own),
                first_out=min(out, key=lambda row: row.last_ns, default=None),
            )
        )
    return tuple(bars)


def _buckets(result: GoodputResult) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, length in result.badput_s.items():
        if isinstance(length, dict):
            found.update(length)
        else:
            found[name] = length
    found = dict(sorted(found.items(), key=lambda item: -item[1]))
    return {PRODUCTIVE: result.productive_s, **{name: length for name, length in found.items() if length > 0}}


def marks(found: Iterable[Mark], bars: Sequence[AttemptBar]) -> tuple[Mark, ...]:
    """Return what happened, by time, restarts and ends of attempts included."""
    every = list(found)
    for bar in bars:
        if bar.number:
            every.append(Mark(bar.start_ns, "restart", f"attempt {bar.number} began", 0))
        if bar.first_out is not None:
            one = bar.first_out
            label = f"rank {one.rank} fell silent" if one.state != ENDED else f"rank {one.rank} ended: {one.reason}"
            every.append(Mark(one.last_ns, "end", label, one.rank, one.last_step))
    return tuple(sorted(every, key=lambda mark: mark.at_ns))


def parts(gathered: Gatherer, mains: Sequence[Watched]) -> tuple[Part, ...]:
    """Return what a step is made of, by spans or, where there are none, by sections; the largest first."""
    steps, total_ns = sum(one.steps for one in mains), sum(one.steps_ns for one in mains)
    if not steps or not total_ns:
        return ()
    spans = {name for name in gathered.parts if not name.startswith(_SECTION)}
    # Beside spans, sections would tell the same time again; but that ranks wait, only sections say.
    shown = spans | {f"{_SECTION}{name}" for name in gathered.waits} if spans else set(gathered.parts)
    found = []
    for name in sorted(shown & set(gathered.parts)):
        bins = gathered.parts[name]
        sums = [(one.total, one.count) for _, one in bins.points()]
        total, count = math.fsum(part for part, _ in sums), sum(number for _, number in sums)
        mean_ns = total / (steps if name in spans else count)
        plain = name.removeprefix(_SECTION)
        kind = kind_of(plain, gathered.waits)
        found.append(Part(name=plain, kind=kind, mean_ns=mean_ns, share=min(1.0, mean_ns * steps / total_ns)))
    return tuple(sorted(found, key=lambda part: -part.mean_ns))


def waited_share(episodes: Episodes, mains: Sequence[Watched], made_of: Sequence[Part]) -> float | None:
    """Return how much of a step ranks waited for others."""
    steps, total_ns = sum(one.steps for one in mains), sum(one.steps_ns for one in mains)
    if not steps or not total_ns:
        return None
    if episodes.waited_s:
        return episodes.waited_s / episodes.waited_steps * 1e9 / (total_ns / steps)
    waiting = [part.share for part in made_of if part.kind == "waiting"]
    return sum(waiting) if waiting else None


def slowdown(gathered: Gatherer, mains: Sequence[Watched]) -> Slowdown | None:
    """Return since when steps took longer, and which part of them."""
    runs = [process.lengths for process in mains if process.lengths is not None]
    lengths, numbers = joined(runs)
    change = find_change(lengths)
    if change is None:
        return None
    step = numbers[change.place]
    at_ns = next((at for at, one in gathered.steps.points() if one.last_step >= step), 0)
    blocks = max(run.block for run in runs)
    grew = {name: _around(bins, at_ns) for name, bins in gathered.parts.items()}
    name = max(grew, key=lambda part: grew[part][1] - grew[part][0], default="")
    before, after = grew.get(name, (0.0, 0.0))
    if after - before < (change.after - change.before) / 3:
        name = ""
    plain = name.removeprefix(_SECTION)
    return Slowdown(
        step=step,
        at_ns=at_ns,
        before_ns=change.before,
        after_ns=change.after,
        cost_s=(change.after - change.before) * (len(lengths) - change.place) * blocks / 1e9,
        part=plain,
        part_before_ns=before,
        part_after_ns=after,
        kind=kind_of(plain, gathered.waits) if plain else OTHER,
    )


def _around(bins: Bins, at_ns: int) -> tuple[float, float]:
    """Return the mean before and from *at_ns* on."""
    points = bins.points()
    sides = [one for at, one in points if at < at_ns], [one for at, one in points if at >= at_ns]
    before, after = (math.fsum(one.total for one in side) / (sum(one.count for one in side) or 1) for side in sides)
    return before, after


def growth(mains: Sequence[Watched]) -> tuple[Growth, ...]:
    """Return which memory grew without end, the fastest of each counter first."""
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


def spans(report: SpanReport, gathered: Gatherer, mains: Sequence[Watched]) -> tuple[SpanRow, ...]:
    """Return all spans by name, the longest together first."""
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
    if stepped:  # they were counted by themselves
        extremes = [one for _, one in gathered.steps.points()]
        totals[span_names.TRAINING_ITERATION] = [
            stepped,
            0,
            sum(one.steps_ns for one in mains),
            round(min(one.low for one in extremes)),
            round(max(one.high for one in extremes)),
        ]
    found = [
        SpanRow(name=name, count=own[0], failed=own[1], total_ns=own[2], min_ns=own[3], max_ns=own[4])
        for name, own in totals.items()
    ]
    return tuple(sorted(found, key=lambda row: -row.total_ns)[:_MOST_ROWS])


def open_spans(report: SpanReport, mains: Sequence[Watched]) -> tuple[OpenRow, ...]:
    """Return what did not end, the longest open first: of each process the innermost alone."""
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


def errors(report: SpanReport) -> tuple[ErrorRow, ...]:
    """Return the exceptions that were raised in spans, the first one first."""
    found = [
        ErrorRow(
            rank=source.rank,
            name=one.name,
            step=one.step,
            at_ns=one.at_ns,
            error=f"{one.error.get('type', 'an exception')}: {one.error.get('message', '')}",
        )
        for source in report.sources
        for one in source.errors
    ]
    return tuple(sorted(found, key=lambda row: row.at_ns)[:_MOST_ROWS])


def counters(gathered: Gatherer) -> tuple[CounterRow, ...]:
    """Return all counters by name."""
    found = []
    for name, totals in list(gathered.counters.result().counters.items())[:_MOST_ROWS]:
        level = gathered.levels.get(name)
        found.append(
            CounterRow(
                name=name,
                unit=totals.unit,
                count=totals.count,
                sum=totals.sum,
                mean=totals.mean,
                minimum=totals.minimum,
                maximum=totals.maximum,
                p50=totals.quantiles.get("p50"),
                p99=totals.quantiles.get("p99"),
                level=level.coarse(80) if level is not None else [],
            )
        )
    return tuple(found)


def losses(gathered: Gatherer, recorded: Replay, too_late: int) -> Losses:
    """Return what the logs do not hold."""
    own = {process.source.id for process in gathered.processes}

    def counted(name: str) -> int:
        told = (process.counts.get(name, 0) for process in gathered.processes)
        return sum(number for number in told if isinstance(number, int))

    return Losses(
        shed=dict(gathered.shed),
        missing=sum(ledger.missing for source_id, ledger in recorded.ledgers.items() if source_id in own),
        damaged_bytes=recorded.damaged_bytes,
        rested=dict(gathered.rested),
        invalid=counted("invalid"),
        failed=counted("failed"),
        suppressed=counted("suppressed"),
        unread=tuple(str(problem) for problem in recorded.problems),
        too_late=too_late,
    )


def rates(mains: Sequence[Watched], result: GoodputResult) -> tuple[float | None, float | None]:
    """Return samples and tokens in a second of productive time; ranks tell those of all of them together."""
    lead = [process for process in mains if process.lengths is not None]
    seconds = sum(process.steps_ns for process in lead) / 1e9
    if not seconds or not result.productive_s:
        return None, None
    samples, tokens = sum(process.samples for process in lead), sum(process.tokens for process in lead)
    return samples / seconds if samples else None, tokens / seconds if tokens else None
