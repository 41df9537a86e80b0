"""Each event once, in order, and what is not there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trackside.events import Frame, IterationEnded, Source
from trackside.handlers.eventlog import _ledger
from trackside.handlers.eventlog._ledger import Ledger

SOURCE = Source(id="a" * 16)


def frame(first, last):
    """Return a frame of events *first* to *last*."""
    events = []
    for seq in range(first, last + 1):
        event = IterationEnded(duration_ns=seq)
        event._source, event._seq = SOURCE, seq
        events.append(event)
    return Frame(SOURCE, first, last, {}, events)


class TestLedger:
    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(-1, 8))))
    def test_brute_force(self, spans):
        """Whatever frames come, events rise by number, none twice, and what is missing is what was skipped."""
        ledger, admitted, offered = Ledger(), [], 0
        for first, more in spans:
            one = frame(first, first + more)
            offered += len(one.events)
            admitted += [event.seq for event in ledger.admit(one)]
        assert admitted == sorted(set(admitted))
        assert ledger.repeated == offered - len(admitted)
        assert ledger.missing == ledger.next_seq - len(admitted)
        assert ledger.missing == sum(last - first + 1 for first, last in ledger.holes)

    def test_in_order(self):
        """Frames that follow each other are admitted whole."""
        ledger = Ledger()
        frames = [frame(0, 3), frame(4, 4), frame(5, 9)]
        assert [ledger.admit(one) for one in frames] == [one.events for one in frames]
        assert (ledger.next_seq, ledger.missing, ledger.repeated) == (10, 0, 0)

    def test_nothing_but_sheds(self):
        """A frame that accounts for no number changes nothing."""
        ledger = Ledger()
        ledger.admit(frame(0, 3))
        ledger.admit(frame(4, 3))
        assert (ledger.next_seq, ledger.missing) == (4, 0)

    def test_bounded(self, monkeypatch):
        """The list of holes is bounded, their count is not."""
        monkeypatch.setattr(_ledger, "_MOST_HOLES", 2)
        ledger = Ledger()
        for seq in (1, 3, 5, 7):
            ledger.admit(frame(seq, seq))
        assert (ledger.holes, ledger.missing) == ([(0, 0), (2, 2)], 4)
