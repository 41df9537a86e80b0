"""Rows to events, written by this release, an older one, a newer one or another program."""

from __future__ import annotations

import datetime
import enum
import pathlib
from typing import TYPE_CHECKING, Any

import attrs
import msgpack
import pytest

from trackside.events import DecodeError, Event, Source, UnknownEvent, _event, event
from trackside.events._ambient import ambient
from trackside.wire import FrameDecoder, RowEncoder, fields_of
from trackside.wire._decoder import RowDecoder

if TYPE_CHECKING:
    from decimal import Decimal


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.define
class Point:
    x: int
    y: float = 0.0


@event("test.decoder.saved", version=2)
class Saved(Event):
    path: str
    size_bytes: int
    took_s: float = 0.5
    tags: list[str] = attrs.field(factory=list)


@event("test.decoder.typed")
class Typed(Event):
    colour: Colour = Colour.RED
    colours: tuple[Colour, ...] = ()
    where: pathlib.PurePosixPath = pathlib.PurePosixPath()
    when: datetime.datetime = datetime.datetime(2026, 11, 20)
    point: Point | None = None
    by_rank: dict[int, float] = attrs.field(factory=dict)
    ranks: set[int] = attrs.field(factory=set)
    pair: tuple[int, str] = (0, "")


@event("test.decoder.painted")
class Painted(Event):
    colours: tuple[Colour, ...]
    ranks: set[int]


