"""Read the events of a session once, for everything that a report contains."""

from __future__ import annotations

import math
import operator
import re
import statistics
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import attrs

from trackside.core import text as words
from trackside.core.text import BYTE_UNITS
from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    ConfigLogged,
    ControlUsed,
    CounterWindow,
    Event,
    EventsDropped,
    ExceptionRaised,
    HandlerSuspended,
    Heartbeat,
    IterationEnded,
    KernelWindow,
    MetricsLogged,
    ProcessExited,
    ProgramEnded,
    SectionWindow,
    Source,
    SourceEnded,
    SpanEnded,
    SpanStarted,
    StallDetected,
    TrainingConfigured,
    UnknownEvent,
    clock,
    span_names,
)
from trackside.handlers.eventlog import MOST_ENDS
from trackside.handlers.models import CounterBoard, SpanBuilder
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.report._whatif import STANDSTILLS, StepRecord, most_blocks
from trackside.wire import FrameView, fields_of, wire_name_of

_MOST_SAMPLES: Final = 64


@attrs.define
class Bin:
    """The values of one stretch of time."""

    count: int = 0
    total: float = 0.0
    low: float = 0.0
    high: float = -math.inf
    high_step: int = -1
    high_rank: int = -1
    """`high_step` and `high_rank` are the step and the rank of `high`."""
    first_step: int = -1
    last_step: int = -1
    samples: list[float] = attrs.field(factory=list)
    """Every *stride*-th value."""
    stride: int = 1

    def add(self, value: float, step: int, rank: int) -> None:
        """Add one value."""
        if value > self.high:
            self.high, self.high_step, self.high_rank = value, step, rank
        if not self.count:
            self.low = value
            self.first_step = self.last_step = step
        else:
            if value < self.low:  # noqa: PLR1730  min() is a call for every value
                self.low = value
            if step > self.last_step:
                self.last_step = step
            elif step < self.first_step:
                self.first_step = step
        if not self.count % self.stride:
            samples = self.samples
            samples.append(value)
            if len(samples) >= _MOST_SAMPLES:
                del samples[1::2]
                self.stride *= 2
        self.count += 1
        self.total += value

    def add_many(self, values: Sequence[float], steps: Sequence[int], rank: int) -> None:
        """Add several values of one rank."""
        high = max(values)
        if high > self.high:
            self.high, self.high_step, self.high_rank = high, steps[values.index(high)], rank
        if not self.count:
            self.low, self.first_step, self.last_step = values[0], steps[0], steps[0]
        low, first, last = min(values), min(steps), max(steps)
        self.low = min(self.low, low)
        self.first_step = min(self.first_step, first)
        self.last_step = max(self.last_step, last)
        self.samples += values[-self.count % self.stride :: self.stride]
        self._thin()
        self.count += len(values)
        self.total += sum(values)

    def _thin(self) -> None:
        while len(self.samples) >= _MOST_SAMPLES:
            del self.samples[1::2]
            self.stride *= 2

    def merge(self, other: Bin) -> None:
        """Add the values of *other*."""
        if other.high > self.high:
            self.high, self.high_step, self.high_rank = other.high, other.high_step, other.high_rank
        self.low = min(self.low, other.low)
        self.first_step = min(self.first_step, other.first_step)
        self.last_step = max(self.last_step, other.last_step)
        self.count += other.count
        self.total += other.total
        self.stride = max(self.stride, other.stride)
        self.samples += other.samples
        self._thin()

    @property
    def median(self) -> float:
        """The median: exact for up to 63 values, otherwise of 32 to 63 samples of them."""
        return statistics.median(self.samples)

    @property
    def mean(self) -> float:
        """The mean, exact."""
        return self.total / self.count


