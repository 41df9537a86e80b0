"""Frames: the numbers they account for, and their validation."""

from __future__ import annotations

import attrs
import msgpack
import pytest

from trackside.events import (
    DecodeError,
    Event,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEventAdded,
    UnknownEvent,
    event,
)
from trackside.wire import FrameDecoder, RowEncoder, encode_frame

SCHEMA = [0, "acme.x", 3, ["a"]]


@event("test.frames.noted")
class Noted(Event):
    number: int = 0


def row(offset=0, *, number=0, value=1):
    return [number, offset, 9, 2, 3, value]


def ended(offset):
    return [1, offset, 9, 2, 3, {"rank": 7}]


class TestBytes:
    """A frame byte by byte, by hand."""

    frame = (
        b"\x97"  # seven parts
        b"\x02"  # the version
        b"\xa1s"  # the source
        b"\x05\x06"  # the first and the last number
        b"\x81\xa6acme.x\x02"  # what was dropped
        b"\x91\x94\x00\xa6acme.x\x03\x91\xa1a"  # a type: its number, name, version and fields
        b"\x91\x96\x00\x01\x09\x02\x03\xc3"  # a row: type, number, time, span, step, a field
    )

    def test_written(self):
        """Encoding gives these bytes."""
        unknown = UnknownEvent(name="acme.x", fields={"a": True}, name_version=3, at_ns=9, span_id=2, step=3)
        schema, data = RowEncoder().encode(unknown, 1)
        assert encode_frame("s", 5, 6, dropped={"acme.x": 2}, schemas=[schema.entry], rows=[data]) == self.frame

    def test_read(self):
        """Decoding gives back the events."""
        frame = FrameDecoder().decode(self.frame)
        assert frame.source == Source.unknown("s")
        assert (frame.first_seq, frame.last_seq, frame.dropped) == (5, 6, {"acme.x": 2})
        assert frame.events == [
            UnknownEvent(name="acme.x", fields={"a": True}, name_version=3, at_ns=9, span_id=2, step=3)
        ]
        assert [happened.seq for happened in frame.events] == [6]

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_buffers(self, kind):
        """Any kind of bytes object is accepted."""
        assert FrameDecoder().decode(kind(self.frame)).last_seq == 6

    @pytest.mark.parametrize("length", range(len(frame)))
    def test_torn(self, length):
        """A part of a frame is refused."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(self.frame[:length])

    def test_more(self):
        """So is a frame with bytes after its end."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(self.frame + b"\xc0")


class TestEncode:
    def test_empty(self):
        """A frame may account for drops alone: it ends before it begins."""
        frame = FrameDecoder().decode(encode_frame("s", 5, 4, dropped={"acme.x": 2}, schemas=[], rows=[]))
        assert (frame.first_seq, frame.last_seq, frame.dropped, frame.events) == (5, 4, {"acme.x": 2}, [])

    @pytest.mark.parametrize(
        "parts",
        [
            {"rows": [b"\xc0" * (1 << 20)]},
            {"rows": [b"\xc0"] * 16_385},
            {"schemas": [b"\xc0"] * 1025},
            {"dropped": {str(key): 1 for key in range(1025)}},
        ],
        ids=lambda parts: next(iter(parts)),
    )
    def test_too_large(self, parts):
        """A frame that no reader would accept is not made."""
        with pytest.raises(ValueError, match="too large"):
            encode_frame("s", 0, 0, **{"dropped": {}, "schemas": [], "rows": [], **parts})

    def test_largest(self):
        """One of 16,384 rows is made, and can be read."""
        encoder = RowEncoder()
        encoded = [encoder.encode(Noted(number=number), number) for number in range(16_384)]
        schema = encoded[0][0].entry
        frame = encode_frame("s", 0, 16_383, dropped={}, schemas=[schema], rows=[data for _, data in encoded])
        assert [noted.number for noted in FrameDecoder().decode(frame).events] == list(range(16_384))


