"""The live view of a running job."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

import attrs

from trackside.core import text as words
from trackside.events import (
    CounterWindow,
    Event,
    EventsDropped,
    ExceptionRaised,
    HandlerSuspended,
    Heartbeat,
    IterationEnded,
    MetricsLogged,
    SectionWindow,
    Source,
    SpanEnded,
    SpanStarted,
    StallDetected,
    TrainingConfigured,
    gauge_names,
)
from trackside.events.metrics import TrainingFigures
from trackside.events.span_names import TRAINING_ITERATION
from trackside.handlers.models import CounterBoard, OpenSpans
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.liveness import DIED, ENDED, RUNNING, SILENT, LifeSigns, Liveness, is_gone, liveness
from trackside.handlers.models.steps import StepInterval, StepTimer
from trackside.report._gather import MARKED, Bins, Stall
from trackside.report._runs import unified
from trackside.report._whatif import StepRecord, StepTiles, chosen_tiles, compare_all, late_words, most_blocks
from trackside.wire import FrameView

_RECENT_STEPS: Final = 50
_MOST: Final = 50
_MOST_RUNS: Final = 4
"""The number of runs whose history is kept: the directory of a log may hold very many."""
_MOST_STRETCHES: Final = 256
"""The most stretches of a curve over the whole job: a wide screen has fewer columns."""
_MOST_TILED: Final = 32_768
"""The most blocks of steps, or windows of sections, that are kept, over all ranks: comparing them takes time."""
_COSTS: Final = 10
"""A result is computed again after this many times its duration, so it takes a tenth of the time at most."""
_S: Final = 1e9
_STALE_S: Final = 5.0
_MEMORY: Final = (gauge_names.GPU_MEMORY, gauge_names.PROCESS_MEMORY)
_SHOWN_LEVELS: Final = frozenset({gauge_names.GPU_UTILIZATION, gauge_names.PROCESS_CPU, *_MEMORY})


@attrs.define(eq=False)
class _Process:
    """The latest state of one process."""

    recorded: Source
    """The source as in its events."""
    source: Source
    """The same source, with the run id that all ranks of its launch have."""
    record: StepRecord
    """Its steps by their parts."""
    signs: LifeSigns = attrs.field(factory=LifeSigns)
    step: int = -1
    ends_ns: deque[int] = attrs.field(factory=lambda: deque(maxlen=_RECENT_STEPS))
    lengths_ns: deque[int] = attrs.field(factory=lambda: deque(maxlen=_RECENT_STEPS))
    """The step times of the steps in `ends_ns`."""
    stall: Stall | None = None
    """The latest stall that it recorded; None if a step has ended since."""
    losses: deque[float] = attrs.field(factory=lambda: deque(maxlen=_RECENT_STEPS))
    levels: dict[str, float] = attrs.field(factory=dict)
    """The latest values of its gauges of GPU, CPU and memory, by name."""
    metrics: dict[str, float] = attrs.field(factory=dict)
    """The values that `trackside.metrics` recorded last, by name."""
    figures: TrainingFigures | None = None
    """The figures of its last window of steps."""
    target: int | None = None
    """The planned number of steps in all."""
    dropped: int = 0
    """Events that it dropped since it began, as far as it reported them."""

    @classmethod
    def of(cls, source: Source) -> _Process:
        """Return the state of *source* before its first event."""
        most = most_blocks(source.world_size, _MOST_TILED)
        return cls(source, source, StepRecord(StepTiles(most=most), StepTiles(most=most)))

    @property
    def last_ns(self) -> int:
        """The time of its last event, in ns since the epoch; 0 if it has none."""
        return self.signs.last_ns or 0

    def stands_still(self, now_ns: int) -> bool:
        """Return whether no step has ended for five step times and at least five seconds, or none has ended at all."""
        if not self.ends_ns:
            return True
        usual_ns = statistics.median(self.lengths_ns) if self.lengths_ns else 0
        return now_ns - self.ends_ns[-1] > max(_STALE_S * _S, 5 * usual_ns)

    def life(self, now_ns: int) -> Liveness:
        """Return its state at *now_ns*."""
        has_left = self.signs.end_reason is None and is_gone(self.source)
        return liveness(self.signs, now_ns, is_gone=has_left)

    def recall(self, signs: LifeSigns, steps: Sequence[tuple[int, int, int]]) -> None:
        """Take over the state of a model, which covers events that did not arrive here."""
        if (signs.last_ns or 0) >= self.last_ns:
            self.signs = signs
        if steps and (len(steps) > len(self.ends_ns) or steps[-1][2] > self.ends_ns[-1]):
            self.step = steps[-1][0]
            self.ends_ns.clear()
            self.lengths_ns.clear()
            self.record.timer = StepTimer()
            for number, start_ns, end_ns in steps:
                ended = IterationEnded(at_ns=end_ns, span_id=0, step=number, duration_ns=end_ns - start_ns)
                self.add_step(self.record.timer.iteration_ended(ended))

    def add_step(self, interval: StepInterval | None) -> None:
        """Record a training step; None is ignored."""
        if interval is not None:
            self.ends_ns.append(interval.end_ns)
            self.lengths_ns.append(interval.step_ns)


@attrs.frozen(kw_only=True)
class Happened:
    """An event that the view lists."""

    at_ns: int
    rank: int
    text: str


@attrs.define(eq=False)
class _History:
    """The course of a run as far as it was seen, all ranks together."""

    step_times_ns: Bins = attrs.field(factory=lambda: Bins(_MOST_STRETCHES))
    losses: Bins = attrs.field(factory=lambda: Bins(_MOST_STRETCHES))
    happened: deque[Happened] = attrs.field(factory=lambda: deque(maxlen=_MOST))


@attrs.frozen(kw_only=True)
class Worst:
    """A rank that needs attention."""

    rank: int
    host: str
    why: str


@attrs.frozen(kw_only=True)
class RankNow:
    """One rank of the attempt with the newest event."""

    rank: int
    host: str
    state: str
    """``running``, ``silent``, ``died`` or ``ended``; see `liveness`."""
    step: int
    step_ns: float | None
    """The median of its last fifty step times."""
    age_s: float | None
    """The time since its last step ended."""
    error: str
    """The name of the exception that ended it; empty if none did."""
    loss: float | None
    gpu: float | None
    cpu: float | None
    """`gpu` and `cpu` are shares of its device and of one core, 0 to 1; above 1 if it uses several cores."""
    memory: float | None
    """The memory in use on its device if that is known, else that of the process; in bytes."""
    parts: dict[str, float]
    """The mean time in each part of a step, by name, over its last fifty steps, in ns."""


@attrs.frozen(kw_only=True)
class OpenNow:
    """A span that is open."""

    rank: int
    name: str
    since_ns: int


@attrs.frozen(kw_only=True)
class CounterNow:
    """The present value of a counter."""

    name: str
    unit: str
    level: float | None
    """The mean over all ranks of the value that each reported last."""
    total: float


@attrs.frozen(kw_only=True)
class Curve:
    """The course of a value of all ranks over the steps that were seen, as medians of stretches of equal time."""

    first_step: int
    last_step: int
    values: tuple[float, ...]


@attrs.frozen(kw_only=True)
class TopView:
    """A job at one moment."""

    at_ns: int
    session: str
    application: str
    ranks: int
    alive: int
    """The number of running ranks, by `liveness`."""
    has_ended: bool
    step: int
    steps_per_s: float | None
    rate_age_s: float | None
    """The age of `steps_per_s`: the time since the last step of any rank."""
    step_ns: float | None
    """The step time: the median of the slowest rank's last fifty."""
    lengths_ns: tuple[int, ...]
    """The step times of the lowest rank's last fifty steps."""
    goodput: float | None
    elapsed_s: float
    badput: tuple[tuple[str, float], ...]
    """The buckets that took the most time, each with its share."""
    losses: tuple[float, ...]
    """The losses of the lowest rank's last fifty steps that have one."""
    step_curve: Curve | None
    loss_curve: Curve | None
    """The curves of step times, in ns, and of losses; None if there are none."""
    tokens_per_s: float | None
    mfu: float | None
    """The rate of all ranks together, and a share, 0 to 1: both from the lowest rank's last window of steps."""
    eta_s: float | None
    """The time that the remaining steps will take at this rate; None if their number is not known."""
    rows: tuple[RankNow, ...]
    """Ordered by rank."""
    worst: tuple[Worst, ...]
    open: tuple[OpenNow, ...]
    counters: tuple[CounterNow, ...]
    happened: tuple[Happened, ...]
    """The latest first."""
    lost: int
    """The number of events that were lost, here or in the job."""
    suspended: tuple[str, ...]
    behind_s: float | None
    """The age of the newest event; None if there is none."""
    partial: tuple[str, ...]
    """The models whose state covers only the events since this view attached: the job has no such model."""

    @property
    def is_stale(self) -> bool:
        """Whether the rate is out of date: no step has ended for five step times and at least five seconds."""
        return self.rate_age_s is not None and self.rate_age_s > max(_STALE_S, 5 * (self.step_ns or 0) / _S)

    def to_json(self) -> dict[str, Any]:
        """Return the view as plain data."""
        return attrs.asdict(self)