HALF = (
    {"converter": attrs.Converter(lambda _, self: self.took_ns // 2, takes_self=True)}
    if hasattr(attrs, "Converter")
    else {}
)


@event("test.decoder.checked")
class Checked(Event):
    kind: str = attrs.field(validator=attrs.validators.in_(["a", "b"]))
    upper: str = attrs.field(default="", converter=str.upper)


@event("test.decoder.computed")
class Computed(Event):
    width: int
    _private: int = 3
    double: int = attrs.field(init=False, default=0)

    def __attrs_post_init__(self):
        self.double = 2 * self.width


@event("test.decoder.converted")
class Converted(Event):
    """In nanoseconds, given in seconds."""

    took_ns: int = attrs.field(converter=lambda seconds: int(seconds * 1e9))
    parts: list[int] = attrs.field(default="3,4", converter=lambda text: [int(part) for part in text.split(",")])
    total: int = attrs.field(init=False, default=0)
    own: list[int] = attrs.field(default=attrs.Factory(lambda self: [self.took_ns], takes_self=True))
    half: int = attrs.field(default=0, **HALF)

    def __attrs_post_init__(self):
        self.total = self.took_ns


@attrs.frozen
class Lap:
    took_ns: int = attrs.field(converter=lambda seconds: int(seconds * 1e9))


@event("test.decoder.untold")
class Untold(Event):
    """Of a type that the wire does not tell."""

    shape: Any = attrs.field(converter=tuple, validator=attrs.validators.instance_of(tuple))
    laps: list[Lap] = attrs.field(factory=list)


class Remembering:
    """Its objects have attributes that are no fields."""


@event("test.decoder.cached")
class Cached(Remembering, Event):
    tags: list[str]
    total: int = 0

    def __attrs_post_init__(self):
        self.tags.append("seen")
        self.first = self.tags[0]


@event("test.decoder.inverse")
class Inverse(Event):
    number: int
    inverse: float = attrs.field(default=attrs.Factory(lambda self: 1 / self.number, takes_self=True))


@event("test.decoder.hidden")
class Hidden(Event):
    when: Decimal | None = None
    count: int = 0


@event("test.decoder.stepped")
class Stepped(Event):
    step: int
    loss: float | None = None


@event("test.decoder.free")
class Free(Event):
    extra: Any = None


@event("test.decoder.stamped")
class Stamped(Event):
    _seq: int = 0


class Mixin:
    """A class of the user's that is no attrs class, and has a __dict__."""

    note = "mixed"


@event("test.decoder.mixed")
class Mixed(Mixin, Event):
    value: int = 0


def decode(wire_name, version, fields, *, envelope=(9, 2, 3), twice=True):
    """Return the decoded row of these *fields*; the same the second time, when it is known."""
    decoder = RowDecoder(wire_name, version, list(fields))
    row = [0, 0, *envelope, *fields.values()]
    first = decoder.decode(list(row))
    assert decoder.decode(list(row)) == first
    return first


class TestKnown:
    def test_event(self):
        """A row of a known type becomes an event of its class."""
        fields = {"path": "a", "size_bytes": 7, "took_s": 1.5, "tags": ["x"]}
        assert decode("test.decoder.saved", 2, fields) == Saved(
            at_ns=9, span_id=2, step=3, path="a", size_bytes=7, took_s=1.5, tags=["x"]
        )

    def test_order(self):
        """The writer may have the fields in any order."""
        saved = decode("test.decoder.saved", 2, {"tags": [], "took_s": 1.5, "size_bytes": 7, "path": "a"})
        assert (saved.path, saved.size_bytes, saved.took_s, saved.tags) == ("a", 7, 1.5, [])

    def test_whole_number(self):
        """A whole number is accepted where any number is declared."""
        saved = decode("test.decoder.saved", 2, {"path": "a", "size_bytes": 7, "took_s": 1, "tags": []})
        assert saved.took_s == 1.0
        assert type(saved.took_s) is float

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("colour", "blue", Colour.BLUE),
            ("colours", ["blue", "red"], (Colour.BLUE, Colour.RED)),
            ("where", "a/b", pathlib.PurePosixPath("a/b")),
            ("when", "2027-01-01T00:00:00", datetime.datetime(2027, 1, 1)),
            ("point", {"x": 1}, Point(1)),
            ("by_rank", {"3": 1}, {3: 1.0}),
            ("ranks", [1, 2], {1, 2}),
            ("pair", [1, "a"], (1, "a")),
        ],
    )
    def test_types(self, name, value, expected):
        """A value has the type that the class declares, the first time and the hundredth."""
        typed = decode("test.decoder.typed", 1, {name: value})
        assert getattr(typed, name) == expected
        assert type(getattr(typed, name)) is type(expected)

    def test_each_value(self):
        """The conversion of one value does not decide over the next one of the same type."""
        decoder = RowDecoder("test.decoder.typed", 1, ["colour"])
        read = [decoder.decode([0, 0, 0, 0, 0, text]) for text in ("red", "blue", "green", "red")]
        assert [type(typed) for typed in read] == [Typed, Typed, UnknownEvent, Typed]
        assert [typed.colour for typed in read if type(typed) is Typed] == [Colour.RED, Colour.BLUE, Colour.RED]

    def test_validators(self):
        """A class's own validators are called for each value."""
        decoder = RowDecoder("test.decoder.checked", 1, ["kind", "upper"])
        read = [decoder.decode([0, 0, 0, 0, 0, kind, "x"]) for kind in "abca"]
        assert [type(checked) for checked in read] == [Checked, Checked, UnknownEvent, Checked]

    def test_converters(self, frame_of):
        """A value that a converter made is read as it was logged: it is not converted a second time."""
        logged = [Converted(took_ns=seconds, parts="1,2") for seconds in (0.5, 1, 2)]
        assert [(one.took_ns, one.parts) for one in logged] == [
            (5 * 10**8, [1, 2]),
            (10**9, [1, 2]),
            (2 * 10**9, [1, 2]),
        ]
        assert FrameDecoder().decode(frame_of(*logged)).events == logged

    def test_converters_that_restore_a_type(self, frame_of):
        """A converter's result is read if it is written the same: a tuple, which the type `Any` does not tell."""
        logged = Untold(shape=[2, 3])
        (read,) = FrameDecoder().decode(frame_of(logged)).events
        assert (read, read.shape) == (logged, (2, 3))

    def test_converters_within_a_value(self, frame_of):
        """Objects of attrs classes in a field are read as they were logged, too."""
        logged = Untold(shape=(), laps=[Lap(took_ns=0.5)])
        (read,) = FrameDecoder().decode(frame_of(logged)).events
        assert (read, read.laps[0].took_ns) == (logged, 5 * 10**8)

    def test_attributes_that_are_no_fields(self, frame_of):
        """The attributes that ``__attrs_post_init__`` sets are set; what it did to the fields is not done again."""
        logged = Cached(tags=["a"])
        (read,) = FrameDecoder().decode(frame_of(logged)).events
        assert (read.tags, read.first) == (["a", "seen"], "a")

    def test_initializer_for_a_field_that_a_row_lacks(self):
        """A value from the row stays as it was logged, though ``__attrs_post_init__`` changes it in place."""
        assert decode("test.decoder.cached", 1, {"tags": ["a", "seen"]}).tags == ["a", "seen"]

    def test_factory_that_fails(self):
        """A default that cannot be made for one row makes that row alone an unknown event."""
        decoder = RowDecoder("test.decoder.inverse", 1, ["number"])
        read = [decoder.decode([0, 0, 0, 0, 0, number]) for number in (1, 0, 2)]
        assert [type(one) for one in read] == [Inverse, UnknownEvent, Inverse]

    def test_converters_of_fields_that_a_row_lacks(self):
        """Fields that an older program did not have are as the class sets them: converted defaults and factories."""
        read = decode("test.decoder.converted", 1, {"took_ns": 7})
        assert (read.took_ns, read.parts, read.total, read.own) == (7, [3, 4], 7, [7])
        assert read.half == (3 if hasattr(attrs, "Converter") else 0)

    def test_no_constructor(self):
        """Fields that the constructor does not take by their name are set all the same."""
        computed = decode("test.decoder.computed", 1, {"width": 2, "_private": 5, "double": 7})
        assert (computed.width, computed._private, computed.double) == (2, 5, 7)

    def test_hidden_type(self):
        """A field whose type is known to type checkers alone is read as it was written."""
        hidden = decode("test.decoder.hidden", 1, {"when": "today", "count": 3})
        assert (hidden.when, hidden.count) == ("today", 3)

    def test_own_step(self):
        """A class's own step field is the envelope's."""
        assert decode("test.decoder.stepped", 1, {"loss": 0.5}).step == 3

    def test_mixed_in(self):
        """A class may have other bases."""
        mixed = decode("test.decoder.mixed", 1, {"value": 3})
        assert (mixed.value, mixed.note) == (3, "mixed")

    def test_defaults_of_its_own(self):
        """Each event has its own copy of a default that can change."""
        decoder = RowDecoder("test.decoder.saved", 2, ["path", "size_bytes"])
        one, other = (decoder.decode([0, 0, 0, 0, 0, "a", 1]) for _ in range(2))
        one.tags.append("x")
        assert other.tags == []

    def test_smallest_time(self):
        """A time is read as it was written, also the one that constructors take for none."""
        assert decode("test.decoder.stepped", 1, {"loss": None}, envelope=(-(2**63), 0, -(2**63))).at_ns == -(2**63)