class Bins:
    """
    Values by time, in stretches whose length doubles whenever there are more than *most* of them.

    Memory does not depend on how long the job was, nor on how many ranks it had; the lowest and the highest value of
    each stretch are exact.
    """

    def __init__(self, most: int = 2_048, width_ns: int = 1 << 20) -> None:
        self._most = most
        self._shift = width_ns.bit_length() - 1
        self._bins: dict[int, Bin] = {}

    @property
    def width_ns(self) -> int:
        """The length of a stretch, in ns."""
        return 1 << self._shift

    def __len__(self) -> int:
        return len(self._bins)

    def add(self, at_ns: int, value: float, step: int = -1, rank: int = -1) -> None:
        """Add the *value* at the time *at_ns*."""
        place = at_ns >> self._shift
        try:
            found = self._bins[place]
        except KeyError:
            found = self._bins[place] = Bin()
            if len(self._bins) > self._most:
                found.add(value, step, rank)
                self._widen()
                return
        found.add(value, step, rank)

    def add_many(self, times_ns: Sequence[int], values: Sequence[float], steps: Sequence[int], rank: int) -> None:
        """Add values of one rank; if their times are not in order, this takes longer."""
        place, count = 0, len(times_ns)
        if any(map(operator.gt, times_ns, islice(times_ns, 1, None))):
            for at_ns, value, step in zip(times_ns, values, steps, strict=True):
                self.add(at_ns, value, step, rank)
            return
        if times_ns[-1] - times_ns[0] >> self._shift >= count:  # far apart: about one per stretch
            self._add_sparse(times_ns, values, steps, rank)
            return
        while place < count:
            at = times_ns[place] >> self._shift
            end = bisect_left(times_ns, (at + 1) << self._shift, place + 1)
            if end == place + 1:
                self.add(times_ns[place], values[place], steps[place], rank)
            else:
                found = self._bins.get(at)
                if found is None:
                    found = self._bins[at] = Bin()
                found.add_many(values[place:end], steps[place:end], rank)
                if len(self._bins) > self._most:
                    self._widen()
            place = end

    def _add_sparse(self, times_ns: Sequence[int], values: Sequence[float], steps: Sequence[int], rank: int) -> None:
        bins, shift = self._bins, self._shift
        for at_ns, value, step in zip(times_ns, values, steps, strict=True):
            found = bins.get(at_ns >> shift)
            if found is None:
                self.add(at_ns, value, step, rank)
                bins, shift = self._bins, self._shift
            elif found.low <= value <= found.high and step == found.last_step and found.count % found.stride:
                found.count += 1  # the most frequent case if ranks train in step
                found.total += value
            else:
                found.add(value, step, rank)

    def _widen(self) -> None:
        while len(self._bins) > self._most:
            self._shift += 1
            wider: dict[int, Bin] = {}
            for place, found in sorted(self._bins.items()):
                known = wider.get(place >> 1)
                if known is None:
                    wider[place >> 1] = found
                else:
                    known.merge(found)
            self._bins = wider

    def points(self) -> list[tuple[int, Bin]]:
        """Return the middle of each stretch that has values, in ns since the epoch, and the values."""
        half = self.width_ns >> 1
        return [((place << self._shift) + half, found) for place, found in sorted(self._bins.items())]

    def width_of(self, most: int) -> int:
        """Return the length of the stretches in `coarse`, in ns."""
        if len(self._bins) <= most:
            return self.width_ns
        return (max(self._bins) - min(self._bins) << self._shift) // most + 1

    def coarse(self, most: int) -> list[tuple[int, Bin]]:
        """Return at most *most* points: neighbours are merged, and extremes are kept."""
        points, size = self.points(), self.width_of(most)
        if len(points) <= most:
            return points
        start = points[0][0]
        found: dict[int, tuple[int, Bin]] = {}
        for at_ns, one in points:
            place = (at_ns - start) // size
            if place in found:
                found[place][1].merge(one)
            else:
                found[place] = start + place * size + size // 2, attrs.evolve(one, samples=list(one.samples))
        return [found[place] for place in sorted(found)]


def plain(points: list[tuple[int, Bin]]) -> list[dict[str, Any]]:
    """Return *points*, which are step times in ns, as plain data."""
    return [
        {
            "at_ns": at_ns,
            "median_ns": one.median,
            "min_ns": one.low,
            "max_ns": one.high,
            "max_step": one.high_step,
            "max_rank": one.high_rank,
            "steps": [one.first_step, one.last_step],
            "count": one.count,
        }
        for at_ns, one in points
    ]


_MOST_VALUES: Final = 64
_MOST_STEPS: Final = 1 << 17


