"""The estimated memory of an event's values."""

from __future__ import annotations

import sys
from typing import Any

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import given

from trackside.events import Event, IterationEnded, SpanEnded, UnknownEvent, event
from trackside.wire import size_of, sized_fields


@event("test.size.sized")
class Sized(Event):
    count: int
    share: float | None = None
    name: str = ""
    value: Any = None
    table: dict[str, float] = attrs.field(factory=dict)


@event("test.size.counted")
class Counted(IterationEnded):
    values: list[int] = attrs.field(factory=list)


@event("test.size.noted")
class Noted(SpanEnded):
    note: str = ""


@attrs.define
class Point:
    label: str


class Strange(list):
    """A list that cannot be read."""

    def __len__(self):
        raise ValueError("strange")


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Sized, ("name", "value", "table")),
        (SpanEnded, ("name", "attributes")),
        (IterationEnded, ()),
        (Counted, ("values",)),
        (Noted, ("name", "attributes", "note")),
        (UnknownEvent, ("fields",)),
        (Event, ()),
    ],
)
def test_sized_fields(cls, expected):
    """All fields have a size but numbers, the errors of spans and the kinds of iterations."""
    assert sized_fields(cls) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(0.5, 32, id="number"),
        pytest.param(b"x" * 1_000, 64 + 1_000, id="bytes"),
        pytest.param([1] * 100, 100 * (16 + 32), id="numbers"),
        pytest.param(({2}, [None, 0.5]), 2 * 16 + (16 + 32) + 2 * (16 + 32), id="nested"),
        pytest.param({"a": 1}, 64 + (64 + 1) + 32, id="map"),
        pytest.param(Point("x" * 10), 64 + 10, id="attrs object"),
        pytest.param(Strange("ab"), 32, id="a value that raises"),
    ],
)
def test_size(value, expected):
    """Numbers take 32 bytes, elements of lists 16, entries of maps, text and bytes 64."""
    assert size_of(Sized(count=1, value=value), ["value"]) == expected


def test_text():
    """A text takes a byte for a letter, or 4 if it has others than ASCII: at least what it takes in memory."""
    texts = [letter * 10_000 for letter in "aж🙂"]
    sizes = [size_of(Sized(count=1, name=text), ["name"]) for text in texts]
    assert sizes == [64 + 10_000, 64 + 40_000, 64 + 40_000]
    assert all(size + 16 >= sys.getsizeof(text) for text, size in zip(texts, sizes, strict=True))


values = st.recursive(
    st.one_of(st.integers(), st.floats(), st.none(), st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


@given(value=values)
def test_depth(value):
    """Any value has a size, one that contains itself too."""
    loop = [value]
    loop.append(loop)
    assert size_of(Sized(count=1, value=loop), ["value"]) > size_of(Sized(count=1, value=value), ["value"])
