"""One step time for all views."""

from __future__ import annotations

import pytest

from processes import Process
from trackside.events import (
    IterationEnded,
    ProfileSpanEnded,
    SpanEnded,
    SpanStarted,
    span_names,
)
from trackside.handlers.models.steps import StepTimer

MS = 10**6
LOOP = 1


class Rank(Process):
    """The events of one rank."""

    def __init__(self, rank=0, **identity):
        super().__init__(at_ns=1000 * MS, rank=rank, **identity)
        assert self.start_span("training_loop") == LOOP

    def span(self, name, ms, parent, kind=ProfileSpanEnded, **attributes):
        """Spend time in a span."""
        self.spend(name, ms * MS, kind=kind, parent=parent, attributes=attributes)

    def step(self, number, *, before=0, parts=(), rest=0, **fields):
        """Do an iteration: load data before it, then its parts, then the time outside all parts."""
        if before:
            self.span(span_names.DATA_LOADING, before, LOOP)
        own, start_ns = next(self.ids), self.at_ns
        for name, ms in parts:
            self.span(name, ms, own)
        self.at_ns += rest * MS
        known = {"step": number, "span_id": own, "parent_span_id": LOOP, "duration_ns": self.at_ns - start_ns}
        self.add(IterationEnded, **known, **fields)

    def idle(self, ms):
        """Spend time that is in no span."""
        self.at_ns += ms * MS


def times(rank):
    """Return the step times of a rank in ms, and its interruptions."""
    timer, found = StepTimer(), []
    for event in rank.events:
        if isinstance(event, SpanStarted):
            timer.span_started(event)
        elif isinstance(event, SpanEnded):
            timer.span_ended(event)
        elif (step := timer.iteration_ended(event)) is not None:
            found.append((step.step_ns / MS, step.interrupted_ns / MS))
    return found


class TestStepTime:
    def test_from_step_to_step(self):
        """A step lasts from the end of the one before, with all the time between: 3 + 5 + 2 ms."""
        rank = Rank()
        for number in range(3):
            rank.step(number, before=3, rest=5)
            rank.idle(2)

        assert times(rank) == [(8, 0), (10, 0), (10, 0)]

    @pytest.mark.parametrize(
        "name",
        ["validation_loop", "checkpoint_save_sync", "checkpoint_save_finalization", "checkpoint_load", "testing_loop"],
    )
    def test_interruptions_are_left_out(self, name):
        """Validation and checkpoints between two steps are no step's time, and are counted separately."""
        rank = Rank()
        rank.step(0, rest=5)
        rank.span(name, 100, LOOP, SpanEnded)
        rank.step(1, rest=5)

        assert times(rank) == [(5, 0), (5, 100)]

    def test_iterations_of_validation_count_once(self):
        """Validation iterations and the loop around them are one interruption."""
        rank = Rank()
        rank.step(0, rest=5)
        start_ns = rank.at_ns
        rank.step(0, rest=30, kind="validation")
        rank.step(1, rest=30, kind="validation")
        rank.span("validation_loop", 0, LOOP, SpanEnded)
        rank.events[-1] = SpanEnded(
            at_ns=rank.at_ns,
            span_id=99,
            parent_span_id=LOOP,
            step=-1,
            name="validation_loop",
            duration_ns=rank.at_ns - start_ns,
        )
        rank.step(1, rest=5)

        assert times(rank) == [(5, 0), (5, 60)]

    def test_interruption_within_the_iteration(self):
        """A checkpoint inside an iteration is left out as well."""
        rank = Rank()
        rank.step(0, rest=5)
        rank.step(1, parts=[("checkpoint_save_sync", 50)], rest=5)

        assert times(rank)[1] == (5, 50)

    def test_saves_of_other_threads_do_not_interrupt(self):
        """A save in a background thread is not subtracted from the step."""
        rank = Rank()
        rank.step(0, rest=5)
        rank.span("checkpoint_save_async", 50, LOOP, SpanEnded, thread="saver")
        rank.step(1, rest=5)

        assert times(rank)[1] == (55, 0)

    def test_after_missing_steps(self):
        """A step before which others are missing lasts as long as its iteration, not since the last one known."""
        rank = Rank()
        rank.step(0, rest=5)
        rank.idle(500)
        rank.step(7, rest=5)

        assert times(rank) == [(5, 0), (5, 0)]

    def test_failed_iteration(self):
        """A failed iteration is no step, and its time not that of the next one."""
        rank = Rank()
        rank.step(0, rest=5)
        rank.step(1, rest=70, failed=True)
        rank.step(2, rest=5)

        assert times(rank) == [(5, 0), (5, 0)]

    def test_next_loop(self):
        """The first step of a loop begins with itself, not where the loop before ended."""
        rank = Rank()
        rank.step(0, rest=5)
        rank.idle(1000)
        rank.events.append(SpanStarted(at_ns=rank.at_ns, span_id=50, parent_span_id=0, step=-1, name="training_loop"))
        rank.step(1, rest=5)

        assert times(rank)[1] == (5, 0)
