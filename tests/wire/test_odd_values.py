"""A value of any kind arrives, converted if need be, or its event alone is refused: the neighbours arrive."""

from __future__ import annotations

import enum
import math
from typing import Any

import attrs
import msgpack
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.events import Event, UnknownEvent, event
from trackside.wire import FrameDecoder, RowEncoder, encode_frame, wire_name_of

REFUSED = object()
"""Stands for a value that cannot be converted."""


@event("test.odd.neighbour")
class Neighbour(Event):
    text: str = ""
    number: int = 0


def field_of(name, hint):
    return event(f"test.odd.{name}")(type(f"Of{name.title()}", (Event,), {"__annotations__": {"value": hint}}))


KINDS = [
    field_of(name, hint)
    for name, hint in {
        "text": str,
        "whole": int,
        "real": float,
        "flag": bool,
        "raw": bytes,
        "maybe": int | None,
        "any": Any,
        "list": list[Any],
        "map": dict[str, Any],
        "pair": tuple[int, str],
    }.items()
]

OF_REAL = KINDS[2]
ADMITTED = dict(
    zip(
        KINDS,
        [
            lambda value: type(value) is str,
            lambda value: type(value) is int,
            lambda value: type(value) in (int, float),
            lambda value: type(value) is bool,
            lambda value: type(value) is bytes,
            lambda value: type(value) is int,
            lambda value: value is not REFUSED,
            lambda value: type(value) is list,
            lambda value: type(value) is dict,
            lambda value: type(value) is list and list(map(type, value)) == [int, str],
        ],
        strict=True,
    )
)
"""By class, whether its field admits a plain value."""


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()


class LyingText(str):
    """A text whose methods claim that it is short and plain."""

    __slots__ = ()

    def __len__(self):
        return 1

    def isascii(self):
        """Return a wrong value."""
        return True


class RaisingText(str):
    """A text all of whose methods raise."""

    __slots__ = ()

    def isascii(self):
        """Raise."""
        raise RuntimeError("no answer")

    __len__ = __str__ = __hash__ = encode = isascii


class Whole(int):
    """A number whose conversion to a plain one raises."""

    def __int__(self):
        raise RuntimeError("no answer")

    __index__ = __str__ = __int__


class LyingList(list):
    """A list that claims to be short."""

    def __len__(self):
        return 1


class EndlessList(list):
    """A list that never ends."""

    def __iter__(self):
        while True:
            yield 1


class LyingMap(dict):
    """A map that claims to be small."""

    def __len__(self):
        return 1


class Unspeakable:
    """An object whose repr raises."""

    def __str__(self):
        raise RuntimeError("no answer")

    __repr__ = __hash__ = __str__


class Impostor:
    """An object that claims another class."""

    def __init__(self, kind):
        self._kind = kind

    @property
    def __class__(self):
        """Return the claimed class."""
        return self._kind


class Colour(enum.Enum):
    RED = "red"


@attrs.define
class Shape:
    height: Any = 1


def nested(depth):
    value = 0
    for _ in range(depth):
        value = [value]
    return value


def circle():
    value = []
    value.append(value)
    return value


ODD = [
    (msgpack.ExtType(5, b"some"), b"some"),
    (msgpack.ExtType(0, b""), b""),
    (msgpack.Timestamp(7, 500_000_000), 7.5),
    (msgpack.Timestamp(-1), -1.0),
    (2**64 - 1, 2**64 - 1),
    (2**64, REFUSED),
    (-(2**63) - 1, REFUSED),
    (10**400, REFUSED),
    (math.inf, math.inf),
    (-math.inf, -math.inf),
    (-0.0, -0.0),
    ("\ud800", "\\ud800"),
    ("a\udcffb", "a\\udcffb"),
    ("\0\x1b", "\0\x1b"),
    ("x" * 65_537, "x" * 65_536),
    (b"\xff\0", b"\xff\0"),
    (bytearray(b"a"), b"a"),
    (memoryview(b"abcd")[::2], b"ac"),
    (b"x" * 262_144, REFUSED),
    (Text("a"), "a"),
    (Text("\ud800"), "\\ud800"),
    (LyingText("é" * 70_000), "é" * 32_768),
    (RaisingText("a"), "a"),
    (Whole(7), 7),
    (Whole(2**64), REFUSED),
    (numpy.float64(0.5), 0.5),
    (numpy.float16(0.5), 0.5),
    (numpy.int8(-3), -3),
    (numpy.uint64(2**64 - 1), 2**64 - 1),
    (numpy.bool_(True), True),
    (numpy.str_("a"), "a"),
    (numpy.bytes_(b"a"), b"a"),
    (numpy.array(2), 2),
    (numpy.zeros(2), REFUSED),
    (numpy.complex128(1), REFUSED),
    (1j, REFUSED),
    (object(), REFUSED),
    (Unspeakable(), REFUSED),
    (Impostor(str), REFUSED),
    (Impostor(int), REFUSED),
    (Impostor(bool), REFUSED),
    (Impostor(dict), REFUSED),
    (Impostor(list), REFUSED),
    (Impostor(bytes), REFUSED),
    (Impostor(enum.Enum), REFUSED),
    (Colour.RED, "red"),
    (Shape(msgpack.ExtType(1, b"in")), {"height": b"in"}),
    (Shape(circle()), REFUSED),
    (nested(32), nested(32)),
    (nested(33), REFUSED),
    (circle(), REFUSED),
    ([msgpack.ExtType(5, b"in")], [b"in"]),
    ([[msgpack.Timestamp(1)]], [[1.0]]),
    ({"a": msgpack.ExtType(5, b"in")}, {"a": b"in"}),
    ((1, "a"), [1, "a"]),
    (LyingList([0] * 65_537), REFUSED),
    (EndlessList(), REFUSED),
    (LyingMap({str(key): 0 for key in range(1_025)}), REFUSED),
    ({"\ud800": 1}, {"\\ud800": 1}),
    ({Text("a"): 1}, {"a": 1}),
    ({b"a": 1}, {"b'a'": 1}),
    ({Colour.RED: 1}, {"red": 1}),
    ({2: 1, "2": 1}, REFUSED),
    ([Unspeakable()], REFUSED),
    (print, REFUSED),
    (Text, REFUSED),
]

