"""The compiled row encoder against pure Python: the same bytes, counts and errors for the same event."""

from __future__ import annotations

import contextlib
import enum
import gc
import math
import weakref
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from blocks import least_growth
from implementations import needs_core, pure
from trackside.events import CounterWindow, Event, IterationEnded, ProfileSpanEnded, event
from trackside.wire import RowEncoder

pytestmark = needs_core

PURE = pure("trackside.wire._encoder")


@event("test.compiled.scalars")
class Scalars(Event):
    whole: int = 0
    real: float = 0.0
    text: str = ""
    raw: bytes = b""
    flag: bool = False
    perhaps: int | None = None


@event("test.compiled.containers")
class Containers(Event):
    anything: Any = None
    texts: list[str] = attrs.field(factory=list)
    numbers: dict[str, float] = attrs.field(factory=dict)
    open_map: dict[str, Any] = attrs.field(factory=dict)
    lists: dict[str, list[int]] = attrs.field(factory=dict)


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


whole = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**bits + step for bits in (5, 7, 8, 15, 16, 31, 32, 63, 64) for step in (-1, 0, 1)]),
    st.sampled_from([-(2**bits) + step for bits in (5, 7, 8, 15, 16, 31, 32, 63, 64) for step in (-1, 0, 1)]),
)
text = st.one_of(
    st.text(max_size=40),
    st.text("aé漢𐍈", max_size=300),
    st.sampled_from(["\ud800", "a" * 31, "a" * 32, "a" * 255, "a" * 256, "é" * 500, "a" * 70_000]),
)
raw = st.one_of(st.binary(max_size=20), st.sampled_from([b"a" * 255, b"a" * 256, b"a" * 2000]))
scalar = st.one_of(whole, st.floats(), text, raw, st.booleans(), st.none())
odd = st.sampled_from([Colour.RED, Text("x"), 1j, object(), (1, "a"), {1, 2}, math.nan])
value = st.one_of(scalar, scalar, odd)
keys = st.one_of(text, text, whole, st.none(), st.just(Text("x")))
anything = st.recursive(
    value,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(keys, inner, max_size=20),
    max_leaves=30,
)


def encoded(encoder, happened, offset):
    """Return the row of *happened* and the strings cut, or the error."""
    try:
        return encoder.encode(happened, offset)[1], encoder.cuts
    except Exception as error:
        return type(error), str(error), encoder.cuts


def both(happened, offset=0):
    return [encoded(made(), happened, offset) for made in (RowEncoder, PURE.RowEncoder)]


class TestSame:
    @given(
        fields=st.fixed_dictionaries(
            {},
            optional={
                "at_ns": value,
                "span_id": value,
                "step": value,
                "whole": value,
                "real": value,
                "text": value,
                "raw": value,
                "flag": value,
                "perhaps": value,
            },
        ),
        offset=st.integers(0, 2**40),
    )
    def test_scalars(self, fields, offset):
        """For any values of scalar fields, rows, cuts and errors are equal."""
        happened = Scalars()
        for name, given_value in fields.items():
            setattr(happened, name, given_value)
        results = both(happened, offset)
        assert results[0] == results[1]

    @given(
        fields=st.fixed_dictionaries(
            {},
            optional={
                "anything": anything,
                "texts": st.one_of(st.lists(text), anything),
                "numbers": st.one_of(st.dictionaries(text, st.floats()), anything),
                "open_map": st.one_of(st.dictionaries(text, scalar), anything),
                "lists": anything,
            },
        )
    )
    def test_containers(self, fields):
        """For any lists and maps, rows, cuts and errors are equal."""
        results = both(Containers(**fields))
        assert results[0] == results[1]

    @pytest.mark.parametrize("size", [*range(960, 1030), 1 << 16, 1 << 18])
    def test_around_the_limit(self, size):
        """Rows up to the limit, and beyond it, are equal."""
        results = both(Scalars(text="a" * size))
        assert results[0] == results[1]

    @pytest.mark.parametrize("count", [15, 16, 17, 255, 256, 400])
    def test_lengths(self, count):
        """Lists and maps of any length are equal."""
        results = both(Containers(texts=["a"] * count, open_map={str(index): None for index in range(count // 4)}))
        assert results[0] == results[1]

    @pytest.mark.parametrize(
        "happened",
        [
            ProfileSpanEnded(name="forward", duration_ns=12, span_id=4),
            IterationEnded(duration_ns=1, samples=8, loss=0.5),
            CounterWindow(name="x", start_ns=0, end_ns=1, count=1, values={"mean": 0.5}, total_count=1, total_sum=1),
        ],
    )
    def test_vocabulary(self, happened):
        """The events that a training step publishes are equal."""
        results = both(happened)
        assert results[0] == results[1]

    def test_missing(self):
        """An event that lacks a field is the same error."""
        happened = Scalars()
        del happened.text
        results = both(happened)
        assert results[0] == results[1]
        assert results[0][0] is AttributeError


class TestCompiled:
    def test_wrong_calls(self):
        """Wrong calls raise what Python raises, and an event of another class is encoded by Python."""
        encoder = RowEncoder()
        encode = encoder.encoding(encoder.schema_of(Scalars))
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'offset'"):
            encode(Scalars())
        with pytest.raises(AttributeError):
            encode(object(), 0)
        assert encode(event=Scalars(at_ns=1), offset=2) == encode(Scalars(at_ns=1), 2)

    def test_shown_in_another_way(self):
        """A field that a class exposes by another descriptor than a slot is read as Python reads it."""

        @event("test.compiled.shown")
        class Shown(Event):
            text: str = ""

        happened = Shown(at_ns=1)
        Shown.text = property(lambda self: "shown")
        results = both(happened)
        assert results[0] == results[1]
        assert b"shown" in results[0][0]

    def test_nothing_is_kept(self):
        """Four hundred rows leave nothing allocated, those that fall back to Python included."""
        encoder = RowEncoder()
        encode = encoder.encoding(encoder.schema_of(Scalars))
        events = [Scalars(text="é" * 10), Scalars(text="a" * 1100), Scalars(text="\ud800"), Scalars(whole=2**64)]

        def run():
            for happened in events * 100:
                with contextlib.suppress(Exception):  # for values that cannot be encoded
                    encode(happened, 0)

        assert least_growth(run) < 60

    def test_encoders_are_freed(self):
        """An encoder that is dropped is freed with its encodings, which refer to it."""
        encoder = RowEncoder()
        encoder.schema_of(Scalars)
        gone = weakref.ref(encoder)
        del encoder
        gc.collect()
        assert gone() is None
