"""The parts of a report, each from what was gathered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from trackside.events import span_names
from trackside.handlers import Replay
from trackside.handlers.models import SpanReport
from trackside.handlers.models.goodput import GoodputAccumulator, GoodputResult
from trackside.handlers.models.liveness import ENDED, LifeSigns, is_gone, liveness, worst
from trackside.report._gather import Gatherer, Mark, is_out_of_memory
from trackside.report._parts import OTHER, kind_of
from trackside.report._report import (
    AttemptBar,
    CounterRow,
    ErrorRow,
    Growth,
    LateRank,
    Losses,
    NotFinite,
    OpenRow,
    Part,
    Pauses,
    RankRow,
    Slowdown,
    SpanRow,
    StallRow,
    StepQuantiles,
)
from trackside.report._rules import UNWRITTEN_S
from trackside.report._tiles import OUTSIDE, STANDSTILLS, StepTiles, is_gap, tile_words
from trackside.report._trends import find_change, find_rises, joined
from trackside.report._watched import Watched
from trackside.report._whatif import WhatIf, compare_ranks, find_pause

PRODUCTIVE: Final = "PRODUCTIVE"
LEAST_EXCHANGE_NS: Final = 2e7
"""An exchange that takes less is not worth a sentence where no span measures it."""
_MOST_RANKS: Final = 64
_MOST_ROWS: Final = 200
_MOST_GROWTHS: Final = 8


def ranks(processes: Sequence[Watched], exit_status: int | None = None) -> list[RankRow]:
    """Return every rank of every attempt, with what became of it; *exit_status* is the launcher's."""
    newest_ns = max(process.last_ns for process in processes)
    mains = [process for process in processes if process.is_rank]
    latest: dict[int, int] = {}
    for process in mains:
        latest[process.source.rank] = max(process.first_ns, latest.get(process.source.rank, 0))
    return [_rank(process, newest_ns, latest[process.source.rank], exit_status) for process in mains]


def _rank(process: Watched, newest_ns: int, latest_ns: int, exit_status: int | None) -> RankRow:
    signs = LifeSigns(
        last_ns=process.last_ns,
        heartbeat_interval_ns=process.heartbeat_interval_ns,
        end_reason=process.end_reason,
        exit_status=exit_status,
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
    )


def state_of(rows: Iterable[RankRow]) -> str:
    """Return what became of an attempt: the worst of its ranks' states."""
    return worst(row.state for row in rows)


def worth_a_look(rows: Sequence[RankRow]) -> tuple[RankRow, ...]:
    """Return those that did not end, that are behind, that are slow, and then the others, as many as fit."""

    def worth(row: RankRow) -> tuple[bool, int, float, int]:
        return row.has_good_end, row.last_step, -(row.mean_step_ns or 0.0), row.rank

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
        out = [row for row in own if not row.has_good_end]
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


def tiles_of(mains: Iterable[Watched]) -> list[tuple[Watched, StepTiles]]:
    """Return each rank's steps by their parts: by spans or, where those say much more, by section windows."""
    ranked = list(mains)
    by_spans = max((one.tiles.named_share for one in ranked), default=0.0)
    by_windows = max((one.windows.named_share for one in ranked if one.windows.places), default=0.0)
    # Spans have times, so they are preferred: they say also in which order parts come, and between which time is lost.
    has_spans = by_windows <= 2 * by_spans
    found = [(one, one.tiles if has_spans else one.windows) for one in ranked]
    return [(one, tiles) for one, tiles in found if tiles.places]


def compare(mains: Sequence[Watched], waits: set[str]) -> WhatIf:
    """Return what comparing the ranks over all attempts came to; the figures are those of the last ones."""
    has_one_host = len({one.source.host for one in mains}) == 1 and bool(mains[0].source.host)
    attempts = [{rank: tiles for rank, (_, tiles) in own.items()} for own in _by_attempt(mains)]
    # Windows of sections have no times within a step.
    has_times = not any(tiles.first_steps for own in attempts for tiles in own.values())
    return compare_ranks(attempts, waits, have_one_clock=has_one_host and has_times)


def _by_attempt(mains: Iterable[Watched]) -> list[dict[int, tuple[Watched, StepTiles]]]:
    """Return the ranks of each attempt that recorded steps, with these."""
    attempts: dict[tuple[str, int], dict[int, tuple[Watched, StepTiles]]] = {}
    for one, tiles in tiles_of(mains):
        attempts.setdefault((one.source.run_id, one.source.attempt), {})[one.source.rank] = one, tiles
    return list(attempts.values())