FLAT = [index for index, (_, expected) in enumerate(ODD) if expected != nested(32)]
WRAPS = (lambda value: value, lambda value: [value], lambda value: {"a": value}, lambda value: [1, {"b": value}])


def arrived(*happened):
    """Return the events that a reader gets of those that are not refused."""
    encoder = RowEncoder()
    schemas, rows = {}, []
    for each in happened:
        try:
            schema, row = encoder.encode(each, len(rows))
        except Exception:
            continue
        schemas[schema.number] = schema.entry
        rows.append(row)
    frame = encode_frame("s", 0, len(rows) - 1, dropped={}, schemas=schemas.values(), rows=rows)
    return list(FrameDecoder().decode(frame).events)


def fate_of(cls, index):
    """Return the value of `ODD` at *index* and the value that a field of a *cls* makes of it."""
    value, expected = ODD[index]
    if cls is OF_REAL and type(value) in (int, Whole) and expected is REFUSED and abs(value) < 2**1023:
        expected = float(value)  # a whole number of more than 64 bits is written as readers would convert it
    return value, expected


def value_of(read):
    """Return the value as it was on the wire."""
    assert not isinstance(read, UnknownEvent)
    value = read.value
    return list(value) if isinstance(value, tuple) else value


class TestEachKindOfField:
    @pytest.mark.parametrize("index", range(len(ODD)))
    @pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.wire_name.rpartition(".")[2])
    def test_odd(self, cls, index):
        """The value arrives if the field's type admits it; otherwise only its event does not arrive."""
        value, expected = fate_of(cls, index)
        arrives = ADMITTED[cls](expected)
        if cls is OF_REAL and type(expected) is int:
            expected = float(expected)  # as every reader converts a whole number in such a field
        before, after = Neighbour(text="before", number=1), Neighbour(text="after", number=2)
        read = arrived(before, cls(value=value), after)

        assert [each for each in read if isinstance(each, Neighbour)] == [before, after]
        assert [value_of(each) for each in read[1:-1]] == ([expected] if arrives else [])

    @pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.wire_name.rpartition(".")[2])
    def test_no_number(self, cls):
        """NaN arrives as NaN where a number with a fraction is admitted."""
        read = arrived(cls(value=math.nan))

        assert [math.isnan(value_of(each)) for each in read] == [True] * ADMITTED[cls](math.nan)

    @pytest.mark.torch
    @pytest.mark.parametrize("cls", KINDS, ids=lambda cls: cls.wire_name.rpartition(".")[2])
    def test_tensor(self, cls):
        """A tensor of one number arrives as that number where it is admitted, one of several is refused."""
        import torch

        read = arrived(cls(value=torch.tensor(0.5, requires_grad=True)), cls(value=torch.zeros(2)), Neighbour())

        assert [value_of(each) for each in read[:-1]] == [0.5] * ADMITTED[cls](0.5)
        assert type(read[-1]) is Neighbour

    @given(
        st.lists(st.tuples(st.sampled_from([*KINDS, Neighbour]), st.sampled_from(FLAT), st.integers(0, 3)), max_size=8)
    )
    def test_many(self, drawn):
        """The same holds for any number of them in one frame, also within lists and maps."""
        happened, expected = [], []
        for cls, index, wrap in drawn:
            value, fate = fate_of(cls, index)
            happened.append(Neighbour(number=index) if cls is Neighbour else cls(value=WRAPS[wrap](value)))
            plain = REFUSED if fate is REFUSED else WRAPS[wrap](fate)
            if cls is Neighbour or (plain is not REFUSED and ADMITTED[cls](plain)):
                expected.append(cls.wire_name)

        assert [wire_name_of(read) for read in arrived(*happened)] == expected