class TestNumbers:
    def test_offsets(self, forged):
        """Rows are numbered from the first; rows that a filter left out leave a hole and no gap."""
        frame = FrameDecoder().decode(forged(first=10, last=15, schemas=[SCHEMA], rows=[row(1), row(4)]))
        assert [happened.seq for happened in frame.events] == [11, 14]

    def test_last(self, forged):
        """The last number is that of the last row, or beyond."""
        assert FrameDecoder().decode(forged(last=2, schemas=[SCHEMA], rows=[row(2)])).events[0].seq == 2

    @pytest.mark.parametrize("offsets", [[1, 0], [1, 1], [-1], [3], [0, 3], [2**64 - 1]], ids=str)
    def test_out_of_order(self, forged, offsets):
        """Rows stand in order, each once, within what the frame accounts for."""
        with pytest.raises(DecodeError, match="out of order"):
            FrameDecoder().decode(forged(last=2, schemas=[SCHEMA], rows=[row(offset) for offset in offsets]))

    @pytest.mark.parametrize("index", [1, 20, 39])
    def test_one_of_many(self, forged, index):
        """The same holds where one row of many has the number of the one before."""
        rows = [row(offset) for offset in range(40)]
        FrameDecoder().decode(forged(last=39, schemas=[SCHEMA], rows=rows))
        rows[index] = row(index - 1)
        with pytest.raises(DecodeError, match="out of order"):
            FrameDecoder().decode(forged(last=39, schemas=[SCHEMA], rows=rows))

    def test_row_of_nothing(self, forged):
        """A frame that accounts for nothing has no rows."""
        with pytest.raises(DecodeError, match="out of order"):
            FrameDecoder().decode(forged(first=5, last=4, schemas=[SCHEMA], rows=[row(0)]))

    @pytest.mark.parametrize(
        ("first", "last"),
        [(-1, 0), (2, 0), (0, -2), (0, 1 << 62), (1 << 63, 1 << 63), ("0", 0), (0, None), (0.0, 0), (True, 1), ([], 0)],
        ids=str,
    )
    def test_span(self, forged, first, last):
        """The first and the last number are whole, in order, and within 64 bits."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(first=first, last=last))


class TestSchemas:
    def test_numbers(self, forged):
        """Types may have any numbers."""
        schemas = [[70_000, "acme.x", 1, ["a"]], [-5, "acme.y", 1, ["a"]]]
        rows = [row(0, number=-5), row(1, number=70_000)]
        read = FrameDecoder().decode(forged(last=1, schemas=schemas, rows=rows)).events
        assert [happened.name for happened in read] == ["acme.y", "acme.x"]

    def test_in_turn(self, frame_of):
        """Events of several types come in the order in which they were written."""
        kinds = [Noted(), SpanEventAdded(name="x"), SourceEnded(reason="y")]
        written = [attrs.evolve(kinds[place * place % 7 % 3], at_ns=place) for place in range(100)]
        read = FrameDecoder().decode(frame_of(*written, first=5)).events
        assert read == written
        assert [happened.seq for happened in read] == list(range(5, 105))

    def test_per_frame(self, forged):
        """Other types may follow in the next frame."""
        decoder = FrameDecoder()
        decoder.decode(forged(schemas=[SCHEMA], rows=[row()]))
        read = decoder.decode(forged(schemas=[[0, "acme.y", 1, ["b"]]], rows=[row()])).events
        assert read[0].name == "acme.y"

    @pytest.mark.parametrize("number", [1, -1, "0", None, 0.5, [0], {}, b"0"], ids=repr)
    def test_unknown_number(self, forged, number):
        """A row of a type that its frame does not name is an error."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(schemas=[SCHEMA], rows=[row(number=number)]))

    @pytest.mark.parametrize("number", [False, 0.0])
    def test_equal_number(self, forged, number):
        """So is one whose number only equals a type's."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(schemas=[SCHEMA], rows=[row(number=number)]))

    @pytest.mark.parametrize("width", [0, 1, 4, 5, 7])
    def test_width(self, forged, width):
        """A row has as many values as its type has fields, and five."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(schemas=[SCHEMA], rows=[[0] * width]))

    @pytest.mark.parametrize("value", [None, 0, "x", b"\0\0\0\0\0\0", {0: 0}, {"0": 0}], ids=repr)
    def test_row(self, forged, value):
        """A row is a list, and no other sequence."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(schemas=[SCHEMA], rows=[value]))

    @pytest.mark.parametrize(
        "schema",
        [
            None,
            [],
            [0, "acme.x", 1],
            [0, "acme.x", 1, ["a"], 5],
            ["0", "acme.x", 1, ["a"]],
            [True, "acme.x", 1, ["a"]],
            [0, 5, 1, ["a"]],
            [0, "acme.x", "1", ["a"]],
            [0, "acme.x", 1, "ab"],
            [0, "acme.x", 1, {"a": 1}],
            [0, "acme.x", 1, [b"a"]],
            [0, "acme.x", 1, [["a"]]],
            [0, "acme.x", 1, ["a", "a"]],
            [0, "acme.x", 1, ["step"]],
            [0, "x" * 129, 1, ["a"]],
            [0, "acme.x", 1, ["x" * 20_000]],
            {"0": 1, "1": 2, "2": 3, "3": 4},
        ],
        ids=lambda schema: repr(schema)[:40],
    )
    def test_malformed(self, forged, schema):
        """A type is a number, a name, a version and the names of its fields, each once."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(schemas=[schema]))

    def test_twice(self, forged):
        """Two types of one frame have two numbers."""
        with pytest.raises(DecodeError, match="used twice"):
            FrameDecoder().decode(forged(schemas=[SCHEMA, [0, "acme.y", 1, []]]))

    def test_unused(self, forged):
        """A type that no row has does no harm."""
        assert FrameDecoder().decode(forged(schemas=[SCHEMA])).events == []