class Top:
    """Follows a job, event by event."""

    def __init__(self) -> None:
        self.goodput: GoodputAccumulator = GoodputAccumulator()
        self.spans: OpenSpans = OpenSpans(max_long=32, max_short=4)
        self.counters: CounterBoard = CounterBoard()
        self._processes: dict[str, _Process] = {}
        self._is_unified = True
        """Whether no new source came since the ranks of each launch were last given one run id."""
        self._given_up: Counter[str] = Counter()
        self._suspended: Counter[str] = Counter()
        self._lost_here = 0
        self._histories: dict[str, _History] = {}
        """The histories of the latest runs, by run id."""
        self._waits: set[str] = set()
        """The sections in which ranks wait for each other."""
        self._late: list[Worst] = []
        self._late_due_s = 0.0
        self._last_goodput: tuple[float | None, float, tuple[tuple[str, float], ...]] = (None, 0.0, ())
        self._due_s = 0.0
        self.partial: tuple[str, ...] = ()
        """The names of the models whose state lacks earlier events; set by the caller that drives them."""
        self.is_ready = False
        """Whether enough has arrived to be shown; set by the caller that drives the models."""

    @property
    def models(self) -> tuple[Any, ...]:
        """The models that the caller has to drive."""
        return self.goodput, self.spans, self.counters

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(type(model).__qualname__ for model in self.models)

    def drive(self, event: Event) -> None:
        """Give *event* to the models, and then read it."""
        view = FrameView(event.source, (event,))
        for model in self.models:
            model.consume(view)
        self.consume(event)

    def consume(self, event: Event) -> None:
        """Read *event*, after the models have read it."""
        source = event.source
        process = self._process(source)
        if source is not process.recorded and source.run_id:
            process.recorded, self._is_unified = source, False
        process.signs.read(event)
        if isinstance(event, IterationEnded):
            if event.kind == "training":
                process.step, process.stall = event.step, None
                if event.loss is not None:
                    process.losses.append(event.loss)
                    if math.isfinite(event.loss):
                        self._history(source).losses.add(event.at_ns, event.loss, event.step)
            interval = process.record.iteration_ended(event)
            process.add_step(interval)
            if interval is not None:
                self._history(source).step_times_ns.add(event.at_ns, interval.step_ns, event.step)
        elif isinstance(event, SpanStarted):
            process.record.span_started(event)
        elif isinstance(event, SpanEnded):
            process.record.span_ended(event)
            if event.name in MARKED and source.rank == 0:
                self._happen(event, f"{event.name}, {words.duration(event.duration_ns)}")
        elif isinstance(event, SectionWindow):
            self._waits.update(event.waits)
            process.record.window_ended(event)
        elif isinstance(event, StallDetected):
            process.stall = Stall.of(event)
            self._happen(event, f"no step for {words.seconds(event.stalled_s)}{_place(process.stall)}")
        elif isinstance(event, ExceptionRaised):
            self._happen(event, f"{event.type}: {event.message}")
        elif isinstance(event, CounterWindow):
            level = _level(event.values)
            if event.name in _SHOWN_LEVELS and level is not None:
                process.levels[event.name] = level
        elif isinstance(event, MetricsLogged):
            for name, value in event.values.items():
                if type(value) in {float, int} and (name in process.metrics or len(process.metrics) < _MOST):
                    process.metrics[name] = value
        elif isinstance(event, TrainingFigures):
            process.figures = event
        elif isinstance(event, TrainingConfigured):
            process.target = event.train_iterations_target
        elif isinstance(event, Heartbeat):
            dropped = event.counts.get("dropped")
            if isinstance(dropped, int):
                process.dropped = max(process.dropped, dropped)
        elif isinstance(event, EventsDropped):
            # A later heartbeat counts these events too, with all that were dropped before the first event here.
            self._given_up[source.id] += sum(event.by_type.values())
            process.dropped = max(process.dropped, self._given_up[source.id])
            self._happen(event, f"dropped {words.plural(sum(event.by_type.values()), 'event')}")
        elif isinstance(event, HandlerSuspended):
            self._suspended[event.handler] += 1
            self._happen(event, f"suspended {event.handler}")

    def _happen(self, event: Event, text: str) -> None:
        within = f"step {event.step}: " if event.step >= 0 else ""
        happened = Happened(at_ns=event.at_ns, rank=event.source.rank, text=within + text)
        self._history(event.source).happened.appendleft(happened)

    def _history(self, source: Source) -> _History:
        found = self._histories.get(source.run_id)
        if found is None:
            found = self._histories[source.run_id] = _History()
            if len(self._histories) > _MOST_RUNS:
                del self._histories[next(iter(self._histories))]
        return found

    def catch_up(self) -> None:
        """Take over the goodput model's state: it covers the time before the first event that arrived here."""
        known = self.goodput.lately(1)
        if len(known) <= _MOST:
            known = self.goodput.lately(_RECENT_STEPS)
        for one in known:
            self._process(one.source).recall(one.signs, one.steps)

    def _process(self, source: Source) -> _Process:
        process = self._processes.get(source.id)
        if process is None:
            process = self._processes[source.id] = _Process.of(source)
            self._is_unified = False
        return process

    def lose(self, events: int) -> None:
        """Set the number of *events* that did not arrive here so far."""
        self._lost_here = events

    def is_over(self, now_ns: int) -> bool:
        """Return whether every rank of the latest attempt has ended or died, as of *now_ns*, in ns since the epoch."""
        states = {one.life(now_ns).state for one in self._current()}
        return bool(states) and not states & {RUNNING, SILENT}

    def view(self, now_ns: int) -> TopView:
        """Return the view at *now_ns*, in ns since the epoch."""
        ranks = sorted(self._current(), key=lambda one: one.source.rank)
        sources = [one.source for one in ranks]
        states = [one.life(now_ns).state for one in ranks]
        newest_ns = max((one.last_ns for one in self._processes.values()), default=None)
        lead = ranks[0] if ranks else None
        goodput, elapsed_s, badput = self._goodput(ranks)
        slowest = max((statistics.median(one.lengths_ns) for one in ranks if one.lengths_ns), default=None)
        stepped_ns = max((one.ends_ns[-1] for one in ranks if one.ends_ns), default=None)
        step = max((one.step for one in ranks), default=-1)
        rate = _rate(lead)
        figures = lead.figures if lead is not None else None
        target = next((one.target for one in ranks if one.target), None)
        history = self._history(lead.source) if lead is not None else _History()
        return TopView(
            at_ns=now_ns,
            session=next((one.session_tag or one.run_id for one in sources), ""),
            application=next((one.application for one in sources), ""),
            ranks=max([len(ranks), *(one.world_size for one in sources)], default=0),
            alive=states.count(RUNNING),
            has_ended=set(states) == {ENDED},
            step=step,
            steps_per_s=rate,
            rate_age_s=None if stepped_ns is None else max(0.0, (now_ns - stepped_ns) / _S),
            step_ns=slowest,
            lengths_ns=tuple(lead.lengths_ns) if lead is not None else (),
            goodput=goodput,
            elapsed_s=elapsed_s,
            badput=badput,
            losses=tuple(lead.losses) if lead is not None else (),
            step_curve=_curve(history.step_times_ns),
            loss_curve=_curve(history.losses),
            tokens_per_s=figures.avg_tokens_per_second if figures is not None else None,
            mfu=figures.mfu if figures is not None else None,
            eta_s=max(0, target - 1 - step) / rate if target and rate else None,
            rows=tuple(
                _row(one, tiles, now_ns)
                for one, tiles in zip(ranks, chosen_tiles([one.record for one in ranks]), strict=True)
            ),
            worst=tuple(self._worst(ranks, now_ns)),
            open=tuple(self._open({one.source.id: one for one in ranks})),
            counters=tuple(self._levels(ranks)),
            happened=tuple(history.happened),
            lost=sum(one.dropped for one in self._processes.values()) + self._lost_here,
            suspended=tuple(sorted(self._suspended)),
            behind_s=None if newest_ns is None else (now_ns - newest_ns) / _S,
            partial=self.partial,
        )

    def _mains(self) -> list[_Process]:
        """Return the ranks of all attempts of all jobs."""
        if not self._is_unified:
            known = unified(one.recorded for one in self._processes.values())
            for one in self._processes.values():
                one.source = known.get(one.recorded.id, one.recorded)
            self._is_unified = True
        return [one for one in self._processes.values() if one.source.role == "main"]

    def _current(self) -> list[_Process]:
        """Return the ranks of the attempt with the newest event."""
        mains = self._mains()
        if not mains:
            return []
        newest = max(mains, key=lambda one: one.last_ns).source
        latest: dict[int, _Process] = {}
        for one in mains:
            if (one.source.run_id, one.source.attempt) == (newest.run_id, newest.attempt):
                known = latest.get(one.source.rank)
                if known is None or one.last_ns > known.last_ns:
                    latest[one.source.rank] = one
        return list(latest.values())

    def _of_session(self, ranks: Sequence[_Process]) -> list[_Process]:
        """Return the ranks of all attempts of the job of *ranks*."""
        sessions = {one.source.session_tag or one.source.run_id for one in ranks}
        return [one for one in self._mains() if (one.source.session_tag or one.source.run_id) in sessions]

    def _goodput(self, ranks: Sequence[_Process]) -> tuple[float | None, float, tuple[tuple[str, float], ...]]:
        began_s = time.monotonic()
        if began_s >= self._due_s and (known := self.goodput.sessions()):
            # The model has the recorded run ids: if the launcher sets no common one, each rank has its own.
            own = {one.recorded.session_tag or one.recorded.run_id for one in self._of_session(ranks)}
            result = self.goodput.result(session=own.intersection(known) or None)
            shares: dict[str, float] = {}
            for name, length in result.named_badput_s.items():
                shares.update(length if isinstance(length, dict) else {name: length})
            most = sorted(shares.items(), key=lambda item: -item[1])[:4]
            whole = result.elapsed_s or 1.0
            self._last_goodput = (
                result.goodput,
                result.elapsed_s,
                tuple((name, length / whole) for name, length in most if length > 0),
            )
            now_s = time.monotonic()
            self._due_s = now_s + _COSTS * (now_s - began_s)
        return self._last_goodput

    def _worst(self, ranks: list[_Process], now_ns: int) -> list[Worst]:
        found = []
        first = max((one.step for one in ranks), default=-1)
        lives = [(one, one.life(now_ns)) for one in sorted(ranks, key=_stopping_order)]
        ended_well = all(life.has_good_end for _, life in lives)
        for one, life in lives:
            if life.state in {SILENT, DIED}:
                said = "silent" if life.state == SILENT else "dead: silent"
                why = (
                    f"{said} for {words.duration(life.silent_ns or 0)}, {words.step(one.step, 'at')}{_place(one.stall)}"
                )
            elif one.stall is not None and life.state == RUNNING:
                does = "waits for others, for" if one.stall.waits else "stalled for"
                stalled_for = words.duration(now_ns - one.stall.began_ns)
                why = f"{does} {stalled_for}, since step {one.stall.step}{_place(one.stall)}"
            elif life.error:
                why = f"ended by {life.error}, {words.step(one.step, 'at')}{_place(one.stall)}"
            elif one.stall is not None and not ended_well:
                why = f"ended after a stall, since step {one.stall.step}{_place(one.stall)}"
            elif first - one.step > 1 and one.stands_still(now_ns):  # ranks that never synchronize may be steps apart
                why = f"{first - one.step:,} steps behind"
            else:
                continue
            found.append(Worst(rank=one.source.rank, host=one.source.host, why=why))
        return (found + self._slow(ranks))[:_MOST]

    def _slow(self, ranks: Sequence[_Process]) -> list[Worst]:
        """Return the ranks that are late now, by the rule of the report (docs/verdicts.md), over all attempts."""
        began_s = time.monotonic()
        if began_s >= self._late_due_s:
            what_if = compare_all(self._of_session(ranks), self._waits)
            self._late = [
                Worst(rank=one.rank, host=one.node, why=late_words(one)) for one in what_if.late if not one.is_over
            ]
            shares = what_if.in_turn
            self._late += [
                Worst(
                    rank=one.source.rank,
                    host=one.source.host,
                    why=f"late in turn with others: in {words.percent(shares[one.source.rank], 0)} of the steps",
                )
                for one in ranks
                if one.source.rank in shares
            ]
            now_s = time.monotonic()
            self._late_due_s = now_s + _COSTS * (now_s - began_s)
        return self._late

    def _open(self, current: dict[str, _Process]) -> list[OpenNow]:
        found = []
        for source in self.spans.result().sources:
            process = current.get(source.source_id)
            if process is None or source.ended_ns is not None:
                continue
            # A step that a heartbeat reported as open may have ended before the first event here.
            stepped_ns = process.ends_ns[-1] if process.ends_ns else 0
            inside = [one for one in source.open if one.name != TRAINING_ITERATION or one.start_ns >= stepped_ns]
            if inside:
                found.append(OpenNow(rank=source.rank, name=inside[-1].name, since_ns=inside[-1].start_ns))
        return sorted(found, key=lambda one: (one.since_ns, one.rank))[:_MOST]

    def _levels(self, ranks: Sequence[_Process]) -> list[CounterNow]:
        found = {}
        for name, totals in self.counters.result().counters.items():
            levels = [level for window in totals.windows if (level := _level(window)) is not None]
            found[name] = CounterNow(name=name, unit=totals.unit, level=_mean(levels), total=totals.sum)
        # These are known at once, not only when a window ends.
        for name in {name for one in ranks for name in one.metrics}:
            levels = [one.metrics[name] for one in ranks if name in one.metrics]
            found[name] = CounterNow(name=name, unit="", level=_mean(levels), total=sum(levels))
        return [found[name] for name in sorted(found)][:_MOST]


