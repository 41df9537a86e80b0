"""What a job looks like now, as families of series: few, however many ranks there are."""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import attrs

from trackside.events import (
    CounterWindow,
    Event,
    GoodputUpdated,
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    StragglerReport,
    TrainingMetricsUpdated,
)
from trackside.handlers._figures import WORST, flat_badput
from trackside.handlers._scoreboard import Scoreboard
from trackside.handlers.models import CounterBoard

BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000)
LOSSES: Final = ("failed", "invalid", "rested", "shed")
"""The kinds of loss that a handler's counts tell apart; a heartbeat has no word for ``rested``."""
_MOST_RUNS: Final = 16
_TRAINING: Final = {
    "avg_tokens_per_second": ("trackside_tokens_per_second", "Tokens of all ranks, per second of iteration"),
    "train_throughput_per_gpu": ("trackside_teraflops_per_gpu", "10^12 floating-point operations per second"),
    "mfu": ("trackside_mfu_ratio", "Model FLOPs utilization"),
    "latest_loss": ("trackside_loss", "The latest training loss"),
}


class Histogram(NamedTuple):
    """Counts up to each bound, the last of which is infinity, and the sum."""

    counts: Sequence[int]
    total: float


class Series(NamedTuple):
    """One series of a family: its labels' values, and its own."""

    labels: tuple[str, ...]
    value: float | Histogram


@attrs.frozen
class Family:
    """Series of one name; counters are named without their ``_total``."""

    name: str
    kind: Literal["gauge", "counter", "histogram", "summary"]
    help: str
    labels: tuple[str, ...]
    series: list[Series]


@attrs.define
class _Rank:
    """One process of a run."""

    source: Source
    heartbeat_ns: int = 0
    ended: bool = False
    dropped: dict[str, int] = attrs.field(factory=dict)
    durations: dict[str, tuple[list[int], list[float]]] = attrs.field(factory=dict)
    """By loop: a count for each bucket, and the sum in a list of its own."""
    last_step: int = -1
    samples: int = 0
    tokens: int = 0
    training: TrainingMetricsUpdated | None = None


@attrs.define
class _Run:
    """One run: its ranks, and what is known of them together."""

    ranks: dict[str, _Rank] = attrs.field(factory=dict)
    goodput: dict[tuple[str, str], tuple[Source, GoodputUpdated]] = attrs.field(factory=dict)
    """By session and by who says it."""
    scores: Scoreboard = attrs.field(factory=Scoreboard)
    counters: CounterBoard = attrs.field(factory=CounterBoard)


