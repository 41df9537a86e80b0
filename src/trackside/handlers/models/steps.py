"""
The step time, the kinds of a step's parts and the least lateness that matters, as all views use them.

A step lasts from the end of the previous step to its own end, including data loading and everything else in between.
Time in validation, testing and checkpoints is not part of it; it counts as interruption.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import attrs

from trackside.events import IterationEnded, SpanEnded, SpanStarted, span_names

_MOST_OPEN: Final = 64
_TRAINING: Final = "training"
INTERRUPTING: Final = frozenset(
    (
        span_names.VALIDATION_LOOP,
        span_names.TESTING_LOOP,
        span_names.CHECKPOINT_LOAD,
        span_names.CHECKPOINT_SAVE_SYNC,
        span_names.CHECKPOINT_SAVE_ASYNC,
        span_names.CHECKPOINT_SAVE_FINALIZATION,
    )
)
"""The spans whose time is not part of a step."""
TIMED: Final = INTERRUPTING | {span_names.DATA_LOADING}
"""The spans whose ends `StepTimer` reads; it ignores those of all others."""


WAITING: Final = "waiting"
_KINDS: Final = (
    (
        WAITING,
        re.compile(
            r"wait|barrier|gradient_sync|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|collective|nccl|comm"
            r"|recv|p2p|isend|send[-_]?(forward|backward|activation|grad)|(forward|backward)[-_]?send"  # pipelines
        ),
    ),
    ("input", re.compile(r"data|load|fetch|input|batch|tokeni[sz]|augment|prefetch")),
    ("compute", re.compile(r"forward|backward|optim|update|zero_grad|comput|matmul|attention|attn|mlp|gpu|step|grad")),
)
"""The first whose pattern a name holds is its kind."""
OTHER: Final = "other"


def kind_by_name(name: str) -> str:
    """Return the kind that the name of a part indicates: ``input``, ``compute``, ``waiting`` or ``other``."""
    low = name.lower()
    return next((kind for kind, pattern in _KINDS if pattern.search(low)), OTHER)


FEWEST_STEPS: Final = 20
"""Fewer steps, or fewer times of one part, are no evidence that a rank is late."""
LEAST_LATE_NS: Final = 1e6
"""Lateness below a millisecond a step is no evidence on any machine."""
_LEAST_LATE_SHARE: Final = 0.08
"""The share of the usual step below which few ranks differ for no fault: one of them logs, or has a busier core."""
_LEAST_LATE_SHARE_OF_MANY: Final = 0.04
"""The same, of at least eight ranks, whose median is steady."""
_MANY_RANKS: Final = 8


def least_late_share(ranks: int) -> float:
    """Return the share of a usual step from which on lateness matters among so many *ranks*."""
    return _LEAST_LATE_SHARE_OF_MANY if ranks >= _MANY_RANKS else _LEAST_LATE_SHARE


def least_lateness_ns(usual_ns: float, ranks: int) -> float:
    """Return the lateness, in ns, from which on it matters among so many *ranks* if a usual step takes *usual_ns*."""
    return max(LEAST_LATE_NS, least_late_share(ranks) * usual_ns)


class StepInterval(NamedTuple):
    """One training step."""

    start_ns: int
    end_ns: int
    interrupted_ns: int
    """The part of the interval in validation, testing and checkpoints."""

    @property
    def step_ns(self) -> int:
        """The step time: from step to step, without interruptions."""
        return self.end_ns - self.start_ns - self.interrupted_ns


@attrs.define
class StepTimer:
    """
    Computes the step times of one process from its events, given in order.

    A step begins where the previous one ended. The first step of a loop begins with its own iteration, or with the data
    loading before it. If steps are missing, the next one begins with its own iteration: their time is not known.
    """

    last_end_ns: int | None = None
    """The end of the previous step; None at the beginning of a loop."""
    last_step: int = -1
    loading_ns: int | None = None
    """The start of the last data loading since then."""
    interruptions: list[tuple[int, int]] = attrs.field(factory=list)
    """Starts and ends since then, disjoint and in order."""

    def span_started(self, event: SpanStarted) -> None:
        """Read the start of a long span."""
        if event.name == span_names.TRAINING_LOOP:
            self.last_end_ns = self.loading_ns = None
            self.interruptions.clear()

    def span_ended(self, event: SpanEnded) -> None:
        """Read the end of any span."""
        if event.name in INTERRUPTING and span_names.THREAD not in event.attributes:
            self._interrupt(event.at_ns - event.duration_ns, event.at_ns)
        elif event.name == span_names.DATA_LOADING and span_names.THREAD not in event.attributes:
            self.loading_ns = event.at_ns - event.duration_ns

    def iteration_ended(self, event: IterationEnded) -> StepInterval | None:
        """Read the end of an iteration; return its step if it is a training iteration that did not fail."""
        end_ns = event.at_ns
        own_start_ns = end_ns - event.duration_ns
        if event.kind != _TRAINING:
            self._interrupt(own_start_ns, end_ns)
            return None
        start_ns = self.last_end_ns
        follows = event.step < 0 or event.step == self.last_step + 1
        if start_ns is None or not follows or start_ns > own_start_ns:
            start_ns = own_start_ns
            if self.last_end_ns is None and self.loading_ns is not None:
                start_ns = min(start_ns, self.loading_ns)
        interrupted_ns = 0
        if self.interruptions:
            inside = ((max(start, start_ns), min(end, end_ns)) for start, end in self.interruptions if end > start_ns)
            interrupted_ns = sum(end - start for start, end in inside)
            self.interruptions.clear()
        self.last_end_ns, self.last_step, self.loading_ns = end_ns, event.step, None
        return None if event.failed else StepInterval(start_ns, end_ns, interrupted_ns)

    def _interrupt(self, start_ns: int, end_ns: int) -> None:
        known = self.interruptions
        while known and known[-1][0] >= start_ns:
            known.pop()  # it lies within this one
        if known:
            start_ns = max(start_ns, known[-1][1])
        if start_ns < end_ns:
            known.append((start_ns, end_ns))
            if len(known) > _MOST_OPEN:
                first, second, *rest = known
                self.interruptions = [(first[0] + second[0] - first[1], second[1]), *rest]