@attrs.define
class Trace:
    """A figure over time, thinned out evenly as it gets long."""

    times_ns: array[int] = attrs.field(factory=lambda: array("q"))
    values: array[float] = attrs.field(factory=lambda: array("d"))
    stride: int = 1
    seen: int = 0

    def add(self, at_ns: int, value: float) -> None:
        """Add one value."""
        if not self.seen % self.stride:
            self.times_ns.append(at_ns)
            self.values.append(value)
            if len(self.values) >= _MOST_VALUES:
                del self.times_ns[1::2], self.values[1::2]
                self.stride *= 2
        self.seen += 1


@attrs.define
class StepLengths:
    """The lengths of the steps of one process, in order; if they are very many, the means of blocks of steps."""

    lengths_ns: array[float] = attrs.field(factory=lambda: array("d"))
    numbers: array[int] = attrs.field(factory=lambda: array("q"))
    """The first step of each block."""
    block: int = 1
    _held: list[tuple[int, float]] = attrs.field(factory=list)
    """Steps that do not fill a block yet."""

    def add_many(self, steps: Sequence[int], lengths_ns: Sequence[float]) -> None:
        """Add the next steps."""
        if self.block == 1:
            self.lengths_ns.extend(lengths_ns)
            self.numbers.extend(steps)
        else:
            self._held += zip(steps, lengths_ns, strict=True)
            size = self.block
            whole = len(self._held) - len(self._held) % size
            for start in range(0, whole, size):
                block = self._held[start : start + size]
                self.lengths_ns.append(sum([length_ns for _, length_ns in block]) / size)
                self.numbers.append(block[0][0])
            del self._held[:whole]
        while len(self.lengths_ns) >= _MOST_STEPS:
            self._halve()

    def _halve(self) -> None:
        own: Sequence[float] = self.lengths_ns
        if len(own) % 2:
            self._held[:0] = [(self.numbers[-1], own[-1])] * self.block
            del self.lengths_ns[-1], self.numbers[-1]
        self.lengths_ns = array("d", [(one + two) / 2 for one, two in zip(own[::2], own[1::2], strict=True)])
        self.numbers = self.numbers[::2]
        self.block *= 2


@attrs.frozen
class Raised:
    """An exception that was recorded."""

    rank: int
    at_ns: int
    step: int
    span: str
    """The innermost span that it passed through; empty if there was none."""
    type: str
    message: str
    is_out_of_memory: bool


_OF_A_LIBRARY: Final = re.compile(
    r"site-packages|dist-packages|trackside[\\/](integrations|instruments|job|bus)[\\/]|[\\/]lib[\\/]python\d|^<frozen"
)
_OF_AN_EXCHANGE: Final = re.compile(
    r"torch[\\/](distributed|autograd|nn[\\/]parallel)|in (all_reduce|all_gather|reduce_scatter|barrier|backward)\b"
)
_OF_A_LOADER: Final = re.compile(
    r"torch[\\/]utils[\\/]data[\\/]|trackside[\\/]integrations[\\/]\S+ in (batches|__next__)$", re.MULTILINE
)


@attrs.define(kw_only=True)
class Stall:
    """A stall that a process recorded of itself."""

    step: int
    began_ns: int
    """The time when its last step ended."""
    usual_s: float
    span: str
    """The innermost span that was open."""
    where: str
    """The place of its main thread in the code, from its stack."""
    waits: bool
    """Whether the main thread was in an exchange with other ranks."""
    collective: str
    ended_ns: int | None = None
    """The time when the next step ended; None if none did."""

    @classmethod
    def of(cls, event: StallDetected) -> Stall:
        """Return the stall that *event* reports."""
        thread, stack = next(iter(event.stacks.items()), ("", ""))  # the main thread comes first
        name = [*event.open_spans.get(thread, []), "", ""][1]
        last = event.collectives[-1] if event.collectives else {}
        collective = " ".join(
            str(last[key]) for key in ("profiling_name", "collective_seq_id", "state") if last.get(key) is not None
        )
        return cls(
            step=event.step,
            began_ns=event.at_ns - (clock.ns_of(event.stalled_s) or 0),
            usual_s=event.usual_s,
            # A wait for a batch has no open span: an iteration is known to exist only after its batch came.
            span=span_names.DATA_LOADING if _OF_A_LOADER.search(stack) else str(name),
            where=place_in(stack),
            waits=bool(_OF_AN_EXCHANGE.search(stack)),
            collective=collective[:100],
        )


