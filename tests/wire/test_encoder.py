"""Events to rows: the encoding, the conversions, and the refusals."""

from __future__ import annotations

import collections
import contextlib
import datetime
import enum
import pathlib
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import msgpack
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.bus import Bus
from trackside.events import Event, IterationEnded, RunsOn, SpanEventAdded, UnknownEvent, event, own_fields
from trackside.wire import FrameDecoder, RowEncoder, encode_frame, fields_of, wire_name_of

if TYPE_CHECKING:
    from decimal import Decimal


class Colour(enum.Enum):
    RED = "red"


class Kind(str, enum.Enum):
    TEXT = "text"


class Pair(NamedTuple):
    a: int
    b: int


@attrs.frozen
class Shape:
    height: int
    table: dict[int, str] = attrs.field(factory=dict, eq=False)


@event("test.encoder.flat")
class Flat(Event):
    text: str = ""
    number: int = 0
    maybe: float | None = None


@event("test.encoder.open")
class Open(Event):
    value: Any = None


@event("test.encoder.typed")
class Typed(Event):
    text: str = ""
    number: int = 0
    real: float = 0.0
    maybe: float | None = None
    names: list[str] = attrs.field(factory=list)
    table: dict[str, float] = attrs.field(factory=dict)
    nested: dict[str, list[int]] | None = None
    anything: Any = None


@event("test.encoder.hidden", version=7)
class Hidden(Event):
    when: Decimal | None = None


def at(cls, **fields):
    return cls(at_ns=9, span_id=2, step=3, **fields)


def row_of(encoder, happened, offset=0):
    return msgpack.unpackb(encoder.encode(happened, offset)[1], strict_map_key=False)


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


class TestRow:
    def test_layout(self):
        """A row is type, number, time, span, step, then the fields in order of declaration."""
        happened = at(Flat, text="a", number=7, maybe=0.5)
        assert row_of(RowEncoder(), happened, 4) == [0, 4, 9, 2, 3, "a", 7, 0.5]

    def test_bytes(self):
        """Its bytes are an array of 8, small numbers, a text of one, a double, nothing."""
        assert RowEncoder().encode(at(Flat, text="a", number=7), 4)[1] == b"\x98\x00\x04\x09\x02\x03\xa1a\x07\xc0"

    def test_schema(self):
        """Its schema is the type's number, wire name, version and the names of its fields."""
        schema, _ = RowEncoder().encode(Hidden(), 0)
        assert (schema.number, schema.wire_name) == (0, "test.encoder.hidden")
        assert msgpack.unpackb(schema.entry) == [0, "test.encoder.hidden", 7, ["when"]]

    def test_numbers(self):
        """Types are numbered in the order of their first use, each once."""
        encoder = RowEncoder()
        numbers = [encoder.encode(happened, 0)[0].number for happened in (Flat(), Open(), Flat(), Hidden(), Open())]
        assert numbers == [0, 1, 0, 2, 1]

    def test_by_class(self):
        """A caller that encodes many events of one class may get its schema and a function once."""
        encoder = RowEncoder()
        schema = encoder.schema_of(Flat)
        assert encoder.encoding(schema)(at(Flat), 1) == encoder.encode(at(Flat), 1)[1]
        assert encoder.encode(at(Flat), 1)[0] is schema

    def test_undeclared(self):
        """A class that was not declared has no wire name."""
        with pytest.raises(TypeError, match="not declared"):
            RowEncoder().encode(type("Sub", (Flat,), {})(), 0)

    def test_base(self):
        """Nor has the envelope alone."""
        with pytest.raises(TypeError, match="not declared"):
            RowEncoder().encode(Event(), 0)

    def test_hidden_type(self):
        """A field whose type is known to type checkers alone is written like any other."""
        assert row_of(RowEncoder(), at(Hidden, when=5))[5:] == [5]