class TestGrowth:
    def test_older_writer(self):
        """A field that the writer did not have yet gets its default."""
        saved = decode("test.decoder.saved", 2, {"path": "a", "size_bytes": 7, "tags": ["x"]})
        assert (saved.took_s, saved.tags) == (0.5, ["x"])

    def test_older_writer_factory(self):
        """The same holds for a default that is made anew each time."""
        saved = decode("test.decoder.saved", 2, {"path": "a", "size_bytes": 7})
        assert (type(saved), saved.took_s, saved.tags) == (Saved, 0.5, [])

    def test_older_writer_of_a_span(self):
        """A span that names no parent has none, whatever is open in the reader, in the first row as in later ones."""
        fields = {"name": "a", "attributes": {}}
        token = ambient.set((7, 5))
        try:
            started = decode("trackside.span.started", 1, fields)
        finally:
            ambient.reset(token)
        assert started.parent_span_id == 0

    def test_missing(self):
        """Without a field that has no default the event is unknown, with all that was written."""
        fields = {"path": "a", "took_s": 1.0}
        assert decode("test.decoder.saved", 1, fields) == UnknownEvent(
            at_ns=9, span_id=2, step=3, name="test.decoder.saved", fields=fields, name_version=1
        )

    def test_newer_writer(self):
        """A field that this release does not have is ignored, with any value."""
        fields = {"path": "a", "extra": {"x": [1]}, "size_bytes": 7, "took_s": 1.0, "tags": [], "more": None}
        saved = decode("test.decoder.saved", 2, fields)
        assert (type(saved), fields_of(saved)) == (Saved, {"path": "a", "size_bytes": 7, "took_s": 1.0, "tags": []})

    def test_both(self):
        """A writer may be newer in one type and older in another."""
        saved = decode("test.decoder.saved", 2, {"extra": 1, "size_bytes": 7, "path": "a"})
        assert fields_of(saved) == {"path": "a", "size_bytes": 7, "took_s": 0.5, "tags": []}

    def test_unknown_name(self):
        """An event of a name that was not declared is kept as it is."""
        assert decode("acme.never.declared", 4, {"a": [1, {"b": None}]}) == UnknownEvent(
            at_ns=9, span_id=2, step=3, name="acme.never.declared", fields={"a": [1, {"b": None}]}, name_version=4
        )

    def test_no_fields(self):
        """The same holds for one without fields."""
        assert fields_of(decode("acme.never.declared", 1, {})) == {}

    @pytest.mark.parametrize(
        "wrong",
        [{"path": 1}, {"path": None}, {"size_bytes": "7"}, {"size_bytes": 7.0}, {"size_bytes": True}, {"tags": "x"},
         {"tags": [1]}, {"tags": {}}, {"took_s": "1"}],
        ids=str,
    )  # fmt: skip
    def test_wrong_type(self, wrong):
        """A value of another type makes the event unknown, and is kept with the others."""
        fields = {"path": "a", "size_bytes": 7, "took_s": 1.0, "tags": [], **wrong}
        unknown = decode("test.decoder.saved", 2, fields)
        assert (type(unknown), unknown.name, unknown.fields) == (UnknownEvent, "test.decoder.saved", fields)

    def test_older_version(self):
        """A row of an older version is read if it fits."""
        assert type(decode("test.decoder.saved", 1, {"path": "a", "size_bytes": 7})) is Saved

    def test_newer_version(self):
        """One of a newer version may mean something else by the same names: it is kept as it is."""
        assert type(decode("test.decoder.saved", 3, {"path": "a", "size_bytes": 7})) is UnknownEvent

    @pytest.mark.parametrize(
        "unknown",
        [
            UnknownEvent(name="acme.never.declared", fields={"a": {"b": [1]}}, name_version=3, at_ns=1),
            UnknownEvent(name="test.decoder.saved", fields={"path": 1, "x": None}, at_ns=1),
            UnknownEvent(name="trackside.event.unknown", fields={"name": "x"}, at_ns=1),
        ],
        ids=["unknown", "wrong type", "impostor"],
    )
    def test_handed_on(self, unknown, round_trip, frame_of):
        """An unknown event is written again as it was read: name, version and fields."""
        assert round_trip(unknown) == unknown
        assert frame_of(round_trip(unknown)) == frame_of(unknown)

    def test_two_hops(self, forgetful, frame_of):
        """A release that does not know a type passes it on to one that does."""
        frame = frame_of(Saved(path="a", size_bytes=7, took_s=1.5, tags=["x"], at_ns=1, span_id=0, step=0))
        known = _event._classes.pop("test.decoder.saved")
        unknown = FrameDecoder().decode(frame).events[0]
        again = frame_of(unknown)
        _event._classes["test.decoder.saved"] = known
        assert type(unknown) is UnknownEvent
        assert FrameDecoder().decode(again).events == FrameDecoder().decode(frame).events