LIMITING: Final = ("pause", "sample", "priority")
"""The control verbs that limit what is recorded."""
_MOST_LIMITS: Final = 256


@attrs.define
class Limit:
    """A time in which a control verb limited what a process recorded."""

    verb: str
    since_ns: int
    until_ns: int | None
    """None if nothing has ended it."""

    def end(self, at_ns: int) -> None:
        """Note that it ended by *at_ns*."""
        self.until_ns = at_ns if self.until_ns is None else min(at_ns, self.until_ns)


def place_in(stack: str) -> str:
    """Return the innermost frame of *stack* in words, and the place in the program's own code that called it."""
    frames = stack.splitlines()
    if not frames:
        return ""
    own = next((frame for frame in reversed(frames) if not _OF_A_LIBRARY.search(frame)), frames[-1])
    path, _, function = own.rpartition(" in ")
    file = re.split(r"[\\/]", path)[-1]
    place = f"{function} ({file})"
    inner = frames[-1].rpartition(" in ")[2]
    return place if own is frames[-1] else f"{inner}, called by {place}"


_NOT_A_LOSS: Final = "scale"
"""A series with this in its name is no loss: the factor of a gradient scaler becomes infinite in healthy jobs."""


def _is_loss(name: str) -> bool:
    low = name.lower()
    return "loss" in low and _NOT_A_LOSS not in low


@attrs.define(kw_only=True)
class NotFiniteRun:
    """The latest values of one series of losses that were NaN or infinite, without a finite one between them."""

    value: str
    """``nan``, ``inf`` or ``-inf``; empty if they differ, or if it is not known."""
    at_ns: int
    steps: tuple[int, int]
    """The first and the last step in which the run may have begun; they are equal if its step is known."""
    step: int
    """The likely one of them."""
    last_step: int
    count: int = 1
    earlier: int = 0
    """The number of such values before this run."""
    is_initial: bool = False
    """Whether it is infinite and nothing came before it, as with the least loss before there is one."""
    finite_after: int = 0


@attrs.define(kw_only=True)
class Stood:
    """The saves, restores or evaluations of one process."""

    since_ns: int
    """The start of the first, in ns since the epoch."""
    took: Bin = attrs.field(factory=Bin)
    """Their durations."""
    ended_ns: int = 0
    """The sum of the times at which they ended, in ns since the epoch."""

    @property
    def mean_end_ns(self) -> float:
        """The mean of these times."""
        return self.ended_ns / self.took.count