class TestMadeToFit:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (numpy.float64(0.5), 0.5),
            (numpy.int64(3), 3),
            (numpy.array(3.5), 3.5),
            (Colour.RED, "red"),
            (Kind.TEXT, "text"),
            ((1, (2,)), [1, [2]]),
            ({1: {2: 3}}, {"1": {"2": 3}}),
            ({Colour.RED: 1}, {"red": 1}),
            ({3, 1}, [1, 3]),
            (Shape(3, {1: "a"}), {"height": 3, "table": {"1": "a"}}),
            (pathlib.PurePosixPath("a/b"), "a/b"),
            (datetime.timedelta(seconds=2), 2.0),
            (bytearray(b"a"), b"a"),
            (memoryview(b"a"), b"a"),
            (collections.OrderedDict(a=1), {"a": 1}),
            (Pair(1, 2), [1, 2]),
            ("a\ud800", "a\\ud800"),
            ([numpy.float32(0.5), {"a": Colour.RED}], [0.5, {"a": "red"}]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_value(self, value, expected, round_trip):
        """A value of the user's is converted where the field admits anything."""
        assert round_trip(Open(value=value)).value == expected

    @pytest.mark.torch
    def test_torch(self, round_trip):
        """So is a loss as training has it: a tensor of one number."""
        import torch

        assert round_trip(IterationEnded(duration_ns=1, loss=torch.tensor(0.5))).loss == 0.5

    @pytest.mark.parametrize("value", [numpy.int64(5), enum.IntEnum("E", {"A": 5}).A])
    def test_envelope(self, value, round_trip):
        """A step may be any kind of whole number."""
        read = round_trip(Flat(step=value))
        assert read.step == 5
        assert type(read) is Flat

    def test_cut(self, round_trip):
        """Strings are cut at 64 KiB, and counted over the encoder's life."""
        encoder = RowEncoder()
        encoder.encode(Flat(text="a" * 70_000), 0)
        encoder.encode(Open(value=["a" * 70_000, {"b": "ü" * 40_000}]), 1)
        encoder.encode(Flat(text="a" * 65_536), 2)
        assert encoder.cuts == 3
        assert round_trip(Flat(text="ü" * 40_000)).text == "ü" * 32_768

    def test_uncounted(self):
        """Cut strings of a refused event are not counted."""
        encoder = RowEncoder()
        with pytest.raises(TypeError):
            encoder.encode(Open(value=["a" * 70_000, object()]), 0)
        assert encoder.cuts == 0

    @pytest.mark.parametrize("odd", [{1: 2}, {"a": {1: 2}}, {"a": (1,)}, {"a": numpy.float64(1)}], ids=str)
    def test_after_others(self, odd, frame_of):
        """Plain values in earlier rows do not exempt the next one of the same type from the checks."""
        read = FrameDecoder().decode(frame_of(Open(value={"a": 1}), Open(value={}), Open(value=odd))).events
        assert [type(happened) for happened in read] == [Open] * 3
        assert list(read[2].value) == [str(key) for key in odd]


class TestDeclaredTypes:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("text", "a"),
            ("text", numpy.str_("a")),
            ("text", Colour.RED),
            ("text", pathlib.PurePosixPath("a/b")),
            ("number", 2**64 - 1),
            ("number", numpy.int64(3)),
            ("real", 0.5),
            ("real", 3),
            ("real", numpy.float32(0.5)),
            ("maybe", None),
            ("names", ["a"]),
            ("names", ("a", "b")),
            ("names", {"a"}),
            ("table", {"a": 1, "b": 0.5}),
            ("table", {1: 1.0}),
            ("table", {"a": numpy.float64(0.5)}),
            ("nested", {"a": [1, 2]}),
            ("nested", None),
            ("anything", [{"a": ("b", None)}]),
        ],
        ids=str,
    )
    def test_admitted(self, field, value, round_trip):
        """A value that the declared type admits, or that stands for one, is read back as the class."""
        assert type(round_trip(Typed(**{field: value}))) is Typed

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("text", 7),
            ("text", None),
            ("text", b"a"),
            ("number", "7"),
            ("number", 7.0),
            ("number", True),
            ("number", numpy.float64(7)),
            ("real", "0.5"),
            ("real", False),
            ("real", [0.5]),
            ("maybe", "0.5"),
            ("names", "ab"),
            ("names", [1]),
            ("names", {"a": 1}),
            ("names", ["a", None]),
            ("table", {"a": "1"}),
            ("table", {"a": None}),
            ("table", []),
            ("nested", {"a": 1}),
            ("nested", {"a": ["b"]}),
        ],
        ids=str,
    )
    def test_refused(self, field, value):
        """Any other value is refused, by the names of the field and of the event."""
        with pytest.raises(TypeError, match=f"the field '{field}' of test.encoder.typed does not admit it"):
            RowEncoder().encode(Typed(**{field: value}), 0)

    def test_neighbours(self):
        """The events before and after it are encoded as ever, also where it is the first of its class."""
        encoder = RowEncoder()
        for _ in range(2):
            with pytest.raises(TypeError):
                encoder.encode(Typed(number="7"), 0)
            assert row_of(encoder, at(Typed, number=7))[6] == 7

    def test_bus(self, caplog):
        """On a bus such an event is invalid: counted as such, reported with its field, and nothing else is lost."""
        with contextlib.closing(Bus()) as bus:
            seen = []
            bus.subscribe(seen.append, to=Typed, runs_on=RunsOn.DISPATCHER)
            bus.log(Typed(number=1))
            bus.log(Typed(number="2"))
            bus.log(Typed(number=3))
            assert bus.flush(10)
            assert [happened.number for happened in seen] == [1, 3]
            assert bus.stats().invalid == 1
        assert "the field 'number' of test.encoder.typed does not admit it" in caplog.text