class Board:
    """
    Reads events of any number of processes, and tells what there is to see.

    Of more than 16 runs it forgets the first.

    Args:
        per_rank: Whether each rank has series of its own, too.
        buckets_s: The upper bounds of the buckets of iterations' durations, rising.
        stats: Returns the counts of the bus of this process, handler by handler.
    """

    def __init__(
        self,
        *,
        per_rank: bool = False,
        buckets_s: Sequence[float] = BUCKETS_S,
        stats: Callable[[], Any] | None = None,
    ) -> None:
        self.buckets_s = tuple(float(bound) for bound in buckets_s)
        self._per_rank = per_rank
        self._stats = stats
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}

    def read(self, event: Event) -> None:
        """Take note of *event*."""
        source = event.source
        with self._lock:
            run = self._runs.get(source.run_id)
            if run is None:
                run = self._runs[source.run_id] = _Run()
                if len(self._runs) > _MOST_RUNS:
                    del self._runs[next(iter(self._runs))]
            rank = run.ranks.get(source.id)
            if rank is None:
                rank = run.ranks[source.id] = _Rank(source)
            self._note(event, run, rank)

    def _note(self, event: Event, run: _Run, rank: _Rank) -> None:
        if isinstance(event, IterationEnded):
            self._iterated(event, rank)
        elif isinstance(event, CounterWindow):
            run.counters(event)
        elif isinstance(event, Heartbeat):
            rank.heartbeat_ns = event.at_ns
            rank.dropped = {reason: event.counts[reason] for reason in LOSSES if reason in event.counts}
        elif isinstance(event, GoodputUpdated):
            run.goodput[event.session, rank.source.id] = (rank.source, event)
        elif isinstance(event, StragglerReport):
            run.scores.read(event)
        elif isinstance(event, TrainingMetricsUpdated):
            rank.training = event
        elif isinstance(event, SourceEnded):
            rank.ended = True

    def _iterated(self, event: IterationEnded, rank: _Rank) -> None:
        if event.failed:
            return
        counts, sums = rank.durations.setdefault(event.kind, ([0] * (len(self.buckets_s) + 1), [0.0]))
        duration_s = event.duration_ns / 1e9
        counts[bisect.bisect_left(self.buckets_s, duration_s)] += 1
        sums[0] += duration_s
        if event.kind == "training":
            rank.last_step = max(rank.last_step, event.step)
            rank.samples += event.samples or 0
            rank.tokens += event.tokens or 0

    # --- what there is to see ----------------------------------------------------------------------------------

    def families(self) -> list[Family]:
        """Return everything as it stands, families without series left out."""
        told: dict[str, Family] = {}
        with self._lock:
            for name, run in self._runs.items():
                for family in self._of_run(run):
                    known = told.setdefault(
                        family.name, attrs.evolve(family, labels=("run", *family.labels), series=[])
                    )
                    known.series.extend(Series((name, *one.labels), one.value) for one in family.series)
        if self._stats is not None:
            told["trackside_dropped"] = _of_handlers(self._stats())
        return [family for family in told.values() if family.series]

    def _of_run(self, run: _Run) -> Iterator[Family]:
        ranks = sorted(run.ranks.values(), key=lambda rank: (rank.source.rank, rank.source.id))
        yield from self._of_steps(ranks)
        yield from _of_life(ranks)
        yield from _of_training(ranks)
        yield from _of_goodput(run.goodput, per_rank=self._per_rank)
        yield from _of_scores(run.scores, per_rank=self._per_rank)
        yield from _of_counters(run.counters)
        if self._stats is None:
            dropped: dict[str, int] = {}
            for rank in ranks:
                for reason, count in rank.dropped.items():
                    dropped[reason] = dropped.get(reason, 0) + count
            series = [Series(("all", reason), count) for reason, count in dropped.items()]
            yield Family("trackside_dropped", "counter", _DROPPED, ("handler", "reason"), series)
        if self._per_rank:
            yield from self._of_each(ranks)

    def _of_steps(self, ranks: Sequence[_Rank]) -> Iterator[Family]:
        loops: dict[str, list[tuple[list[int], list[float]]]] = {}
        for rank in ranks:
            for loop, told in rank.durations.items():
                loops.setdefault(loop, []).append(told)
        series = [
            Series((loop,), Histogram([sum(column) for column in zip(*(c for c, _ in told), strict=True)], _sum(told)))
            for loop, told in loops.items()
        ]
        yield Family("trackside_step_duration_seconds", "histogram", "How long iterations took", ("loop",), series)

    def _of_each(self, ranks: Sequence[_Rank]) -> Iterator[Family]:
        series = [
            Series((str(rank.source.rank), rank.source.host, loop), Histogram(counts, sums[0]))
            for rank in ranks
            for loop, (counts, sums) in rank.durations.items()
        ]
        what = "How long iterations of a rank took"
        # A rank's buckets would be twenty series, so of each there are count and sum alone.
        yield Family("trackside_rank_step_duration_seconds", "summary", what, ("rank", "host", "loop"), series)
        beats = [
            Series((str(rank.source.rank), rank.source.host), rank.heartbeat_ns / 1e9)
            for rank in ranks
            if rank.heartbeat_ns and not rank.ended
        ]
        what = "When a rank was last heard of"
        yield Family("trackside_rank_heartbeat_timestamp_seconds", "gauge", what, ("rank", "host"), beats)


_DROPPED: Final = "Events that a handler should have had and never will"


def _one(name: str, kind: Literal["gauge", "counter"], what: str, value: float | None) -> Family:
    return Family(name, kind, what, (), [] if value is None else [Series((), value)])


def _sum(told: Sequence[tuple[list[int], list[float]]]) -> float:
    return math.fsum(sums[0] for _, sums in told)


def _of_life(ranks: Sequence[_Rank]) -> Iterator[Family]:
    main = [rank for rank in ranks if rank.source.role == "main"]
    alive = [rank for rank in main if not rank.ended]
    yield _one("trackside_ranks", "gauge", "Ranks that were heard of and have not ended", len(alive))
    beats = [rank.heartbeat_ns for rank in alive if rank.heartbeat_ns]
    oldest_s = min(beats) / 1e9 if beats else None
    yield _one("trackside_oldest_heartbeat_timestamp_seconds", "gauge", "Of the ranks' latest heartbeats", oldest_s)
    steps = [rank.last_step for rank in main if rank.last_step >= 0]
    yield _one("trackside_last_step", "gauge", "The furthest training step completed", max(steps, default=None))
    yield _one("trackside_samples", "counter", "Samples trained on, of all ranks", sum(rank.samples for rank in ranks))
    yield _one("trackside_tokens", "counter", "Tokens trained on, of all ranks", sum(rank.tokens for rank in ranks))