class TestHeader:
    @pytest.mark.parametrize("version", [0, 1, 255, 2**64 - 1])
    def test_other_version(self, forged, version):
        """A frame of another version is refused, with its number."""
        with pytest.raises(DecodeError, match=f"frame version {version}; this release reads 2"):
            FrameDecoder().decode(forged(version=version))

    @pytest.mark.parametrize("version", [None, "1", 1.0, True, [1], {}], ids=repr)
    def test_no_version(self, forged, version):
        """So is one without a version."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(version=version))

    @pytest.mark.parametrize(
        "value", [None, 5, "x", [], {}, [1, "s"], [1, "s", 0, 0, {}, [], [], 8], {"1": 2}], ids=repr
    )
    def test_no_frame(self, value):
        """A frame is a list of seven."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(msgpack.packb(value))

    @pytest.mark.parametrize("source_id", [None, 5, b"s", [], "x" * 129])
    def test_source_id(self, forged, source_id):
        """A source's id is a text, and not a long one."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(source_id=source_id))

    @pytest.mark.parametrize(
        "dropped", [[], 5, {"a": -1}, {"a": "1"}, {"a": 1.0}, {"a": True}, {b"a": 1}, {"a": 2**63}], ids=repr
    )
    def test_dropped(self, forged, dropped):
        """Drops are counts by name."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(dropped=dropped))

    @pytest.mark.parametrize("part", ["schemas", "rows"])
    @pytest.mark.parametrize("value", [None, 5, "ab", {"a": 1}], ids=repr)
    def test_lists(self, forged, part, value):
        """Types and rows are lists."""
        with pytest.raises(DecodeError):
            FrameDecoder().decode(forged(**{part: value}))


class TestSource:
    def test_unknown(self, frame_of):
        """Of a source that was not introduced only the id is known."""
        read = FrameDecoder().decode(frame_of(Noted(), source_id="abc"))
        assert read.source == read.events[0].source == Source.unknown("abc")

    def test_introduced(self, frame_of):
        """Events of an introduced source carry it, whole."""
        decoder, source = FrameDecoder(), Source(id="abc", rank=3)
        decoder.introduce(source)
        assert decoder.decode(frame_of(Noted(), source_id="abc")).events[0].source is source

    def test_introduces_itself(self, frame_of):
        """A stream introduces its source itself: from that event on, and in later frames."""
        decoder, source = FrameDecoder(), Source(id="abc", rank=3, run_id="r")
        first = decoder.decode(frame_of(SourceStarted(identity=source.to_wire()), Noted(), source_id="abc"))
        second = decoder.decode(frame_of(Noted(), source_id="abc", first=2))
        assert [happened.source for happened in (*first.events, *second.events)] == [source] * 3

    def test_introduced_again(self, frame_of):
        """A source that is introduced anew as it was known stays one object, which takes no time to compare."""
        decoder, source = FrameDecoder(), Source(id="abc", rank=3)
        decoder.introduce(source)
        decoder.introduce(attrs.evolve(source))
        started = SourceStarted(identity=source.to_wire())
        read = [*decoder.decode(frame_of(started, Noted(), source_id="abc")).events]
        read += decoder.decode(frame_of(Noted(), source_id="abc", first=2)).events
        assert [happened.source is source for happened in read] == [True] * 3

    def test_midway(self, frame_of):
        """Rows before the introduction have the source as it was known."""
        started = SourceStarted(identity=Source(id="abc", rank=3).to_wire())
        frame = FrameDecoder().decode(frame_of(*[Noted()] * 30, started, *[Noted()] * 30, source_id="abc"))
        assert [happened.source.rank for happened in frame.events] == [0] * 30 + [3] * 31

    def test_under_its_own_name(self, frame_of):
        """It cannot introduce another source: the frame names its own."""
        decoder = FrameDecoder()
        liar = SourceStarted(identity=Source(id="other", rank=3).to_wire())
        assert decoder.decode(frame_of(liar, source_id="abc")).source.id == "abc"
        assert decoder.decode(frame_of(Noted(), source_id="other")).source.rank == 0

    def test_once(self, frame_of):
        """Within a frame the first introduction counts."""
        frame = FrameDecoder().decode(
            frame_of(*[SourceStarted(identity=Source(rank=rank).to_wire()) for rank in (3, 4)], source_id="abc")
        )
        assert [happened.source.rank for happened in frame.events] == [3, 3]

    def test_several(self, frame_of):
        """A decoder keeps sources apart."""
        decoder = FrameDecoder()
        for rank in range(3):
            decoder.introduce(Source(id=str(rank), rank=rank))
        ranks = [decoder.decode(frame_of(Noted(), source_id=str(rank))).source.rank for rank in (2, 0, 1)]
        assert ranks == [2, 0, 1]

    def test_of_a_bad_frame(self, forged, frame_of):
        """Of a frame with a mistake anywhere no part is used, not even the introduction."""
        decoder = FrameDecoder()
        schemas = [SCHEMA, [1, "trackside.source.started", 1, ["identity"]]]
        with pytest.raises(DecodeError):
            decoder.decode(forged(source_id="abc", last=1, schemas=schemas, rows=[ended(0), row(9)]))
        assert decoder.decode(frame_of(Noted(), source_id="abc")).source == Source.unknown("abc")


