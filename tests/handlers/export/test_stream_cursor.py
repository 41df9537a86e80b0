"""The position in a stream of numbered frames."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise

import pytest

from framing import frame_of
from trackside.events import DecodeError, IterationEnded, Source, SourceStarted
from trackside.handlers.export import SourcedDecoder, StreamCursor, encoded_source


@pytest.fixture
def recorded():
    """Return the frames of four times five steps, and their source as JSON."""
    source = Source(rank=3, run_id="run")
    events = [SourceStarted(identity=source.to_wire(), span_id=0, step=-1)]
    events += [IterationEnded(step=step, duration_ns=1) for step in range(20)]
    ends = [0, 6, 11, 16, 21]
    return [frame_of(source.id, events[a:b], first_seq=a) for a, b in pairwise(ends)], encoded_source(source)


def steps(events):
    return [event.step for event in events if isinstance(event, IterationEnded)]


def read(place, recorded, numbers=(1, 2, 3, 4)):
    frames, source_json = recorded
    for number in numbers:
        yield from place.read(number, frames[number - 1], source_json)


class TestStreamCursor:
    def test_whole(self, recorded):
        """The whole stream is every event once."""
        place = StreamCursor()
        assert steps(read(place, recorded)) == list(range(20))
        assert (place.missing, place.repeated, place.unreadable) == (0, 0, 0)

    @pytest.mark.parametrize("count", range(1, 22))
    def test_from_any_event(self, recorded, count):
        """After any event another reader continues; the cursor survives JSON."""
        first = StreamCursor()
        stream = read(first, recorded)
        before = [next(stream) for _ in range(count)]
        cursor = json.loads(json.dumps(first.cursor))
        second = StreamCursor(cursor)
        after = list(read(second, recorded, range(cursor["sequence"], 5)))
        assert steps(before) + steps(after) == list(range(20))
        assert second.repeated == second.missing == 0

    def test_twice(self, recorded):
        """A frame that comes again under another number is skipped."""
        place = StreamCursor()
        list(read(place, recorded))
        frames, source_json = recorded
        assert list(place.read(5, frames[1], source_json)) == []
        assert place.repeated == 5

    def test_stream_begins_again(self, recorded):
        """After the numbers of messages began again, events that were read before are skipped and new ones yielded."""
        place = StreamCursor()
        list(read(place, recorded, (1, 2, 3)))
        assert steps(read(place, recorded, (1, 2))) == []
        frames, source_json = recorded
        assert steps(place.read(3, frames[3], source_json)) == list(range(15, 20))
        assert (place.missing, place.repeated) == (0, 11)  # the first frame also has the start of the source

    def test_gone(self, recorded):
        """A frame that is missing leaves a counted gap, and the source is known all the same."""
        place = StreamCursor()
        events = list(read(place, recorded, (2, 4)))
        assert steps(events) == [*range(5, 10), *range(15, 20)]
        assert {event.source.rank for event in events} == {3}
        assert place.missing == 6 + 5  # the first frame also has the start of the source

    def test_no_frame(self, recorded):
        """A message that is not a frame is counted and skipped."""
        place = StreamCursor()
        assert list(place.read(1, b"no frame", "{nor this")) == []
        assert (place.unreadable, place.sequence) == (1, 2)

    @pytest.mark.parametrize(
        "cursor",
        [
            {},
            {"sequence": "x", "events": 0, "sources": {}},
            {"sequence": 1, "events": 0},
            {"sequence": 2**63, "events": 0, "sources": {}},
            {"sequence": 1, "events": 0, "sources": {"a": -1}},
        ],
    )
    def test_no_cursor(self, cursor):
        """A value that is not a cursor is refused."""
        with pytest.raises(DecodeError):
            StreamCursor(cursor)

    def test_sources_beyond_the_bound(self, monkeypatch):
        """Of more sources than a cursor knows, the one that was read longest ago is forgotten; its losses count on."""
        monkeypatch.setattr("trackside.handlers.export._stream_cursor.MAX_SOURCES", 2)
        place = StreamCursor()
        for number, name in enumerate(["a", "b", "a", "c"], start=1):
            source = Source(id=name)
            first = 3 if name == "b" else number
            list(
                place.read(
                    number, frame_of(name, [IterationEnded(duration_ns=1)], first_seq=first), encoded_source(source)
                )
            )
        assert place.cursor["sources"] == {"a": 4, "c": 5}
        assert place.missing == 1 + 1 + 3 + 4

    def test_large_identity(self):
        """The description of a source in each message is bounded."""
        source = Source(rank=3, metadata={"x": "y" * 50_000})
        assert len(encoded_source(source)) < 2_000
        assert json.loads(encoded_source(source))["rank"] == 3


class TestDescriptions:
    @staticmethod
    def introduce(decoder, source):
        """Let *decoder* read a message of *source* that is no frame."""
        with pytest.raises(DecodeError):
            decoder.decode_with(encoded_source(source), b"")

    def test_memory(self):
        """The descriptions of 12,000 sources, 8 kB each, take less than 120 MiB, not 170 MiB and more."""
        decoder = SourcedDecoder()
        tracemalloc.start()
        try:
            for number in range(12_000):
                self.introduce(decoder, Source(id=f"{number:016}", metadata={"key": "v" * 7_000}))
            assert tracemalloc.get_traced_memory()[0] < 120 << 20
        finally:
            tracemalloc.stop()