@attrs.define(eq=False)
class Watched:
    """The facts about one process, from its events."""

    source: Source
    first_ns: int = 0
    last_ns: int = 0
    heartbeat_interval_ns: int | None = None
    """The interval that its heartbeats report; None if there was none."""
    end_reason: str | None = None
    """The reason of its end, as it recorded it; None if it recorded no end."""
    steps: int = 0
    steps_ns: int = 0
    """The sum of the lengths of its steps."""
    last_step: int = -1
    first_batch_ns: int | None = None
    """The time for which it waited for the first batch; None if no batch came yet."""
    step_ended_ns: int = 0
    ends_ns: deque[int] = attrs.field(factory=lambda: deque(maxlen=MOST_ENDS))
    """The times when the last steps ended."""
    samples: int = 0
    tokens: int = 0
    events: int = 0
    counts: dict[str, Any] = attrs.field(factory=dict)
    """The counts of the bus, as the last heartbeat reported them."""
    memory: dict[str, Trace] = attrs.field(factory=dict)
    """The counters whose unit is bytes, by name."""
    lengths: StepLengths | None = None
    """The lengths of its steps; only for the first rank of an attempt."""
    record: StepRecord = attrs.field(factory=StepRecord)
    """The steps by their parts."""
    raised: list[Raised] = attrs.field(factory=list)
    """The first 64 exceptions that were recorded, each once."""
    not_finite: dict[str, NotFiniteRun] = attrs.field(factory=dict)
    """The losses that were NaN or infinite, by name of the series; that of the iterations' own loss is empty."""
    finite: Counter[str] = attrs.field(factory=Counter)
    """The number of finite losses, by the same names."""
    logged_losses: set[str] = attrs.field(factory=set)
    """The losses that `trackside.metrics` recorded one by one."""
    loss_windows: dict[str, tuple[int, float]] = attrs.field(factory=dict)
    """By name of each counter of losses, the last step when its latest window was read, and the total until then."""
    stalls: list[Stall] = attrs.field(factory=list)
    """The latest 16 stalls."""
    limits: list[Limit] = attrs.field(factory=list)
    """The first 256 times in which it recorded less, because it was asked to."""
    standstills: dict[str, Stood] = attrs.field(factory=dict)
    """Saves, restores and evaluations, by kind."""

    @property
    def is_rank(self) -> bool:
        """Whether it is a rank and not a worker of one."""
        return self.source.role == "main"

    def note_finite(self, name: str, count: int) -> None:
        """Count finite values of a series of losses."""
        self.finite[name] += count
        run = self.not_finite.get(name)
        if run is not None and count:
            run.finite_after += count
            if run.is_initial:
                del self.not_finite[name]

    def note_not_finite(self, name: str, found: NotFiniteRun) -> None:
        """Add values of a series of losses that are NaN or infinite."""
        run = self.not_finite.get(name)
        if run is None:
            found.is_initial = bool(name) and found.value != "nan" and not self.finite[name]
        elif run.finite_after:
            found.earlier = run.earlier + run.count
        else:
            run.value = run.value if found.value == run.value else ""
            run.count += found.count
            run.last_step = found.last_step
            return
        self.not_finite[name] = found

    @property
    def mean_step_ns(self) -> float | None:
        """The mean length of its steps."""
        return self.steps_ns / self.steps if self.steps else None


_COARSE: Final = 256
_MOST_LEVELS: Final = 64
_MOST_OWN: Final = 32
_MOST_RAISED: Final = 64
_MOST_STALLS: Final = 16
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED|not enough memory",
    re.IGNORECASE,
)
_MOST_MARKS: Final = 2_000
MOST_WINDOWS: Final = 40_000
"""The most windows of sections to keep in memory; if there are more, the logs are read again, by time."""
LEVELS: Final = ("value", "mean", "p50", "max")
"""Aggregations in order of preference: the first one that a window has is the level of its counter."""
MARKED: Final = {
    span_names.CHECKPOINT_SAVE_SYNC: "checkpoint",
    span_names.CHECKPOINT_SAVE_ASYNC: "checkpoint",
    span_names.CHECKPOINT_LOAD: "restore",
    span_names.VALIDATION_LOOP: "validation",
    span_names.TESTING_LOOP: "validation",
}

_MOST_TILED: Final = 400_000
"""The most blocks of steps to keep, over all ranks."""

Consume = Callable[[Any], object]


@attrs.frozen
class Mark:
    """Something that happened while the job ran."""

    at_ns: int
    """The time when it began."""
    kind: str
    """``checkpoint``, ``restore``, ``validation``, ``error``, ``lost``, ``restart``, ``end``."""
    label: str
    rank: int
    step: int = -1
    duration_ns: int = 0


def is_out_of_memory(kind: str, message: str) -> bool:
    """Return whether an exception means that memory ran out, by its type (torch's or Python's) or its message."""
    return kind.rpartition(".")[2] in {"OutOfMemoryError", "MemoryError"} or bool(_OUT_OF_MEMORY.search(message))