class TestRefused:
    @pytest.mark.parametrize(
        "value",
        [
            object(),
            2**64,
            -(2**63) - 1,
            [2**64],
            nested(33),
            {"a": nested(32)},
            [0] * 65_537,
            {str(key): key for key in range(1025)},
            b"a" * 262_144,
            ["a" * 65_536] * 4,
            {1: "a", "1": "b"},
            numpy.zeros(3),
        ],
        ids=lambda value: type(value).__name__,
    )
    @pytest.mark.parametrize("cls", [Flat, Open])
    def test_value(self, cls, value):
        """A value that is too deep, too long, too large, or cannot be recorded, is an error."""
        with pytest.raises((TypeError, ValueError, OverflowError)):
            RowEncoder().encode(cls(**{own_fields(cls)[0]: value}), 0)

    @pytest.mark.parametrize("name", ["at_ns", "span_id", "step"])
    @pytest.mark.parametrize("value", [None, "5", 5.0, True, b"5", [5], 2**64], ids=repr)
    def test_envelope(self, name, value):
        """So is a time, span or step that is no whole number: no reader could place the event."""
        with pytest.raises((TypeError, OverflowError)):
            RowEncoder().encode(Flat(**{name: value}), 0)

    def test_whole_number_in_a_field_of_floats(self, round_trip):
        """A whole number beyond 64 bits is written as the float that readers get where a float is declared."""
        assert round_trip(at(Typed, real=10**20, maybe=-(2**63) - 1)) == at(
            Typed, real=1e20, maybe=-9.223372036854775808e18
        )
        with pytest.raises(OverflowError):
            RowEncoder().encode(Typed(real=10**400), 0)

    def test_one_event(self, frame_of):
        """A refused event leaves nothing behind in the next one's row."""
        encoder = RowEncoder()
        for happened in (Flat(number=2**64), Open(value=[1, 2, object()]), Flat(text=object())):
            with pytest.raises((TypeError, OverflowError)):
                encoder.encode(happened, 0)
        assert row_of(encoder, at(Flat, text="a"))[2:] == [9, 2, 3, "a", 0, None]

    def test_largest(self, round_trip):
        """A row has at most 256 KiB: the value and the eleven bytes around it."""
        largest = b"a" * (262_144 - 11)
        assert round_trip(at(Open, value=largest)).value == largest
        with pytest.raises(ValueError, match="262145 bytes; at most 262144"):
            RowEncoder().encode(at(Open, value=largest + b"a"), 0)

    def test_large_is_forgotten(self):
        """A huge event takes its memory only while it is encoded."""
        tracer = pytest.importorskip("resource")

        def peak_after(count):
            encoder = RowEncoder()
            for number in range(count):
                cls = event(f"test.encoder.huge{number}")(type(f"Huge{number}", (Open,), {}))
                with pytest.raises(ValueError):
                    encoder.encode(cls(value=huge), 0)
            return tracer.getrusage(tracer.RUSAGE_SELF).ru_maxrss

        huge = b"a" * (16 << 20)
        once = peak_after(1)
        assert peak_after(12) < once + (64 << 10)