class TestManyRows:
    """Rows decoded together equal rows decoded alone."""

    source = Source(id="abc", rank=3)

    def check(self, decoder, rows):
        """Return the events of *rows*, of a frame that begins with 7, after comparing them one by one."""
        read = decoder.decode_all([list(row) for row in rows], 7, self.source)
        assert read == [decoder.decode(list(row)) for row in rows]
        assert [happened.seq for happened in read] == [7 + row[1] for row in rows]
        assert all(happened.source is self.source for happened in read)
        return read

    @pytest.mark.parametrize("count", [1, 3, 40])
    def test_values(self, count):
        """Each has its own values, the defaults of missing fields, and its number."""
        decoder = RowDecoder("test.decoder.saved", 2, ["path", "size_bytes"])
        rows = [[0, 2 * index, index, 2, 3, str(index), index] for index in range(count)]
        read = self.check(decoder, rows)
        assert [(saved.at_ns, saved.path, saved.took_s, saved.tags) for saved in read] == [
            (index, str(index), 0.5, []) for index in range(count)
        ]

    def test_converted(self):
        """Values that are not of the declared type yet are converted, each by itself."""
        decoder = RowDecoder("test.decoder.typed", 1, ["colour", "by_rank"])
        rows = [[0, place, 0, 0, 0, ("red", "blue")[place % 2], {str(place): 1}] for place in range(40)]
        assert [typed.by_rank for typed in self.check(decoder, rows)] == [{place: 1.0} for place in range(40)]

    def test_wrong_type(self):
        """One value that its class refuses leaves the others intact."""
        decoder = RowDecoder("test.decoder.typed", 1, ["colour"])
        rows = [[0, place, 0, 0, 0, "red" if place != 30 else "green"] for place in range(40)]
        read = self.check(decoder, rows)
        assert [place for place, typed in enumerate(read) if type(typed) is UnknownEvent] == [30]

    def test_other_types(self):
        """So does one of another type, known or not."""
        decoder = RowDecoder("test.decoder.stepped", 1, ["loss"])
        losses = [0.5] * 40
        losses[10], losses[20], losses[30] = None, 1, "x"
        read = self.check(decoder, [[0, place, 0, 0, place, loss] for place, loss in enumerate(losses)])
        assert type(read[30]) is UnknownEvent
        assert [type(stepped.loss) for stepped in (read[10], read[20])] == [type(None), float]

    @pytest.mark.parametrize("wire_name", ["test.decoder.checked", "acme.never.declared"])
    def test_careful(self, wire_name):
        """Types with validators, decoded one by one, and unknown ones equal those decoded alone."""
        decoder = RowDecoder(wire_name, 1, ["kind", "upper"])
        self.check(decoder, [[0, place, 0, 0, 0, "abc"[place % 3], "x"] for place in range(40)])

    @pytest.mark.parametrize("names", [(), ("loss",), ("a", "b")], ids=repr)
    def test_unknown(self, names):
        """Of a type that is not declared, each event has its own map of fields."""
        decoder = RowDecoder("acme.never.declared", 3, names)
        read = self.check(decoder, [[0, place, place, 2, 3, *[place] * len(names)] for place in range(40)])
        assert read[30] == UnknownEvent(
            at_ns=30, span_id=2, step=3, name="acme.never.declared", fields=dict.fromkeys(names, 30), name_version=3
        )
        assert len({id(unknown.fields) for unknown in read}) == 40

    @pytest.mark.parametrize("extra", [{b"x": 1}, {"x": {b"x": 1}}], ids=repr)
    def test_unsound(self, extra):
        """A map whose keys are no texts is refused wherever it is."""
        decoder = RowDecoder("test.decoder.free", 1, ["extra"])
        rows = [[0, place, 0, 0, 0, {"x": 1}] for place in range(40)]
        self.check(decoder, rows)
        rows[30][5] = extra
        with pytest.raises(DecodeError, match="no text"):
            decoder.decode_all(rows, 7, self.source)

    def test_envelope(self):
        """So is an envelope of values that are no whole numbers."""
        decoder = RowDecoder("test.decoder.stepped", 1, ["loss"])
        rows = [[0, place, 0, 0, 0, 0.5] for place in range(40)]
        rows[30][2] = 1.5
        with pytest.raises(DecodeError, match="whole numbers"):
            decoder.decode_all(rows, 7, self.source)

    def test_like_a_stamp(self):
        """A field may have the name under which a number is kept; then the number wins."""
        decoder = RowDecoder("test.decoder.stamped", 1, ["_seq"])
        read = decoder.decode_all([[0, place, 0, 0, 0, 5] for place in range(40)], 7, self.source)
        assert [happened.seq for happened in read] == [7 + place for place in range(40)]


