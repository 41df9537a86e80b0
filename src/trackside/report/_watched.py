"""One process of a session, as its log shows it."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any, Final

import attrs

from trackside.events import Source, StallDetected
from trackside.report._tiles import StepTiles

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
        """Take in one value."""
        if not self.seen % self.stride:
            self.times_ns.append(at_ns)
            self.values.append(value)
            if len(self.values) >= _MOST_VALUES:
                del self.times_ns[1::2], self.values[1::2]
                self.stride *= 2
        self.seen += 1


@attrs.define
class StepTimes:
    """How long the steps of one process took, in order; of very many the means of some that follow each other."""

    lengths_ns: array[float] = attrs.field(factory=lambda: array("d"))
    numbers: array[int] = attrs.field(factory=lambda: array("q"))
    """The first step of each."""
    block: int = 1
    _held: list[tuple[int, float]] = attrs.field(factory=list)
    """Steps that do not make a block yet."""

    def add_many(self, steps: Sequence[int], lengths_ns: Sequence[float]) -> None:
        """Take in the next steps."""
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
    """The innermost span that it left; empty if it left none."""
    type: str
    message: str
    is_out_of_memory: bool


_OF_A_LIBRARY: Final = re.compile(r"site-packages|dist-packages|[\\/]lib[\\/]python\d|^<frozen")
_OF_AN_EXCHANGE: Final = re.compile(
    r"torch[\\/](distributed|autograd|nn[\\/]parallel)|in (all_reduce|all_gather|reduce_scatter|barrier|backward)\b"
)


@attrs.define(kw_only=True)
class Stall:
    """A stall that a process recorded of itself."""

    step: int
    began_ns: int
    """When its last step ended."""
    usual_s: float
    span: str
    """The innermost span that was open."""
    where: str
    """What its main thread did."""
    waits: bool
    """Whether that is an exchange with other ranks."""
    collective: str
    ended_ns: int | None = None
    """When the next step ended; None if none did."""

    @classmethod
    def of(cls, event: StallDetected) -> Stall:
        """Return what is worth knowing of *event*."""
        thread, stack = next(iter(event.stacks.items()), ("", ""))  # the main thread's comes first
        name = [*event.open_spans.get(thread, []), "", ""][1]
        last = event.collectives[-1] if event.collectives else {}
        collective = " ".join(
            str(last[key]) for key in ("profiling_name", "collective_seq_id", "state") if last.get(key) is not None
        )
        return cls(
            step=event.step,
            began_ns=event.at_ns - round(event.stalled_s * 1e9),
            usual_s=event.usual_s,
            span=str(name),
            where=place_in(stack),
            waits=bool(_OF_AN_EXCHANGE.search(stack)),
            collective=collective[:100],
        )


def place_in(stack: str) -> str:
    """Return the innermost frame of *stack* in words, and from where in the program's own code it was called."""
    frames = stack.splitlines()
    if not frames:
        return ""
    own = next((frame for frame in reversed(frames) if not _OF_A_LIBRARY.search(frame)), frames[-1])
    path, _, function = own.rpartition(" in ")
    file = re.split(r"[\\/]", path)[-1]
    place = f"{function} ({file})"
    inner = frames[-1].rpartition(" in ")[2]
    return place if own is frames[-1] else f"{inner}, called by {place}"


@attrs.define(eq=False)
class Watched:
    """What is known of one process."""

    source: Source
    first_ns: int = 0
    last_ns: int = 0
    heartbeat_interval_ns: int | None = None
    """As its heartbeats say; None if there was none."""
    end_reason: str | None = None
    """Why it ended, in its own words; None if it did not say."""
    steps: int = 0
    steps_ns: int = 0
    """All steps together."""
    last_step: int = -1
    first_step_ns: int = 0
    """When its first step began."""
    step_ended_ns: int = 0
    samples: int = 0
    tokens: int = 0
    events: int = 0
    counts: dict[str, Any] = attrs.field(factory=dict)
    """Of the bus, as the last heartbeat told them."""
    memory: dict[str, Trace] = attrs.field(factory=dict)
    """By name, the counters whose unit is bytes."""
    lengths: StepTimes | None = None
    """Kept of the first rank of an attempt."""
    tiles: StepTiles = attrs.field(factory=StepTiles)
    """The steps, by the spans within them."""
    windows: StepTiles = attrs.field(factory=StepTiles)
    """The steps by section windows: each block is a window."""
    raised: list[Raised] = attrs.field(factory=list)
    """The exceptions that left spans, each once; the first 64."""
    not_finite_step: int | None = None
    """The first step whose loss was NaN or infinite; None if all were finite."""
    not_finite: str = ""
    """That loss: ``nan``, ``inf`` or ``-inf``."""
    not_finite_ns: int = 0
    last_step_by_stat: dict[str, int] = attrs.field(factory=dict)
    """By name of a stat of losses: the last step that had ended when its latest window was read."""
    stalls: list[Stall] = attrs.field(factory=list)
    """The latest of them."""

    @property
    def is_rank(self) -> bool:
        """Whether it is a rank and not a worker of one."""
        return self.source.role == "main"

    @property
    def mean_step_ns(self) -> float | None:
        """How long its steps took on average."""
        return self.steps_ns / self.steps if self.steps else None