@attrs.define
class OwnEvents:
    """The events of one type that the job declared itself."""

    name: str
    count: int = 0
    ranks: set[int] = attrs.field(factory=set)
    last_ns: int = 0
    last_step: int = -1
    last: dict[str, Any] = attrs.field(factory=dict)
    """The fields of the latest one."""
    levels: dict[str, Bins] = attrs.field(factory=dict)
    """The values of fields that are numbers, by name."""

    def add(self, event: Event, rank: int) -> None:
        """Add one event of *rank*."""
        self.count += 1
        self.ranks.add(rank)
        fields = fields_of(event)
        if event.at_ns >= self.last_ns:
            self.last_ns, self.last_step, self.last = event.at_ns, event.step, fields
        for name, value in fields.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                if name not in self.levels and len(self.levels) >= _MOST_OWN:
                    continue
                self.levels.setdefault(name, Bins(_COARSE)).add(event.at_ns, value, event.step, rank)


class Gatherer:
    """
    Reads the processes of one session, one after the other.

    `consume` is called once for each process with all of its events; the processes of an attempt come in the order of
    their ranks.
    """

    def __init__(self, processes: int = 1) -> None:
        self._most_blocks = most_blocks(processes, _MOST_TILED)
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
        """The levels of counters, and the values that `trackside.metrics` recorded, by name."""
        self.latest: dict[str, tuple[int, float]] = {}
        """The latest value of each name from `trackside.metrics`: its time, in ns since the epoch, and the value."""
        self.loss = Bins(_COARSE)
        self.marks: list[Mark] = []
        self.marks_left_out = 0
        self.dropped: Counter[str] = Counter()
        self.suspended: Counter[str] = Counter()
        self.own: dict[str, OwnEvents] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        """The hyper-parameters that were logged, by run."""
        self.configured: TrainingConfigured | None = None
        self.events = 0
        self.exit_status: int | None = None
        """The exit status of the program that `trackside run` started; None if it is not known."""
        self.exits: dict[str, ProcessExited] = {}
        """The exits of processes that it saw, by source id."""
        self._leads: dict[tuple[str, int], str] = {}
        self._begun: dict[str, Watched] = {}
        self._iterations: list[IterationEnded] = []
        self._step_times_ns: list[int] = []
        """The step times of `_iterations`, in ns."""
        self._run: list[Any] = []
        self._is_lead = False
        self._now = Watched(Source.unknown(""))
        self._consumers: dict[type[Event], tuple[Consume, ...]] = {}

    def consume(self, source: Source, batches: Iterable[Sequence[Event]]) -> None:
        """Read all events of *source*; each batch is of one process."""
        self._turn_to(source)
        consumers = self._consumers
        for batch in batches:
            if not batch:
                continue
            if batch[0].source.id != self._now.source.id:
                self._turn_to(batch[0].source)  # the logs of several processes were joined into one file
            view = FrameView(batch[-1].source, batch)
            self.goodput.consume(view)
            self.counters.consume(view)
            # Iterations are counted here: as spans they would take more time than everything else.
            spans = [event for event in batch if not isinstance(event, IterationEnded)]
            self.spans.consume(FrameView(view.source, spans))
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
                    consumers_of_kind = consumers[kind]
                except KeyError:
                    consumers_of_kind = self._find_consumers(kind)
                for consume in consumers_of_kind:
                    consume(event)
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
            now.source = view.source
            self.events += len(batch)

    def _turn_to(self, source: Source) -> None:
        now = self._begun.get(source.id)
        place = (source.run_id, source.attempt)
        if now is None:
            now = self._begun[source.id] = Watched(source)
            now.record.tiles.most = self._most_blocks
            if now.is_rank and place not in self._leads:
                self._leads[place] = source.id
                now.lengths = StepLengths()
        self._is_lead = self._leads.get(place) == source.id
        self._now = now

    def _find_consumers(self, kind: type[Event]) -> tuple[Consume, ...]:
        found = [consume for base, consume in self._own() if issubclass(kind, base)]
        if kind is UnknownEvent or not kind.wire_name.startswith("trackside."):
            found.append(self._add_own)
        self._consumers[kind] = () if kind.derived else tuple(found)
        return self._consumers[kind]

    def _own(self) -> list[tuple[type[Event], Consume]]:
        return [
            (IterationEnded, self._iterate_one),
            (SpanStarted, self._start_span),
            (SpanEnded, self._end_span),
            (SectionWindow, self._add_window),
            (KernelWindow, self._add_window),
            (CounterWindow, self._count),
            (MetricsLogged, self._log_metrics),
            (Heartbeat, self._beat),
            (SourceEnded, self._end),
            (ProcessExited, self._exit),
            (ProgramEnded, self._end_program),
            (ExceptionRaised, self._add_exception),
            (StallDetected, self._stall),
            (CheckpointSaveSucceeded, self._saved),
            (CheckpointSaveFailed, self._saved),
            (TrainingConfigured, self._configure),
            (EventsDropped, self._dropped),
            (HandlerSuspended, self._rest),
            (ConfigLogged, self._log_config),
            (ControlUsed, self._control),
        ]

    def _iterate(self, run: Sequence[IterationEnded]) -> int:
        """Read consecutive iterations, and return the latest of their times, in ns since the epoch."""
        self._keep(run)
        return max([event.at_ns for event in run])

    def _iterate_one(self, event: IterationEnded) -> None:
        """Read an iteration's figures for the report; the models have read it already."""
        self._keep((event,))

    def _keep(self, run: Sequence[IterationEnded]) -> None:
        now = self._now
        if not now.is_rank:
            return
        for event in run:
            interval = now.record.iteration_ended(event)
            if interval is not None:
                self._iterations.append(event)
                self._step_times_ns.append(interval.step_ns)

    def _settle(self) -> None:
        """Add the training iterations of a batch at once: one by one, they would take a third of the whole time."""
        now, ended, self._iterations = self._now, self._iterations, []
        lengths, self._step_times_ns = self._step_times_ns, []
        steps = [event.step for event in ended]
        now.steps += len(ended)
        now.steps_ns += sum(lengths)
        now.last_step = steps[-1]
        now.step_ended_ns = ended[-1].at_ns
        now.ends_ns.extend([event.at_ns for event in ended])
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
        if len(finite) == len(losses):
            now.note_finite("", len(finite))
        else:
            for at_ns, loss, step in losses:
                self._note_loss("", loss, at_ns, step)
        if finite and now.lengths is not None:
            times_ns, values, numbers = zip(*finite, strict=True)
            self.loss.add_many(times_ns, values, numbers, now.source.rank)

    def _note_loss(self, name: str, loss: float, at_ns: int, step: int) -> None:
        if math.isfinite(loss):
            self._now.note_finite(name, 1)
        else:
            run = NotFiniteRun(value=str(loss), at_ns=at_ns, steps=(step, step), step=step, last_step=step)
            self._now.note_not_finite(name, run)

    def _start_span(self, event: SpanStarted) -> None:
        self._now.record.span_started(event)

    def _end_span(self, event: SpanEnded) -> None:
        kind = MARKED.get(event.name)
        began_ns = event.at_ns - event.duration_ns
        if self._now.is_rank:
            self._now.record.span_ended(event)
        if event.name == span_names.DATA_LOADING and self._now.first_batch_ns is None:
            self._now.first_batch_ns = event.duration_ns
        if kind is not None and self._now.is_rank:
            saved = event.attributes.get(span_names.CURRENT_ITERATION)  # an event between two steps has no step
            step = saved if type(saved) is int and event.step < 0 else event.step
            if event.name in STANDSTILLS:
                stood = self._now.standstills.setdefault(kind, Stood(since_ns=began_ns))
                stood.took.add(event.duration_ns, step, self._now.source.rank)
                stood.ended_ns += event.at_ns
            if self._is_lead:
                self._mark(kind, event.name, began_ns, step, event.duration_ns)
        if event.error is not None and "raised_in" not in event.error:
            kind, message = str(event.error.get("type", "an exception")), str(event.error.get("message", ""))
            self._add_raised(event, event.name, kind, message, is_out_of_memory=is_out_of_memory(kind, message))

    def _add_exception(self, event: ExceptionRaised) -> None:
        is_full = event.is_out_of_memory or is_out_of_memory(event.type, event.message)
        self._add_raised(event, event.span_name, event.type, event.message, is_out_of_memory=is_full)

    def _add_raised(self, event: Event, span: str, kind: str, message: str, *, is_out_of_memory: bool) -> None:
        """Record an exception once, even if several spans that it passes through report it."""
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

    def _control(self, event: ControlUsed) -> None:
        limits = self._now.limits
        if event.done is not True or not (event.verb in LIMITING or event.verb == "resume"):
            return
        if limits:
            limits[-1].end(event.at_ns)
        if event.verb in LIMITING and len(limits) < _MOST_LIMITS:
            asked_s = event.arguments.get("seconds")
            length_ns = clock.ns_of(asked_s) if isinstance(asked_s, (int, float)) else None
            limits.append(Limit(event.verb, event.at_ns, None if length_ns is None else event.at_ns + length_ns))

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
        self._now.record.window_ended(event)

    def _count(self, event: CounterWindow) -> None:
        level = next((event.values[name] for name in LEVELS if name in event.values), None)
        if _is_loss(event.name) and event.name not in self._now.logged_losses:
            if self._iterations:
                self._settle()
            self._note_losses(event, level)
        if level is None or not event.count or not math.isfinite(level):
            return
        # Values from `trackside.metrics` are known one by one, so their window would only repeat their mean.
        if event.name not in self.latest and not self._add_level(event.name, event.end_ns, level, event.step):
            return
        if event.unit in BYTE_UNITS:
            self._now.memory.setdefault(event.name, Trace()).add(event.end_ns, level)

    def _log_metrics(self, event: MetricsLogged) -> None:
        for name, value in event.values.items():
            if type(value) not in {float, int}:
                continue
            is_finite = math.isfinite(value)
            if _is_loss(name):
                self._now.logged_losses.add(name)
                if self._iterations and not is_finite:
                    self._settle()
                self._note_loss(name, value, event.at_ns, event.step if event.step >= 0 else self._now.last_step)
            if not is_finite:
                continue
            newest_ns, _ = self.latest.get(name, (0, value))
            if self._add_level(name, event.at_ns, value, event.step) and event.at_ns >= newest_ns:
                self.latest[name] = event.at_ns, value

    def _add_level(self, name: str, at_ns: int, value: float, step: int) -> bool:
        """Add a value to those called *name*; return False if there are too many names."""
        if name not in self.levels and len(self.levels) >= _MOST_LEVELS:
            return False
        self.levels.setdefault(name, Bins(_COARSE)).add(at_ns, value, step, self._now.source.rank)
        return True

    def _note_losses(self, event: CounterWindow, level: float | None) -> None:
        """Read a window of losses; its *level* is the first known of `LEVELS`."""
        now, name, before, bad = self._now, event.name, event.before_non_finite, event.non_finite
        last_step, total = now.loss_windows.get(name, (now.last_step - now.steps, 0.0))
        now.loss_windows[name] = now.last_step, event.total_sum
        if not bad:
            now.note_finite(name, event.count)
            return
        value = ""  # NaN is in no figure of a window, and infinities are in all
        if math.isfinite(event.total_sum) or event.count == before:
            value = "nan"
        elif level is not None and math.isinf(level):
            value = str(level)
        elif bad == 1 and math.isfinite(total):
            value = str(event.total_sum)
        recorded = event.count + (bad if value == "nan" else 0)
        first_step, steps = min(last_step + 1, now.last_step), now.last_step - last_step
        step = first_step + (before * steps // recorded if recorded >= steps else 0)
        bounds = (step, step) if recorded == steps else (first_step, now.last_step)
        run = NotFiniteRun(value=value, at_ns=event.end_ns, steps=bounds, step=step, last_step=now.last_step, count=bad)
        now.note_finite(name, before)
        now.note_not_finite(name, run)
        now.note_finite(name, max(0, recorded - before - bad))

    def _beat(self, event: Heartbeat) -> None:
        self._now.heartbeat_interval_ns = clock.ns_of(event.interval_s)
        self._now.counts = event.counts

    def _exit(self, event: ProcessExited) -> None:
        self.exits[event.source_id] = event

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

    def _log_config(self, event: ConfigLogged) -> None:
        self.configs.setdefault(self._now.source.run_id, {}).update(event.values)

    def _add_own(self, event: Event) -> None:
        name = wire_name_of(event)
        found = self.own.get(name)
        if found is None:
            if len(self.own) >= _MOST_OWN:
                return
            found = self.own[name] = OwnEvents(name)
        found.add(event, self._now.source.rank)
