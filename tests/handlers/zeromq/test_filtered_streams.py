from __future__ import annotations

import pytest

from trackside.events import DecodeError, Heartbeat, IterationEnded, Source
from trackside.handlers.zeromq._collector import FilteredStreams
from trackside.handlers.zeromq._protocol import Filter, SourcePosition, decode_snapshot
from trackside.handlers.zeromq._server import LostRange, Ring, RingBudget
from trackside.wire import FrameDecoder, RowEncoder, encode_frame

SOURCE = Source.detect({}, run_id="run", rank=5)


class Model:
    """A model whose state is a number."""

    def dump(self):
        """Return the number."""
        return {"number": 42}


@pytest.fixture
def frame():
    """Give a frame, decoded and as bytes: a heartbeat, nine iterations, and a hole left by a filter before."""
    encoder, schemas, rows = RowEncoder(), {}, []
    events = [Heartbeat(sequence=0), *(IterationEnded(duration_ns=1, step=step) for step in range(9))]
    for index, event in enumerate(events):
        schema, row = encoder.encode(event, index + 2)
        schemas[schema.number] = schema.entry
        rows.append(row)
    data = encode_frame(SOURCE.id, 100, 111, dropped={}, schemas=schemas.values(), rows=rows)
    decoder = FrameDecoder()
    decoder.introduce(SOURCE)
    return decoder.decode(data), data


def streams():
    """Return the collector's streams with one model and one source."""
    return FilteredStreams([Model()], lambda: [SourcePosition(SOURCE, 112, 3)], dict)


def contents(ring):
    """Return the content of *ring*."""
    return [entry.content for entry in ring.read(0, 100)]


class TestFilteredStreams:
    def test_whole_frames_as_they_came(self, frame):
        """A viewer that wants everything gets the bytes that came."""
        one, ring = streams(), Ring(RingBudget(), "ring")
        one.open_stream(Filter(), ring)

        one.add(frame[0], frame[1], frame[0].events)

        assert contents(ring) == [frame[1]]

    def test_filtered(self, frame):
        """
        A viewer that wants one type gets a frame with these events alone, under their numbers, that accounts for all
        the others.
        """
        one, ring = streams(), Ring(RingBudget(), "ring")
        one.open_stream(Filter((Heartbeat.wire_name,)), ring)

        one.add(frame[0], frame[1], frame[0].events)

        (data,) = contents(ring)
        sent = FrameDecoder().decode(data)
        assert (sent.first_seq, sent.last_seq) == (100, 111)
        assert [(type(event), event.seq) for event in sent.events] == [(Heartbeat, 102)]

    def test_rule(self, frame):
        """A viewer's rule is applied to the events of its types alone."""
        one, ring = streams(), Ring(RingBudget(), "ring")
        one.open_stream(Filter.from_wire(["trackside.iteration.ended"], 1, ["every", 4]), ring)

        one.add(frame[0], frame[1], frame[0].events)

        assert [event.step for event in FrameDecoder().decode(contents(ring)[0]).events] == [0, 4, 8]

    def test_rule_that_cannot_be_read(self):
        """A value that is no rule is refused, not ignored."""
        with pytest.raises(DecodeError, match="not a rule"):
            streams().open_stream(Filter.from_wire(["*"], 1, ["rarely", 4]), Ring(RingBudget(), "ring"))

    def test_losses_go_to_everybody(self):
        """Losses are reported to every viewer, whatever its filter."""
        one, rings = streams(), [Ring(RingBudget(), "ring"), Ring(RingBudget(), "ring")]
        one.open_stream(Filter(), rings[0])
        one.open_stream(Filter((Heartbeat.wire_name,)), rings[1])
        lost = LostRange(SOURCE.id, 5, 9, "gone")

        one.lose(lost)

        assert [contents(ring) for ring in rings] == [[lost], [lost]]

    def test_snapshot(self):
        """A late viewer gets every source, how far it has come, and the states that it asked for."""
        ready = []

        streams().take_snapshot(["Model", "Other"], Ring(RingBudget(), "ring"), ready.append)

        snapshot = decode_snapshot(ready[0].data)
        assert [(place.source, place.next_seq, place.dropped) for place in snapshot.places] == [(SOURCE, 112, 3)]
        assert snapshot.models == {"Model": {"number": 42}}

    def test_closed_stream_gets_no_more(self, frame):
        """A stream that was ended is not filled any more."""
        one, ring = streams(), Ring(RingBudget(), "ring")
        one.open_stream(Filter(), ring)()

        one.add(frame[0], frame[1], frame[0].events)

        assert contents(ring) == []
