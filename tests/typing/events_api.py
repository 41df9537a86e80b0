"""
Event classes as a type checker sees them; `tests/events/test_typing.py` has mypy read this and compares.

A line that must be an error ends in ``# E: `` and its codes.
"""

from __future__ import annotations

import attrs

from trackside.events import ITERATION, Event, IterationEnded, Source, SpanEnded, event


@event("typing.batch.skipped", priority=ITERATION)
class BatchSkipped(Event):
    """A batch was skipped because its loss was not finite."""

    reason: str
    indices: list[int] = attrs.field(factory=list)


@event("typing.epoch.ended")
class EpochEnded(BatchSkipped):
    """A class derived from a declared one, with a step of its own."""

    step: int


skipped = BatchSkipped(reason="nan")
reason: str = skipped.reason
indices: list[int] = skipped.indices
source: Source = skipped.source
seq: int | None = skipped.seq
name: str = BatchSkipped.wire_name
BatchSkipped(reason="nan", indices=[1], at_ns=0, span_id=0, step=3)
EpochEnded(reason="nan", step=1)
IterationEnded(duration_ns=1, loss=None)

skipped.reason = "inf"  # E: misc
skipped.at_ns = 0  # E: misc
skipped.seq = 1  # E: misc
skipped.indices = []  # E: misc
EpochEnded(reason="nan", step=1).reason = "inf"  # E: misc
SpanEnded(span_id=1, parent_span_id=0, name="x", duration_ns=1).name = "y"  # E: misc
BatchSkipped()  # E: call-arg
BatchSkipped(reason=1)  # E: arg-type
BatchSkipped(reason="nan", resaon="inf")  # E: call-arg
BatchSkipped("nan")  # E: arg-type, call-arg
BatchSkipped(reason="nan", step="3")  # E: arg-type
EpochEnded(reason="nan")  # E: call-arg
print(skipped.nothing)  # E: attr-defined
number: int = skipped.reason  # E: assignment
event("typing.x", priority="high")  # E: arg-type
event("typing.x", ITERATION)  # E: call-arg
