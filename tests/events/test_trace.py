"""The OpenTelemetry ids of trackside's spans."""

from __future__ import annotations

import re

import pytest

from trackside.events import Parent, Source
from trackside.events.trace_ids import global_id, is_traceable, parent_id, trace_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
MAIN = Source(id="00c0ffee00c0ffee")
WORKER = Source(id="1111111111111111", parent=Parent(MAIN.id, 7))
GRANDCHILD = Source(id="2222222222222222", parent=Parent(WORKER.id, 9))


class TestTraceOf:
    def test_of_its_own(self):
        """A process that no other process started has a trace of its own."""
        assert trace_of(MAIN) == "00c0ffee00c0ffee0000000000000000"

    def test_of_the_starter(self):
        """A process that a trackside process started is in that one's trace."""
        assert trace_of(WORKER) == trace_of(MAIN)

    def test_of_others(self):
        """A process that was started in another program's trace is in it."""
        assert trace_of(Source(id=MAIN.id, parent=Parent(TRACE, 5))) == TRACE

    def test_further_up(self):
        """Of several known starters, the first one's trace counts."""
        assert trace_of(GRANDCHILD, {MAIN.id: MAIN, WORKER.id: WORKER}) == trace_of(MAIN)

    def test_circle(self):
        """A source that names itself as its starter gets a trace all the same."""
        odd = Source(id="3333333333333333", parent=Parent("3333333333333333", 1))
        assert re.fullmatch("[0-9a-f]{32}", trace_of(odd, {odd.id: odd}))

    @pytest.mark.parametrize("source_id", ["", "my-source", "0" * 16, "FFFFFFFFFFFFFFFF"])
    def test_odd_id(self, source_id):
        """A source id that makes no valid trace id is mapped to one, always the same."""
        trace = trace_of(Source(id=source_id))
        assert re.fullmatch("[0-9a-f]{32}", trace)
        assert trace == trace_of(Source(id=source_id))
        assert int(trace, 16)


class TestGlobalId:
    def test_alone(self):
        """In a trace of its own a span keeps its number."""
        assert global_id(MAIN, 12) == 12

    def test_shared(self):
        """In a shared trace the same number of two processes makes two ids."""
        assert global_id(WORKER, 12) == 12 ^ 0x1111111111111111
        assert global_id(WORKER, 12) != global_id(GRANDCHILD, 12)

    def test_never_none(self):
        """No span has the id that stands for none."""
        assert global_id(WORKER, 0x1111111111111111) != 0


class TestParentId:
    def test_none(self):
        """A process that no process started, or that was started outside of any span, has no parent span."""
        assert (parent_id(MAIN), parent_id(Source(parent=Parent(MAIN.id, 0)))) == (0, 0)

    def test_starter_alone(self):
        """A parent in a trace of its own is given by its span's number."""
        assert parent_id(WORKER) == parent_id(WORKER, {MAIN.id: MAIN}) == 7

    def test_starter_in_a_shared_trace(self):
        """A parent in a shared trace is given by its span's id there."""
        assert parent_id(GRANDCHILD, {WORKER.id: WORKER}) == global_id(WORKER, 9)

    def test_of_others(self):
        """A span of another program's keeps its id."""
        assert parent_id(Source(parent=Parent(TRACE, 0xB7AD6B7169203331))) == 0xB7AD6B7169203331


class TestIsTraceable:
    def test_all(self):
        """A source has its trace id if its own id or its starter's makes one."""
        assert is_traceable(MAIN)
        assert is_traceable(Source(id="x", parent=Parent(TRACE, 5)))
        assert not is_traceable(Source(id="x"))