def _curve(bins: Bins) -> Curve | None:
    stretches = [one for _, one in bins.points()]
    if not stretches:
        return None
    return Curve(
        first_step=min(one.first_step for one in stretches),
        last_step=max(one.last_step for one in stretches),
        values=tuple(one.median for one in stretches),
    )


def _mean(levels: Sequence[float]) -> float | None:
    # Each value is divided before it is added, because the sum may overflow. For inf and -inf, fmean would raise.
    return sum(level / len(levels) for level in levels) if levels else None


def _stopping_order(one: _Process) -> tuple[int, bool, int, int]:
    """Return the sort key of a rank: its step, whether it waits, and the time of its end, 0 if it has not ended."""
    waits = one.stall is not None and one.stall.waits
    ended_ns = 0 if one.signs.end_reason is None else one.last_ns
    return one.step, waits, ended_ns, one.source.rank


def _place(stall: Stall | None) -> str:
    """Return the place in the code at which a process stalled, as the end of a sentence; empty if unknown."""
    if stall is None or not (stall.where or stall.span):
        return ""
    within = f" ({stall.span})" if stall.span and stall.where else ""
    return f", in {stall.where or stall.span}{within}"


def _row(one: _Process, tiles: StepTiles, now_ns: int) -> RankNow:
    life = one.life(now_ns)
    return RankNow(
        rank=one.source.rank,
        host=one.source.host,
        state=life.state,
        error=life.error,
        step=one.step,
        step_ns=statistics.median(one.lengths_ns) if one.lengths_ns else None,
        age_s=max(0.0, (now_ns - one.ends_ns[-1]) / _S) if one.ends_ns else None,
        loss=one.losses[-1] if one.losses else None,
        gpu=one.levels.get(gauge_names.GPU_UTILIZATION),
        cpu=one.levels.get(gauge_names.PROCESS_CPU),
        memory=next((one.levels[name] for name in _MEMORY if name in one.levels), None),
        parts=tiles.lately(_RECENT_STEPS),
    )