class TestMemory:
    def test_sources(self, monkeypatch, frame_of):
        """A decoder remembers as many sources as it has room for, the latest."""
        from trackside.wire import _decoder

        monkeypatch.setattr(_decoder, "_SOURCES_BYTES", 100_000)
        decoder = FrameDecoder()
        for rank in range(1000):
            decoder.introduce(Source(id=str(rank), rank=rank))
        assert decoder._sources.weight <= 100_000
        assert decoder.decode(frame_of(Noted(), source_id="999")).source.rank == 999
        assert decoder.decode(frame_of(Noted(), source_id="0")).source == Source.unknown("0")

    def test_large_job(self):
        """It has room for 16,384 ranks, and four workers each."""
        from trackside.wire import _decoder
        from trackside.wire._values import weigh

        source = Source.detect({}, run_id="r" * 40, session_tag="s" * 40, host="h" * 40, metadata={"a": "b" * 100})
        assert 5 * 16_384 * weigh(attrs.astuple(source)) < _decoder._SOURCES_BYTES

    def test_types(self, monkeypatch, forged):
        """The number of remembered types is bounded too."""
        from trackside.wire import _decoder

        monkeypatch.setattr(_decoder, "_SCHEMAS_BYTES", 1 << 20)
        decoder = FrameDecoder()
        for start in range(0, 5000, 1000):
            schemas = [[number, f"acme.x{start + number}", 1, []] for number in range(1000)]
            decoder.decode(forged(schemas=schemas))
        assert len(decoder._decoders) < 20

    def test_forgotten_types(self, monkeypatch, forged):
        """A frame is read even if it alone has more types than are remembered."""
        from trackside.wire import _decoder

        monkeypatch.setattr(_decoder, "_SCHEMAS_BYTES", 1)
        schemas = [[number, f"acme.x{number}", 1, ["a"]] for number in range(100)]
        rows = [row(number, number=number, value=number) for number in range(100)]
        read = FrameDecoder().decode(forged(last=99, schemas=schemas, rows=rows)).events
        assert [happened.fields["a"] for happened in read] == list(range(100))


class TestInheritance:
    def test_class(self, round_trip):
        """An event that is read is an instance of its class's bases."""

        @event("test.frames.base")
        class Base(Event):
            a: int = 0

        @event("test.frames.derived")
        class Derived(Base):
            b: int = 0

        assert isinstance(round_trip(Derived(a=1, b=2)), Base)

    def test_ours(self, round_trip):
        """A user's class may derive from one of trackside's."""

        @event("test.frames.oom")
        class RanOutOfMemory(SpanEventAdded):
            free_bytes: int

        read = round_trip(RanOutOfMemory(name="oom", free_bytes=5))
        assert isinstance(read, SpanEventAdded)
        assert (read.name, read.attributes, read.free_bytes) == ("oom", {}, 5)