def late(what_if: WhatIf, mains: Sequence[Watched]) -> tuple[LateRank, ...]:
    """Return the late ranks with their hosts."""
    attempts = _by_attempt(mains)
    return tuple(
        LateRank(
            rank=one.rank,
            node=attempts[one.attempt][one.rank][0].source.host,
            what=OUTSIDE if is_gap(one.what) else one.what,
            where=tile_words(one.what),
            own_ns=one.own_ns,
            peers_ns=one.peers_ns,
            lateness_ns=one.lateness_ns,
            since_step=one.since_step,
            since_ns=attempts[one.attempt][one.rank][0].tiles.time_of(one.since_step),
            until_step=one.until_step,
            is_over=one.is_over,
            lost_s=one.lost_s,
            also_in=tuple(tile_words(name) for name, _ in one.parts if name != one.what),
            waited_in=_waited_in(one.waited_in),
            certainty=one.certainty,
        )
        for one in what_if.late
    )


def _waited_in(tile: str) -> str:
    if not tile:
        return ""
    return tile_words(tile) if is_gap(tile) else f"in {tile}"


def pauses(mains: Sequence[Watched], what_if: WhatIf) -> Pauses | None:
    """Return what makes steps longer at regular intervals, in the last attempt."""
    attempts = _by_attempt(mains)
    last = {rank: tiles for rank, (_, tiles) in attempts[-1].items()} if attempts else {}
    found = find_pause(last, what_if.waits_in)
    if found is None:
        return None
    where = tile_words(found.what)
    return Pauses(
        rank=found.rank,
        every_steps=found.every_steps,
        count=found.count,
        length_ns=found.length_ns,
        where=where if is_gap(found.what) else f"in {where}",
        cost_s=found.cost_s,
        first_step=found.first_step,
    )


def startup_s(mains: Sequence[Watched], result: GoodputResult) -> float:
    """Return the time before the first step of the first attempt that is in no bucket of its own, in seconds."""
    stepped = [process for process in mains if process.steps and process.source.attempt == mains[0].source.attempt]
    if not stepped:
        return 0.0
    before_s = max(0, min(process.first_step_ns - process.first_ns for process in stepped)) / 1e9
    known_s = sum(float(result.badput_s.get(name, 0.0)) for name in ("ACCELERATOR_INITIALIZATION", "TRAINING_PREP"))
    other = result.badput_s.get("OTHER", 0.0)
    return max(0.0, min(before_s - known_s, float(other)))


def parts(gathered: Gatherer, mains: Sequence[Watched]) -> tuple[Part, ...]:
    """Return what a step is made of, the largest first; together the parts are as long as the step."""
    found = tiles_of(mains)
    steps = sum(sum(tiles.steps) for _, tiles in found)
    totals: dict[str, float] = {}
    for _, tiles in found:
        for name, column in tiles.took.items():
            if name not in STANDSTILLS:
                known = OUTSIDE if is_gap(name) else name
                totals[known] = totals.get(known, 0.0) + math.fsum(column)
    if not steps or set(totals) <= {OUTSIDE}:
        return ()
    for name in gathered.waits - totals.keys():  # a section that waits, beside spans
        waited = math.fsum(math.fsum(one.windows.took.get(name, ())) for one, _ in found)
        if 0 < waited <= 1.1 * totals.get(OUTSIDE, 0.0):  # else the section lies within a part
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
    """Return for each part how long it took in each block of steps, on average over all ranks, in seconds a step."""
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


def waited_share(what_if: WhatIf, made_of: Sequence[Part]) -> float | None:
    """Return how much of a step the exchange between ranks takes, waiting for late ranks left out."""
    if what_if.waits_in and what_if.step_ns and what_if.exchanged_ns >= LEAST_EXCHANGE_NS:
        return what_if.exchanged_ns / what_if.step_ns
    waiting = [part.share for part in made_of if part.kind == "waiting"]  # known by name
    return sum(waiting) if waiting else None


def slowdown(gathered: Gatherer, mains: Sequence[Watched]) -> Slowdown | None:
    """Return since when steps took longer, and which part of them."""
    leads = [process for process in mains if process.lengths is not None]
    runs = [process.lengths for process in leads if process.lengths is not None]
    lengths, numbers = joined(runs)
    change = find_change(lengths)
    if change is None:
        return None
    step = numbers[change.place]
    at_ns = next((at for at, one in gathered.steps.points() if one.last_step >= step), 0)
    blocks = max(run.block for run in runs)
    grew = around(gathered, leads, step)
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