class TestUnknown:
    def test_as_read(self):
        """An event of unknown type is written as the type it was read as."""
        unknown = UnknownEvent(name="acme.x", fields={"a": 1, "b": [2]}, name_version=3, at_ns=9, span_id=2, step=3)
        schema, row = RowEncoder().encode(unknown, 4)
        assert schema.wire_name == "acme.x"
        assert msgpack.unpackb(schema.entry) == [0, "acme.x", 3, ["a", "b"]]
        assert msgpack.unpackb(row) == [0, 4, 9, 2, 3, 1, [2]]

    def test_once(self):
        """Its schema is made once."""
        encoder = RowEncoder()
        first, _ = encoder.encode(UnknownEvent(name="acme.x", fields={"a": 1}), 0)
        second, _ = encoder.encode(UnknownEvent(name="acme.x", fields={"a": "other"}), 1)
        assert first is second

    @pytest.mark.parametrize(
        "other",
        [
            UnknownEvent(name="acme.y", fields={"a": 1}),
            UnknownEvent(name="acme.x", fields={"b": 1}),
            UnknownEvent(name="acme.x", fields={"a": 1}, name_version=2),
            UnknownEvent(name="acme.x", fields={"a": 1, "b": 1}),
        ],
        ids=lambda unknown: f"{unknown.name} {unknown.name_version} {list(unknown.fields)}",
    )
    def test_others(self, other):
        """Another name, version or set of fields is another type."""
        encoder = RowEncoder()
        first, _ = encoder.encode(UnknownEvent(name="acme.x", fields={"a": 1}), 0)
        assert encoder.encode(other, 1)[0].number != first.number

    def test_beside_the_known(self, frame_of):
        """One that has a known type's name does not disturb that type."""
        known = Flat(text="a")
        unknown = UnknownEvent(name="test.encoder.flat", fields={"number": "seven"})
        assert FrameDecoder().decode(frame_of(known, unknown, known)).events == [known, unknown, known]

    @pytest.mark.parametrize(
        "unknown",
        [
            UnknownEvent(name="a" * 129),
            UnknownEvent(name=7),
            UnknownEvent(name="acme.x", name_version="1"),
            UnknownEvent(name="acme.x", fields={1: 2}),
            UnknownEvent(name="acme.x", fields={"step": 2}),
            UnknownEvent(name="acme.x", fields={str(key): 0 for key in range(1025)}),
            UnknownEvent(name="acme.x", fields={"a": object()}),
        ],
        ids=range(7),
    )
    def test_refused(self, unknown):
        """A type that no reader would accept is refused here too."""
        with pytest.raises((TypeError, ValueError)):
            RowEncoder().encode(unknown, 0)

    def test_many_types(self):
        """An encoder keeps at most 1,024 types, however many come, and never gives a number twice."""
        encoder = RowEncoder()
        numbers = {encoder.encode(UnknownEvent(name=f"acme.x{key}"), 0)[0].number for key in range(5000)}
        assert len(numbers) == 5000
        assert len(encoder._restored) <= 1024

    def test_redeclared(self, frame_of, forgetful):
        """A class and its older self, with other fields, are two types in one frame."""

        def declare(fields):
            return event("test.encoder.redeclared")(
                type("Redeclared", (Event,), {"__annotations__": fields, **dict.fromkeys(fields, 0)})
            )

        older, newer = declare({"a": "int"}), declare({"b": "int", "c": "int"})
        read = FrameDecoder().decode(frame_of(older(a=1), newer(b=2, c=3), older(a=4))).events
        assert [fields_of(happened) for happened in read] == [{"b": 0, "c": 0}, {"b": 2, "c": 3}, {"b": 0, "c": 0}]


class Odd:
    """A value that cannot be recorded."""


keys = st.text(max_size=5) | st.integers() | st.none() | st.booleans() | st.sampled_from(Colour)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**66), 2**66)
    | st.floats()
    | st.text(st.characters(), max_size=10)
    | st.text(st.characters(categories=["Cs"]), max_size=3)
    | st.binary(max_size=10)
    | st.sampled_from([Colour.RED, Kind.TEXT, Odd(), numpy.float32(1), numpy.int64(2), bytearray(b"x"), "x" * 70_000])
    | st.integers(20, 40).map(nested)
    | st.builds(Shape, height=st.integers()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=4)
        | st.frozensets(st.integers() | st.text(max_size=3), max_size=4)
    ),
    max_leaves=12,
)


class TestProperty:
    @given(st.lists(st.tuples(st.sampled_from([Flat, Open]), anything, anything), min_size=1, max_size=5))
    def test_readable(self, happened):
        """Every value that is not refused is read back: none of the others is lost by it."""
        encoder = RowEncoder()
        schemas, rows, names = {}, [], []
        for cls, value, step in happened:
            odd = cls(**{own_fields(cls)[0]: value}) if step is None else cls(step=step, **{own_fields(cls)[0]: value})
            try:
                schema, row = encoder.encode(odd, len(rows))
            except Exception:
                continue
            schemas[schema.number] = schema.entry
            rows.append(row)
            names.append(cls.wire_name)
        frame = encode_frame("s", 0, len(rows) - 1, dropped={}, schemas=schemas.values(), rows=rows)
        assert [wire_name_of(read) for read in FrameDecoder().decode(frame).events] == names

    @given(anything)
    def test_stable(self, value):
        """Events that were read and are written again are the same bytes."""
        encoder = RowEncoder()
        try:
            schema, row = encoder.encode(SpanEventAdded(name="x", attributes={"value": value}, at_ns=1), 0)
        except Exception:
            return
        frame = encode_frame("s", 0, 0, dropped={}, schemas=[schema.entry], rows=[row])
        assert encoder.encode(FrameDecoder().decode(frame).events[0], 0)[1] == row