class TestMalformed:
    @pytest.mark.parametrize("column", range(5))
    @pytest.mark.parametrize("value", [None, "1", 1.0, True, b"", [], {}], ids=repr)
    def test_envelope(self, column, value):
        """Type, number, time, span and step are whole numbers, or the row is refused."""
        decoder = RowDecoder("test.decoder.stepped", 1, ["loss"])
        row = [0, 0, 0, 0, 0, None]
        decoder.decode(list(row))
        row[column] = value
        for _ in range(2):
            with pytest.raises(DecodeError, match="whole numbers"):
                decoder.decode(list(row))

    @pytest.mark.parametrize("wire_name", ["test.decoder.saved", "acme.never.declared"])
    @pytest.mark.parametrize("depth", [32, 33])
    def test_depth(self, wire_name, depth):
        """A value nested deeper than 32 is refused, also where shallow ones were fine."""
        decoder = RowDecoder(wire_name, 2, ["path", "size_bytes", "extra"])
        value = []
        for _ in range(depth - 1):
            value = [value]
        decoder.decode([0, 0, 0, 0, 0, "a", 7, [1]])
        if depth <= 32:
            decoder.decode([0, 0, 0, 0, 0, "a", 7, value])
        else:
            with pytest.raises(DecodeError, match="deeper than 32"):
                decoder.decode([0, 0, 0, 0, 0, "a", 7, value])

    def test_depth_behind_a_wrong_type(self):
        """So is one behind a value that its field does not admit, in a row of types that were fine before."""
        decoder = RowDecoder("test.decoder.painted", 1, ["colours", "ranks"])
        assert type(decoder.decode([0, 0, 0, 0, 0, ["red"], [1]])) is Painted
        value = []
        for _ in range(32):
            value = [value]
        with pytest.raises(DecodeError, match="deeper than 32"):
            decoder.decode([0, 0, 0, 0, 0, ["no colour"], value])

    @pytest.mark.parametrize("wire_name", ["test.decoder.saved", "acme.never.declared"])
    def test_keys(self, wire_name):
        """So is a map whose keys are no texts."""
        decoder = RowDecoder(wire_name, 2, ["path", "size_bytes", "extra"])
        decoder.decode([0, 0, 0, 0, 0, "a", 7, {"x": 1}])
        with pytest.raises(DecodeError, match="no text"):
            decoder.decode([0, 0, 0, 0, 0, "a", 7, {b"x": 1}])