def _of_training(ranks: Sequence[_Rank]) -> Iterator[Family]:
    """Yield what the first rank that knows it says of all."""
    told = next((rank.training for rank in ranks if rank.training is not None), None)
    for field, (name, what) in _TRAINING.items():
        yield _one(name, "gauge", what, getattr(told, field, None))


def _of_goodput(told: Mapping[tuple[str, str], tuple[Source, GoodputUpdated]], *, per_rank: bool) -> Iterator[Family]:
    best: dict[str, GoodputUpdated] = {}
    order = sorted(told.items(), key=lambda one: (-len(one[1][1].ranks.get("rank", ())), one[1][0].rank, one[0]))
    for (session, _), (_, update) in order:
        best.setdefault(session, update)  # of whoever knows most ranks

    def family(name: str, kind: Literal["gauge", "counter"], what: str, field: str) -> Family:
        values = ((session, getattr(update, field)) for session, update in best.items())
        series = [Series((session,), value) for session, value in values if value is not None]
        return Family(name, kind, what, ("session",), series)

    yield family("trackside_goodput_ratio", "gauge", "The productive share of the time", "goodput")
    yield family("trackside_elapsed_seconds", "gauge", "The session's time", "elapsed_s")
    yield family("trackside_productive_seconds", "gauge", "Of it, the productive part", "productive_s")
    yield family("trackside_disruptions", "counter", "Attempts after the first", "disruptions")
    series = [
        Series((session, bucket), spent)
        for session, update in best.items()
        for bucket, spent in flat_badput(update.badput_s)
    ]
    yield Family("trackside_badput_seconds", "counter", "Time that was lost, by what to", ("session", "bucket"), series)
    if per_rank:
        series = [
            Series((session, str(rank)), goodput)
            for session, update in best.items()
            for rank, goodput in zip(update.ranks.get("rank", ()), update.ranks.get("goodput", ()), strict=False)
            if goodput is not None
        ]
        what = "The productive share of a rank's time"
        yield Family("trackside_rank_goodput_ratio", "gauge", what, ("session", "rank"), series)


def _of_scores(board: Scoreboard, *, per_rank: bool) -> Iterator[Family]:
    series = [Series((kind, section, stat), score) for kind, section, stat, score in board.stats()]
    what = "Scores over all ranks: the lowest, the 5th and the 50th percentile"
    yield Family("trackside_straggler_score", "gauge", what, ("kind", "section", "stat"), series)
    labels = ("kind", "section", "rank", "host")
    worst = [Series((one.kind, one.section, str(one.rank), one.host), one.score) for one in board.worst(WORST)]
    yield Family("trackside_straggler_worst_score", "gauge", "Of the worst ranks, the lowest score", labels, worst)
    if per_rank:
        each = [Series((one.kind, one.section, str(one.rank), one.host), one.score) for one in board.scores]
        yield Family("trackside_rank_straggler_score", "gauge", "Of every rank", labels, each)


def _of_counters(board: CounterBoard) -> Iterator[Family]:
    counters = board.result().counters
    counts, sums, figures = [], [], []
    for name, totals in counters.items():
        counts.append(Series((name,), totals.count))
        sums.append(Series((name, totals.unit), totals.sum))
        known = {"min": totals.minimum, "max": totals.maximum, "mean": totals.mean, **totals.quantiles}
        figures += [Series((name, totals.unit, stat), value) for stat, value in known.items() if value is not None]
    yield Family("trackside_counter_values", "counter", "Values added to a counter", ("name",), counts)
    # A sum of values that may be below zero can fall, so it is no counter.
    yield Family("trackside_counter_sum", "gauge", "Of all values added", ("name", "unit"), sums)
    yield Family("trackside_counter", "gauge", "Over all values added", ("name", "unit", "stat"), figures)


def _of_handlers(stats: Any) -> Family:
    """Return the losses of each handler of a bus."""
    series = [
        Series((handler.name, reason), getattr(handler, reason)) for handler in stats.handlers for reason in LOSSES
    ]
    merged: dict[tuple[str, ...], float] = {}
    for labels, value in series:
        assert not isinstance(value, Histogram)
        merged[labels] = merged.get(labels, 0) + value
    told = [Series(labels, value) for labels, value in merged.items()]
    return Family("trackside_dropped", "counter", _DROPPED, ("handler", "reason"), told)
