"""Reading a session once, for everything that a report tells."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs

from trackside.core import text as words
from trackside.core.text import BYTE_UNITS
from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    CounterWindow,
    Event,
    EventsDropped,
    ExceptionRaised,
    HandlerSuspended,
    Heartbeat,
    IterationEnded,
    KernelWindow,
    ProgramEnded,
    SectionWindow,
    Source,
    SourceEnded,
    SpanEnded,
    StallDetected,
    TrainingConfigured,
    UnknownEvent,
    span_names,
)
from trackside.handlers.models import CounterBoard, SpanBuilder
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.report._bins import Bins
from trackside.report._tiles import gap
from trackside.report._watched import Raised, Stall, StepTimes, Trace, Watched

_LONGEST_NS: Final = float(1 << 63)
"""No section is believed to take longer: 292 years."""
_COARSE: Final = 256
_MOST_LEVELS: Final = 64
_MOST_RAISED: Final = 64
_MOST_STALLS: Final = 16
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED|not enough memory",
    re.IGNORECASE,
)
_MOST_MARKS: Final = 2_000
MOST_WINDOWS: Final = 40_000
"""Windows of sections to keep in memory; of more than that a second reading, by time, is made."""
LEVELS: Final = ("value", "mean", "p50", "max")
"""The aggregations of which the first that is there says where a counter stands."""
_MARKED: Final = {
    span_names.CHECKPOINT_SAVE_SYNC: "checkpoint",
    span_names.CHECKPOINT_SAVE_ASYNC: "checkpoint",
    span_names.CHECKPOINT_LOAD: "restore",
    span_names.VALIDATION_LOOP: "validation",
    span_names.TESTING_LOOP: "validation",
}

_AROUND: Final = frozenset({span_names.APPLICATION, span_names.TRAINING_LOOP})
"""Spans around all steps, which are no part of any."""
_MOST_TILED: Final = 400_000
"""Blocks of steps to keep, over all ranks."""

Way = Callable[[Any], object]


@attrs.frozen
class Mark:
    """Something that happened while the job ran."""

    at_ns: int
    """When it began."""
    kind: str
    """``checkpoint``, ``restore``, ``validation``, ``error``, ``lost``, ``restart``, ``end``."""
    label: str
    rank: int
    step: int = -1
    duration_ns: int = 0


def is_out_of_memory(kind: str, message: str) -> bool:
    """Return whether an exception says that memory ran out: torch's own types, Python's, or the messages of CUDA."""
    return kind.rpartition(".")[2] in {"OutOfMemoryError", "MemoryError"} or bool(_OUT_OF_MEMORY.search(message))


class Gatherer:
    """
    Takes in the processes of one session, one after the other.

    Each belongs wholly before the next one: `take` is called once for each, those of an attempt by rank.
    """

    def __init__(self, processes: int = 1) -> None:
        self._most_blocks = min(4_096, max(128, _MOST_TILED // max(1, processes)))
        self.goodput = GoodputAccumulator()
        self.spans = SpanBuilder(max_long=64, max_short=1)
        self.counters = CounterBoard()
        self.windows: list[Event] = []
        self.windows_seen = 0
        self.processes: list[Watched] = []
        self.steps = Bins()
        self.waits: set[str] = set()
        """The sections in which ranks wait for each other."""
        self.levels: dict[str, Bins] = {}
        """By name, where counters stood."""
        self.loss = Bins(_COARSE)
        self.marks: list[Mark] = []
        self.marks_left_out = 0
        self.dropped: Counter[str] = Counter()
        self.suspended: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.configured: TrainingConfigured | None = None
        self.events = 0
        self.exit_status: int | None = None
        """Of the program that `trackside run` started; None if it is not known."""
        self._leads: dict[tuple[str, int], str] = {}
        self._begun: dict[str, Watched] = {}
        self._iterations: list[IterationEnded] = []
        self._step_times_ns: list[int] = []
        """Of these iterations, from step to step."""
        self._run: list[Any] = []
        self._is_lead = False
        self._now = Watched(Source.unknown(""))
        self._since_window_ns = 0
        """The length of the steps since the last section window, in ns."""
        self._ways: dict[type[Event], tuple[Way, ...]] = {}

    def take(self, source: Source, batches: Iterable[Sequence[Event]]) -> None:
        """Take in all events of *source*; each batch is of one process."""
        self._turn_to(source)
        ways = self._ways
        for batch in batches:
            if not batch:
                continue
            if batch[0].source.id != self._now.source.id:
                self._turn_to(batch[0].source)  # somebody joined the logs of several to one file
            now, last_ns, run = self._now, self._now.last_ns, self._run
            for event in batch:
                kind = event.__class__
                if kind is IterationEnded:
                    run.append(event)
                    continue
                if run:
                    last_ns = max(last_ns, self._iterate(run))
                    run.clear()
                try:
                    way = ways[kind]
                except KeyError:
                    way = self._find_way(kind)
                for take in way:
                    take(event)
                if event.at_ns > last_ns:  # noqa: PLR1730  max() is a call for every event
                    last_ns = event.at_ns
            if run:
                last_ns = max(last_ns, self._iterate(run))
                run.clear()
            if self._iterations:
                self._settle()
            if not now.events:
                self.processes.append(now)
                now.first_ns = batch[0].at_ns
            now.events += len(batch)
            now.last_ns = last_ns
            now.source = batch[-1].source
            self.events += len(batch)

    def _turn_to(self, source: Source) -> None:
        now = self._begun.get(source.id)
        place = (source.run_id, source.attempt)
        if now is None:
            now = self._begun[source.id] = Watched(source)
            now.tiles.most = self._most_blocks
            if now.is_rank and place not in self._leads:
                self._leads[place] = source.id
                now.lengths = StepTimes()
        self._is_lead = self._leads.get(place) == source.id
        self._now = now
        self._since_window_ns = 0

    def _find_way(self, kind: type[Event]) -> tuple[Way, ...]:
        found: list[Way] = [self.goodput]
        # Iterations are counted here: as spans they would cost more than all else.
        if issubclass(kind, SpanBuilder.reads) and not issubclass(kind, IterationEnded):
            found.append(self.spans)
        if issubclass(kind, CounterWindow):
            found.append(self.counters)
        found += [way for base, way in self._own() if issubclass(kind, base)]
        self._ways[kind] = () if kind.derived else tuple(found)
        return self._ways[kind]

    def _own(self) -> list[tuple[type[Event], Way]]:
        return [
            (IterationEnded, self._iterate_one),
            (SpanEnded, self._end_span),
            (SectionWindow, self._add_window),
            (KernelWindow, self._add_window),
            (CounterWindow, self._count),
            (Heartbeat, self._beat),
            (SourceEnded, self._end),
            (ProgramEnded, self._end_program),
            (ExceptionRaised, self._add_exception),
            (StallDetected, self._stall),
            (CheckpointSaveSucceeded, self._saved),
            (CheckpointSaveFailed, self._saved),
            (TrainingConfigured, self._configure),
            (EventsDropped, self._dropped),
            (HandlerSuspended, self._rest),
            (UnknownEvent, self._wonder),
        ]

    def _iterate(self, run: Sequence[IterationEnded]) -> int:
        """Take in iterations that follow each other, and return the time of the last one, in ns since the epoch."""
        self.goodput.consume_iterations(run)
        self._keep(run)
        return max([event.at_ns for event in run])

    def _iterate_one(self, event: IterationEnded) -> None:
        """Take in what somebody derived from an iteration; the model has had it."""
        self._keep((event,))

    def _keep(self, run: Sequence[IterationEnded]) -> None:
        now = self._now
        if not now.is_rank:
            return
        tiles = now.tiles
        for event in run:
            start_ns = event.at_ns - event.duration_ns
            if event.kind == "training":
                step_time_ns = tiles.end_step(event.step, start_ns, event.at_ns)
                self._since_window_ns += step_time_ns
                self._step_times_ns.append(step_time_ns)
            else:
                tiles.add_part(start_ns, event.at_ns, span_names.OF_ITERATION.get(event.kind, event.kind))
        self._iterations += [event for event in run if event.kind == "training"]

    def _settle(self) -> None:
        """Add the training iterations of a batch together: one by one they would take a third of all the time."""
        now, ended, self._iterations = self._now, self._iterations, []
        lengths, self._step_times_ns = self._step_times_ns, []
        steps = [event.step for event in ended]
        if not now.steps:
            now.first_step_ns = ended[0].at_ns - ended[0].duration_ns
        now.steps += len(ended)
        now.steps_ns += sum(lengths)
        now.last_step = steps[-1]
        now.step_ended_ns = ended[-1].at_ns
        now.samples += sum([event.samples or 0 for event in ended])
        now.tokens += sum([event.tokens or 0 for event in ended])
        self.steps.add_many([event.at_ns for event in ended], lengths, steps, now.source.rank)
        if now.stalls and now.stalls[-1].ended_ns is None:
            after = [event.at_ns for event in ended if event.step > now.stalls[-1].step]
            now.stalls[-1].ended_ns = min(after, default=None)
        if now.lengths is not None:
            now.lengths.add_many(steps, lengths)
        losses = [(event.at_ns, event.loss, event.step) for event in ended if event.loss is not None]
        finite = [item for item in losses if math.isfinite(item[1])]
        if len(finite) < len(losses):
            self._add_not_finite(*next(item for item in losses if not math.isfinite(item[1])))
        if finite and now.lengths is not None:
            times_ns, values, numbers = zip(*finite, strict=True)
            self.loss.add_many(times_ns, values, numbers, now.source.rank)

    def _add_not_finite(self, at_ns: int, loss: float, step: int) -> None:
        now = self._now
        if now.not_finite_step is None:
            now.not_finite_step, now.not_finite, now.not_finite_ns = step, str(loss), at_ns
            self._mark("error", f"the loss is {loss}", at_ns, step)

    def _end_span(self, event: SpanEnded) -> None:
        kind = _MARKED.get(event.name)
        began_ns = event.at_ns - event.duration_ns
        if self._now.is_rank and span_names.THREAD not in event.attributes and event.name not in _AROUND:
            self._now.tiles.add_part(began_ns, event.at_ns, event.name)
        if kind is not None and self._is_lead:
            self._mark(kind, event.name, began_ns, event.step, event.duration_ns)
        if event.error is not None and "raised_in" not in event.error:
            kind, message = str(event.error.get("type", "an exception")), str(event.error.get("message", ""))
            self._add_raised(event, event.name, kind, message, is_out_of_memory=is_out_of_memory(kind, message))

    def _add_exception(self, event: ExceptionRaised) -> None:
        is_full = event.is_out_of_memory or is_out_of_memory(event.type, event.message)
        self._add_raised(event, event.span_name, event.type, event.message, is_out_of_memory=is_full)

    def _add_raised(self, event: Event, span: str, kind: str, message: str, *, is_out_of_memory: bool) -> None:
        """Record an exception once, though the spans that it leaves may say it again."""
        raised = self._now.raised
        if any((one.type, one.message) == (kind, message) for one in raised[-4:]):
            return
        if len(raised) < _MOST_RAISED:
            rank = self._now.source.rank
            raised.append(Raised(rank, event.at_ns, event.step, span, kind, message, is_out_of_memory))
            self._mark("error", f"{kind} in {span}" if span else kind, event.at_ns, event.step)

    def _stall(self, event: StallDetected) -> None:
        stall = Stall.of(event)
        self._now.stalls = [*self._now.stalls[1 - _MOST_STALLS :], stall]
        label = f"no step for {words.seconds(event.stalled_s)}{f', in {stall.where}' if stall.where else ''}"
        self._mark("error", label, event.at_ns, event.step)

    def _mark(self, kind: str, label: str, at_ns: int, step: int = -1, duration_ns: int = 0) -> None:
        if len(self.marks) >= _MOST_MARKS:
            self.marks_left_out += 1
            return
        self.marks.append(Mark(at_ns, kind, label, self._now.source.rank, step, duration_ns))

    def _add_window(self, event: SectionWindow | KernelWindow) -> None:
        if not self._now.is_rank:
            return
        self.windows_seen += 1
        if len(self.windows) < MOST_WINDOWS:
            self.windows.append(event)
        if not isinstance(event, SectionWindow):
            return
        self.waits.update(event.waits)
        steps = max(1, event.last_step - event.first_step + 1)
        took = {
            name: mean_ns * entries
            for name, mean_ns, entries in zip(event.names, event.mean_ns, event.entries, strict=False)
            if 0 <= mean_ns < _LONGEST_NS  # what is negative, infinite or NaN is no duration
        }
        outside_ns = self._since_window_ns - math.fsum(took.values())
        self._since_window_ns = 0
        if outside_ns > 0:
            took[gap("", "")] = outside_ns
        if event.first_step >= 0:
            self._now.windows.add_window(event.window, event.first_step, steps, took)

    def _count(self, event: CounterWindow) -> None:
        level = next((event.values[name] for name in LEVELS if name in event.values), None)
        if "loss" in event.name.lower():
            if self._iterations:
                self._settle()
            if event.non_finite:
                value = math.nan if level is None or math.isfinite(level) else level
                self._add_not_finite(event.end_ns, value, self._step_of_non_finite(event))
            self._now.last_step_by_stat[event.name] = self._now.last_step
        if level is None or not event.count or not math.isfinite(level):
            return
        bins = self.levels.get(event.name)
        if bins is None:
            if len(self.levels) >= _MOST_LEVELS:
                return
            bins = self.levels[event.name] = Bins(_COARSE)
        bins.add(event.end_ns, level, event.step, self._now.source.rank)
        if event.unit in BYTE_UNITS:
            self._now.memory.setdefault(event.name, Trace()).add(event.end_ns, level)

    def _step_of_non_finite(self, event: CounterWindow) -> int:
        """Return the step in which the first such sample of a window came, as if each step recorded as many."""
        now = self._now
        before = now.last_step_by_stat.get(event.name, now.last_step - now.steps)
        recorded = max(1, event.count + event.non_finite)
        return before + 1 + event.before_non_finite * max(0, now.last_step - before) // recorded

    def _beat(self, event: Heartbeat) -> None:
        self._now.heartbeat_interval_ns = round(event.interval_s * 1e9)
        self._now.counts = event.counts

    def _end_program(self, event: ProgramEnded) -> None:
        self.exit_status = event.exit_status

    def _end(self, event: SourceEnded) -> None:
        self._now.end_reason = event.reason

    def _saved(self, event: CheckpointSaveSucceeded | CheckpointSaveFailed) -> None:
        if isinstance(event, CheckpointSaveFailed):
            self._mark("error", f"the save of step {event.global_step} failed", event.at_ns, event.step)

    def _configure(self, event: TrainingConfigured) -> None:
        if self._is_lead:
            self.configured = event

    def _dropped(self, event: EventsDropped) -> None:
        self.dropped.update(event.by_type)
        self._mark("lost", f"{sum(event.by_type.values()):,} events dropped at {event.where}", event.at_ns)

    def _rest(self, event: HandlerSuspended) -> None:
        self.suspended[event.handler] += 1
        self._mark("lost", f"{event.handler} suspended: {event.error}", event.at_ns)

    def _wonder(self, event: UnknownEvent) -> None:
        self.unknown[event.name] += 1