class TestBounds:
    def test_combinations(self):
        """A decoder remembers at most 64 combinations of types, however many come."""
        decoder = RowDecoder("acme.never.declared", 1, [f"f{column}" for column in range(12)])
        for number in range(4096):
            decoder.decode([0, 0, 0, 0, 0, *(1 if number >> bit & 1 else "" for bit in range(12))])
        assert len(decoder._learned) == 64

    def test_wide_rows(self):
        """It remembers fewer of wide rows."""
        decoder = RowDecoder("acme.never.declared", 1, [f"f{column}" for column in range(1000)])
        for number in range(100):
            decoder.decode([0, 0, 0, 0, 0, *(1 if column == number else "" for column in range(1000))])
        assert len(decoder._learned) == 4

    def test_beyond(self):
        """Rows of forgotten types are read all the same."""
        names = [f"f{column}" for column in range(12)]
        decoder = RowDecoder("acme.never.declared", 1, names)
        rows = [[0, 0, 0, 0, 0, *(1 if number >> bit & 1 else "" for bit in range(12))] for number in range(100)]
        assert [list(decoder.decode(row).fields.values()) for row in rows] == [row[5:] for row in rows]


class TestSpeedIsNoExcuse:
    """The fast path and the general path agree."""

    @pytest.mark.parametrize(
        "happened",
        [
            Saved(path="a", size_bytes=7),
            Saved(path="a", size_bytes=7, tags=["x", "y"]),
            Typed(),
            Typed(colour=Colour.BLUE, point=Point(1, 2.5), by_rank={1: 0.5}, ranks={3}, pair=(1, "x")),
            Checked(kind="a", upper="x"),
            Computed(width=4),
            Stepped(step=5, loss=0.5),
            Stepped(step=5),
            Mixed(value=1),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_repeated(self, happened, frame_of):
        """An event that is written a hundred times is read a hundred times."""
        assert FrameDecoder().decode(frame_of(*[happened] * 100)).events == [happened] * 100

    def test_nothing_shared(self):
        """Values of one event do not appear in another."""
        encoder = RowEncoder()
        decoder = RowDecoder("test.decoder.saved", 2, ["path", "size_bytes", "took_s", "tags"])
        read = [
            decoder.decode(msgpack.unpackb(encoder.encode(Saved(path=str(n), size_bytes=n, tags=[str(n)]), n)[1]))
            for n in range(10)
        ]
        assert [(saved.path, saved.size_bytes, saved.tags) for saved in read] == [
            (str(n), n, [str(n)]) for n in range(10)
        ]