def around(gathered: Gatherer, mains: Sequence[Watched], step: int) -> dict[str, tuple[float, float]]:
    """Return for each part the mean of a step before *step* and from there on, in ns."""
    sums: dict[str, list[float]] = {}
    counts = [0, 0]
    for _, tiles in tiles_of(mains):
        sides = [int(tiles.first_step(at) >= step) for at in range(len(tiles.places))]
        for side, count in zip(sides, tiles.steps, strict=True):
            counts[side] += count
        for name, column in tiles.took.items():
            if name not in STANDSTILLS:
                own = sums.setdefault(OUTSIDE if is_gap(name) else name, [0.0, 0.0])
                for side, value in zip(sides, column, strict=True):
                    own[side] += value
    for name in {name for one in mains for name in one.windows.took} & gathered.waits - sums.keys():
        own = [0.0, 0.0]
        for one in mains:
            for at, value in enumerate(one.windows.took.get(name, ())):
                own[int(one.windows.first_step(at) >= step)] += value
        outside = sums.setdefault(OUTSIDE, [0.0, 0.0])
        if sum(own) <= 1.1 * sum(outside):  # else the section lies within a part
            sums[name] = own
            sums[OUTSIDE] = [max(0.0, of_all - waited) for of_all, waited in zip(outside, own, strict=True)]
    return {name: (own[0] / (counts[0] or 1), own[1] / (counts[1] or 1)) for name, own in sums.items()}


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


def errors(mains: Sequence[Watched], rows: Sequence[RankRow]) -> tuple[ErrorRow, ...]:
    """Return the exceptions that were raised, each once, the first one first."""
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
                    step=row.last_step,
                    at_ns=row.last_ns,
                    type=row.error,
                    message="",
                    is_out_of_memory=is_out_of_memory(row.error, ""),
                    is_fatal=True,
                )
            )
    return tuple(sorted(found, key=lambda row: (not row.is_fatal, row.at_ns))[:_MOST_ROWS])


def stalls(mains: Sequence[Watched]) -> tuple[StallRow, ...]:
    """Return the stalls that ranks noticed, by time."""
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


def not_finite(mains: Sequence[Watched]) -> NotFinite | None:
    """Return since when the loss was not finite; None if it always was."""
    found = [process for process in mains if process.not_finite_step is not None]
    if not found:
        return None
    first = min(found, key=lambda process: (process.not_finite_step, process.source.rank))
    return NotFinite(
        value=first.not_finite,
        step=first.not_finite_step if first.not_finite_step is not None else -1,
        at_ns=first.not_finite_ns,
        ranks=tuple(sorted({process.source.rank for process in found})),
        first_rank=first.source.rank,
    )


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


def losses(gathered: Gatherer, recorded: Replay, too_late: int, last: Sequence[RankRow]) -> Losses:
    """Return what the logs do not hold."""
    bad = [row for row in last if row.state != ENDED]
    furthest = max((row.last_step for row in last), default=-1)
    own = {process.source.id for process in gathered.processes}

    def counted(name: str) -> int:
        told = (process.counts.get(name, 0) for process in gathered.processes)
        return sum(number for number in told if isinstance(number, int))

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
        unwritten=tuple(
            (row.rank, _unwritten_steps(row, furthest, has_whole=len(bad) < len(last)))
            for row in bad
            if row.mean_step_ns
        ),
    )


def _unwritten_steps(row: RankRow, furthest: int, *, has_whole: bool) -> int:
    """Return how many steps may be in no log: ranks keep step with one that recorded its end; else by time."""
    if has_whole:
        return max(0, furthest - row.last_step) + 1
    return max(furthest - row.last_step, math.ceil(UNWRITTEN_S * 1e9 / (row.mean_step_ns or 1e9)))


def step_time(mains: Sequence[Watched]) -> StepQuantiles:
    """Return the quantiles of the step times, by nearest rank."""
    times_ns = sorted(
        length_ns for process in mains if process.lengths is not None for length_ns in process.lengths.lengths_ns
    )
    if not times_ns:
        return StepQuantiles(None, None, None)
    count = len(times_ns)
    return StepQuantiles(*(times_ns[max(0, math.ceil(share * count) - 1)] / 1e9 for share in (0.5, 0.9, 0.99)))


def rates(mains: Sequence[Watched], result: GoodputResult) -> tuple[float | None, float | None]:
    """Return samples and tokens in a second of productive time; ranks tell those of all of them together."""
    lead = [process for process in mains if process.lengths is not None]
    seconds = sum(process.steps_ns for process in lead) / 1e9
    if not seconds or not result.productive_s:
        return None, None
    samples, tokens = sum(process.samples for process in lead), sum(process.tokens for process in lead)
    return samples / seconds if samples else None, tokens / seconds if tokens else None