def _level(window: dict[str, float]) -> float | None:
    return next((window[name] for name in ("value", "mean", "p50", "max") if name in window), None)


def _rate(lead: _Process | None) -> float | None:
    """Return the number of steps per second over the last steps; the time between steps counts."""
    if lead is None or len(lead.ends_ns) < 2 or lead.ends_ns[-1] <= lead.ends_ns[0]:  # noqa: PLR2004
        return None
    return (len(lead.ends_ns) - 1) / (lead.ends_ns[-1] - lead.ends_ns[0]) * _S


def line(view: TopView) -> str:
    """Return *view* as one line, for output that is not a terminal."""
    if not view.ranks:
        return "waiting for the first event of a rank"
    parts = [f"step {view.step}" if view.step >= 0 else "no step yet"]
    if view.steps_per_s is not None and not view.is_stale:
        parts.append(f"{view.steps_per_s:.2f} steps/s")
    if view.goodput is not None:
        parts.append(f"goodput {100 * view.goodput:.1f} %")
    parts.append("ended" if view.has_ended else f"{view.alive} of {words.plural(view.ranks, 'rank')} alive")
    parts += [f"rank {one.rank} {one.why}" for one in view.worst[:2]]
    parts += [f"rank {one.rank} in {one.name}" for one in view.open[:1]]
    parts.append(f"{view.lost} lost")
    return f"{view.session}: {', '.join(parts)}"
