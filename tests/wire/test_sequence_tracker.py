"""Each event once, in order, and the missing numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from processes import numbered
from trackside.events import IterationEnded, Source
from trackside.wire import Frame, SequenceTracker, _sequence

SOURCE = Source(id="a" * 16)


def frame(first, last):
    """Return a frame of events *first* to *last*."""
    events = numbered((IterationEnded(duration_ns=seq) for seq in range(first, last + 1)), SOURCE, first)
    return Frame(SOURCE, first, last, {}, events)


class TestSequenceTracker:
    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(-1, 8))))
    def test_brute_force(self, spans):
        """For any frames, events rise by number, none twice, and missing events are those that were skipped."""
        tracker, admitted, offered = SequenceTracker(), [], 0
        for first, more in spans:
            one = frame(first, first + more)
            offered += len(one.events)
            admitted += [event.seq for event in tracker.admit(one)]
        assert admitted == sorted(set(admitted))
        assert tracker.repeated == offered - len(admitted)
        assert tracker.missing == tracker.next_seq - len(admitted)
        assert tracker.missing == sum(last - first + 1 for first, last in tracker.holes)

    def test_in_order(self):
        """Frames that follow each other are admitted whole."""
        tracker = SequenceTracker()
        frames = [frame(0, 3), frame(4, 4), frame(5, 9)]
        assert [tracker.admit(one) for one in frames] == [one.events for one in frames]
        assert (tracker.next_seq, tracker.missing, tracker.repeated) == (10, 0, 0)

    def test_nothing_but_drops(self):
        """A frame that accounts for no number changes nothing."""
        tracker = SequenceTracker()
        tracker.admit(frame(0, 3))
        tracker.admit(frame(4, 3))
        assert (tracker.next_seq, tracker.missing) == (4, 0)

    def test_bounded(self, monkeypatch):
        """The list of holes is bounded, their count is not."""
        monkeypatch.setattr(_sequence, "MAX_HOLES", 2)
        tracker = SequenceTracker()
        for seq in (1, 3, 5, 7):
            tracker.admit(frame(seq, seq))
        assert (tracker.holes, tracker.missing) == ([(0, 0), (2, 2)], 4)
