from __future__ import annotations

import pytest

from trackside.events import ClockCompared, DecodeError, Source
from trackside.handlers.models import ClockOffsets
from trackside.testing import recorded

ROOT, FORWARDER = (Source.detect({}, id=name, role="collector") for name in ("root", "forwarder"))


def compared(by, source_id, offset_ns, *, sure_ns=10, at_ns=1):
    """Return the event in which *by* records how far a source's clock is ahead of its own."""
    event = ClockCompared(source_id=source_id, offset_ns=offset_ns, uncertainty_ns=sure_ns, exchanges=16, at_ns=at_ns)
    return recorded(event, source=by)


def offsets(*events):
    """Return the offsets that the model computes from *events*."""
    model = ClockOffsets()
    for event in events:
        model(event)
    return {name: (one.offset_ns, one.uncertainty_ns, one.root) for name, one in model.result().offsets.items()}


class TestClockOffsets:
    def test_one_connection(self):
        """Over one connection the offset is the recorded one."""
        assert offsets(compared(ROOT, "rank", 500)) == {"rank": (500, 10, "root")}

    def test_adds_up_along_the_path(self):
        """
        A rank 300 ns ahead of its forwarder, which is 200 ns behind the collector, is 100 ns ahead of that.
        """
        recorded = compared(FORWARDER, "rank", 300, sure_ns=7), compared(ROOT, "forwarder", -200, sure_ns=5)

        assert offsets(*recorded)["rank"] == offsets(*reversed(recorded))["rank"] == (100, 12, "root")

    def test_latest_word_of_each_counts(self):
        """A later measurement replaces an earlier one, in whatever order they are read."""
        recorded = compared(ROOT, "rank", 500, at_ns=1), compared(ROOT, "rank", 900, at_ns=2)

        assert offsets(*recorded) == offsets(*reversed(recorded)) == {"rank": (900, 10, "root")}

    def test_surest_of_several(self):
        """Of a collector that was restarted and its predecessor, the measurement with the smaller error counts."""
        recorded = compared(ROOT, "rank", 500, sure_ns=50), compared(FORWARDER, "rank", 480, sure_ns=20)

        assert offsets(*recorded)["rank"] == (480, 20, "forwarder")

    def test_circle_ends(self):
        """Two processes that were compared with each other make no endless loop."""
        recorded = compared(ROOT, "forwarder", 1), compared(FORWARDER, "root", -1)

        assert set(offsets(*recorded)) == {"forwarder", "root"}

    def test_dumped_and_loaded(self):
        """The state can be dumped to plain data and loaded."""
        model, other = ClockOffsets(), ClockOffsets()
        model(compared(ROOT, "rank", 500))
        model.missed(Source.unknown(""), 3)

        other.load(model.dump())

        assert other.result() == model.result()

    def test_refused_state(self):
        """An invalid state is refused, and the model stays as it was."""
        model = ClockOffsets()
        model(compared(ROOT, "rank", 500))
        before = model.dump()

        for state in ({}, {**before, "version": 0}, {**before, "links": {"rank": {"root": [1, 2]}}}, [1]):
            with pytest.raises(DecodeError):
                model.load(state)
        assert model.dump() == before
