"""Reading a session once, for everything that a report tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs

from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    CounterWindow,
    Event,
    EventsShed,
    HandlerRested,
    Heartbeat,
    IterationEnded,
    KernelWindow,
    SectionWindow,
    Source,
    SourceEnded,
    SpanEnded,
    TrainingConfigured,
    UnknownEvent,
    span_names,
)
from trackside.handlers.models import CounterBoard, SpanBuilder
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.views._bins import Bins
from trackside.views._watched import StepTimes, Trace, Watched
from trackside.views._words import BYTE_UNITS

_COARSE: Final = 256
_MOST_PARTS: Final = 24
_MOST_WAITING: Final = 256
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


class Gatherer:
    """
    Takes in the processes of one session, one after the other.

    Each belongs wholly before the next one: `take` is called once for each, those of an attempt by rank.
    """

    def __init__(self) -> None:
        self.goodput = GoodputAccumulator()
        self.spans = SpanBuilder(max_long=64, max_short=1)
        self.counters = CounterBoard()
        self.windows: list[Event] = []
        self.windows_seen = 0
        self.processes: list[Watched] = []
        self.steps = Bins()
        self.parts: dict[str, Bins] = {}
        """By name, how long what is directly within training steps took."""
        self.waits: set[str] = set()
        """The sections in which ranks wait for each other."""
        self.levels: dict[str, Bins] = {}
        """By name, where counters stood."""
        self.loss = Bins(_COARSE)
        self.marks: list[Mark] = []
        self.marks_left_out = 0
        self.shed: Counter[str] = Counter()
        self.rested: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.configured: TrainingConfigured | None = None
        self.events = 0
        self._leads: dict[tuple[str, int], str] = {}
        self._begun: dict[str, Watched] = {}
        self._iterations: list[IterationEnded] = []
        self._run: list[Any] = []
        self._is_lead = False
        self._now = Watched(Source.unknown(""))
        self._within: dict[int, list[tuple[int, str, int]]] = {}
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
            if now.is_rank and place not in self._leads:
                self._leads[place] = source.id
                now.lengths = StepTimes()
        self._is_lead = self._leads.get(place) == source.id
        self._now = now
        self._within.clear()

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
            (SectionWindow, self._take_window),
            (KernelWindow, self._take_window),
            (CounterWindow, self._count),
            (Heartbeat, self._beat),
            (SourceEnded, self._end),
            (CheckpointSaveSucceeded, self._saved),
            (CheckpointSaveFailed, self._saved),
            (TrainingConfigured, self._configure),
            (EventsShed, self._shed),
            (HandlerRested, self._rest),
            (UnknownEvent, self._wonder),
        ]

    def _iterate(self, run: Sequence[IterationEnded]) -> int:
        """Take in iterations that follow each other, and return the time of the last one, in ns since the epoch."""
        self.goodput.take_iterations(run)
        self._keep(run)
        return max([event.at_ns for event in run])

    def _iterate_one(self, event: IterationEnded) -> None:
        """Take in what somebody derived from an iteration; the model has had it."""
        self._keep((event,))

    def _keep(self, run: Sequence[IterationEnded]) -> None:
        if not self._now.is_rank:
            return
        if self._within:
            for event in run:
                within = self._within.pop(event.id, None)
                for ended_ns, name, duration_ns in within or () if event.kind == "training" else ():
                    self._add_part(name, ended_ns, duration_ns, event.step)
        self._iterations += [event for event in run if event.kind == "training"]

    def _settle(self) -> None:
        """Take in the training iterations of a batch, together: one by one they would take a third of all the time."""
        now, ended, self._iterations = self._now, self._iterations, []
        lengths = [event.duration_ns for event in ended]
        steps = [event.step for event in ended]
        now.steps += len(ended)
        now.steps_ns += sum(lengths)
        now.last_step = steps[-1]
        now.step_ended_ns = ended[-1].at_ns
        now.samples += sum([event.samples or 0 for event in ended])
        now.tokens += sum([event.tokens or 0 for event in ended])
        self.steps.add_many([event.at_ns for event in ended], lengths, steps, now.source.rank)
        if now.lengths is not None:
            now.lengths.add_many(steps, lengths)
            told = [(event.at_ns, event.loss, event.step) for event in ended if event.loss is not None]
            if told:
                times_ns, losses, numbers = zip(*told, strict=True)
                self.loss.add_many(times_ns, losses, numbers, now.source.rank)

    def _add_part(self, name: str, at_ns: int, length_ns: float, step: int) -> None:
        bins = self.parts.get(name)
        if bins is None:
            if len(self.parts) >= _MOST_PARTS:
                return
            bins = self.parts[name] = Bins(_COARSE)
        bins.add(at_ns, length_ns, step, self._now.source.rank)

    def _end_span(self, event: SpanEnded) -> None:
        kind = _MARKED.get(event.name)
        if kind is None:
            if event.step >= 0 and event.parent_id and self._now.is_rank:
                if len(self._within) >= _MOST_WAITING:
                    self._within.clear()
                self._within.setdefault(event.parent_id, []).append((event.at_ns, event.name, event.duration_ns))
        elif self._is_lead:
            self._mark(kind, event.name, event, event.duration_ns)
        if event.error is not None:
            self._mark("error", f"{event.error.get('type', 'an exception')} in {event.name}", event)

    def _mark(self, kind: str, label: str, event: Event, duration_ns: int = 0) -> None:
        if len(self.marks) >= _MOST_MARKS:
            self.marks_left_out += 1
            return
        began_ns = event.at_ns - duration_ns
        self.marks.append(Mark(began_ns, kind, label, self._now.source.rank, event.step, duration_ns))

    def _take_window(self, event: SectionWindow | KernelWindow) -> None:
        if not self._now.is_rank:
            return
        self.windows_seen += 1
        if len(self.windows) < MOST_WINDOWS:
            self.windows.append(event)
        if isinstance(event, SectionWindow):
            self.waits.update(event.waits)
            steps = max(1, event.last_step - event.first_step + 1)
            for name, mean_ns, entries in zip(event.names, event.mean_ns, event.entries, strict=False):
                self._add_part(f"section {name}", event.at_ns, mean_ns * entries / steps, event.first_step)

    def _count(self, event: CounterWindow) -> None:
        level = next((event.values[name] for name in LEVELS if name in event.values), None)
        if level is None or not event.count:
            return
        bins = self.levels.get(event.name)
        if bins is None:
            if len(self.levels) >= _MOST_PARTS:
                return
            bins = self.levels[event.name] = Bins(_COARSE)
        bins.add(event.end_ns, level, event.step, self._now.source.rank)
        if event.unit in BYTE_UNITS:
            self._now.memory.setdefault(event.name, Trace()).add(event.end_ns, level)

    def _beat(self, event: Heartbeat) -> None:
        self._now.last_beat_ns = event.at_ns
        self._now.counts = event.counts

    def _end(self, event: SourceEnded) -> None:
        self._now.end_reason = event.reason

    def _saved(self, event: CheckpointSaveSucceeded | CheckpointSaveFailed) -> None:
        if isinstance(event, CheckpointSaveFailed):
            self._mark("error", f"the save of step {event.global_step} failed", event)

    def _configure(self, event: TrainingConfigured) -> None:
        if self._is_lead:
            self.configured = event

    def _shed(self, event: EventsShed) -> None:
        self.shed.update(event.by_type)
        self._mark("lost", f"{sum(event.by_type.values()):,} events given up at {event.where}", event)

    def _rest(self, event: HandlerRested) -> None:
        self.rested[event.handler] += 1
        self._mark("lost", f"{event.handler} rested: {event.error}", event)

    def _wonder(self, event: UnknownEvent) -> None:
        self.unknown[event.name] += 1
