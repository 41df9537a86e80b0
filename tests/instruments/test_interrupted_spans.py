"""Exceptions of the program's own signal handlers where spans and iterations begin and end."""

from __future__ import annotations

import signal
import sys

import pytest

import trackside
from interrupting import Interruption, interrupter
from trackside.events import LIFECYCLE, IterationEnded, SpanEnded, SpanStarted, ambient
from trackside.instruments import _iteration, _span
from trackside.instruments._span import opened


@pytest.fixture
def raising():
    """Give a signal handler that raises, and let SIGUSR1 call it."""

    def handle(_number=0, _frame=None):
        raise Interruption

    before = signal.signal(signal.SIGUSR1, handle)
    yield handle
    signal.signal(signal.SIGUSR1, before)


class Once:
    """A function whose first call calls another one too, after its own work or before."""

    def __init__(self, function, other, *, after):
        self.function, self.other, self.after = function, other, after
        self.calls = 0

    def __call__(self, *args, **options):
        """Call both, or only the function."""
        self.calls += 1
        if self.calls == 1 and not self.after:
            self.other()
        result = self.function(*args, **options)
        if self.calls == 1 and self.after:
            self.other()
        return result


def begin_one():
    with trackside.span("one", priority=LIFECYCLE):
        pass


class TestBeginning:
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("name", ["_get_ident", "_surround", "next_id", "_monotonic_ns"])
    def test_is_undone(self, captured, monkeypatch, raising, name, after):
        """A span whose beginning a signal handler interrupts is not open, and nothing belongs to it."""
        around = ambient.get()
        monkeypatch.setattr(_span, name, Once(getattr(_span, name), raising, after=after))
        with pytest.raises(Interruption):
            begin_one()
        assert (opened(), ambient.get(), captured.of(SpanStarted)) == ({}, around, [])
        begin_one()
        assert [event.parent_span_id for event in captured.of(SpanEnded)] == [around[0]]

    @pytest.mark.parametrize("after", [False, True])
    def test_published_start(self, captured, monkeypatch, raising, after):
        """A span whose start was being published has an end, which names the exception."""
        around = ambient.get()
        monkeypatch.setattr(_span, "SpanStarted", Once(SpanStarted, raising, after=after))
        with pytest.raises(Interruption):
            begin_one()
        (ended,) = captured.of(SpanEnded)
        assert (ended.name, ended.error["type"].rpartition(".")[2]) == ("one", "Interruption")
        assert (opened(), ambient.get()) == ({}, around)


class TestEnding:
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("name", ["_surroundings", "_surround", "_new_event", "describe"])
    def test_of_a_span(self, captured, monkeypatch, raising, name, after):
        """A span whose end a signal handler interrupted is over, and has one event that says so."""
        around = ambient.get()
        block = trackside.span("one").open()
        monkeypatch.setattr(_span, name, Once(getattr(_span, name), raising, after=after))
        error = ValueError("the block's own")
        with pytest.raises(Interruption):
            block.__exit__(ValueError, error, None)
        monkeypatch.undo()
        (ended,) = captured.of(SpanEnded)
        assert (ended.name, ended.error["type"]) == ("one", "ValueError")
        assert (opened(), ambient.get()) == ({}, around)

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("name", ["_surroundings", "_surround", "_new_event", "describe"])
    def test_of_an_iteration(self, captured, monkeypatch, raising, name, after):
        """An iteration whose end a signal handler interrupted is over, and counts once, as failed."""
        around = ambient.get()
        block = trackside.training_iteration(step=3).open()
        monkeypatch.setattr(_iteration, name, Once(getattr(_iteration, name), raising, after=after))
        error = ValueError("the block's own")
        with pytest.raises(Interruption):
            block.__exit__(ValueError, error, None)
        monkeypatch.undo()
        (ended,) = captured.of(IterationEnded)
        assert (ended.step, ended.failed) == (3, True)
        assert (opened(), ambient.get()) == ({}, around)


class TestAtAnyMoment:
    @pytest.mark.hang_guard(120)
    @pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 runs signal handlers between any two steps")
    @pytest.mark.parametrize("kind", ["span", "iteration"])
    def test_every_exception_comes_out(self, captured, kind):
        """Each exception comes out; a block has one event, unless its exception came before its end began."""
        around = ambient.get()
        make = {
            "span": lambda: trackside.span("one", priority=LIFECYCLE),
            "iteration": lambda: trackside.training_iteration(step=1),
        }[kind]
        not_left = 0

        def call():
            nonlocal not_left
            try:
                with make():
                    pass
            finally:
                if ambient.get() is not around:
                    not_left += 1
                    ambient.set(around)

        with interrupter() as handler:
            outcome = handler.interrupt(call, 300)
        assert outcome.came == outcome.raised == 300
        ended = len(captured.of(SpanEnded if kind == "span" else IterationEnded))
        assert outcome.done <= ended <= outcome.calls - not_left
        # CPython 3.14 runs signal handlers between __enter__ and its block too: a `threading.Lock` stays locked as
        # often.
        most = 150 if sys.version_info[:2] == (3, 14) else 60
        assert len(opened()) == not_left < most
        _span.forget_opened()
