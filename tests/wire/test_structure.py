"""Plain data to declared types: the values that a type accepts, and those that it refuses."""

from __future__ import annotations

import collections.abc
import datetime
import enum
import pathlib
import threading
import typing
from typing import Any, Optional, Union

import attrs
import numpy
import pytest

from trackside.wire._structure import structured


class Colour(enum.Enum):
    RED = "red"


class Kind(str, enum.Enum):
    TEXT = "text"


class Level(enum.IntEnum):
    LOW = 1


@attrs.define
class Point:
    x: int
    y: float = 0.0
    names: list[str] = attrs.Factory(list)


@attrs.define
class Line:
    start: Point
    end: Point | None = None


UTC_PLUS_2 = datetime.timezone(datetime.timedelta(hours=2))


class TestAccepted:
    @pytest.mark.parametrize(
        ("value", "hint", "expected"),
        [
            (1, int, 1),
            (1, float, 1.0),
            ("a", str, "a"),
            (b"a", bytes, b"a"),
            (None, type(None), None),
            ([1, "a"], Any, [1, "a"]),
            ([1], list, [1]),
            ({"a": 1}, dict, {"a": 1}),
            ([1, 2], list[int], [1, 2]),
            ([1, 2], list[float], [1.0, 2.0]),
            ([1, 2], typing.List[int], [1, 2]),  # noqa: UP006  users write it
            ([1, 2], tuple[int, ...], (1, 2)),
            ([1, "a"], tuple[int, str], (1, "a")),
            ([1, 1, 2], set[int], {1, 2}),
            ([1], frozenset[int], frozenset({1})),
            ([1, 2], tuple, (1, 2)),
            ({"a": [1]}, dict[str, list[int]], {"a": [1]}),
            ({"7": 1.5}, dict[int, float], {7: 1.5}),
            ({"red": 1}, dict[Colour, int], {Colour.RED: 1}),
            (None, Optional[int], None),  # noqa: UP045  users write it
            (3, Union[str, int], 3),  # noqa: UP007  users write it
            (3, int | None, 3),
            (3, float | None, 3.0),
            ("a", int | str, "a"),
            ([1], int | list[int], [1]),
            ("red", Colour, Colour.RED),
            ("text", Kind, Kind.TEXT),
            (1, Level, Level.LOW),
            ("b", typing.Literal["a", "b"], "b"),
            ({"x": 1, "y": 2}, Point, Point(1, 2.0)),
            ({"start": {"x": 1}, "end": None}, Line, Line(Point(1))),
            ({"x": 1, "later": 5}, Point, Point(1)),
            ([{"x": 1}], list[Point], [Point(1)]),
            ("2026-11-20T12:00:00+02:00", datetime.datetime, datetime.datetime(2026, 11, 20, 12, tzinfo=UTC_PLUS_2)),
            ("2026-11-20", datetime.date, datetime.date(2026, 11, 20)),
            (1.5, datetime.timedelta, datetime.timedelta(seconds=1.5)),
            ("/runs/7", pathlib.Path, pathlib.Path("/runs/7")),
            ("/runs/7", pathlib.PurePosixPath, pathlib.PurePosixPath("/runs/7")),
        ],
    )
    def test_value(self, value, hint, expected):
        """A value of the declared type, or one that unambiguously stands for it, is converted."""
        result = structured(value, hint)
        assert result == expected
        assert type(result) is type(expected)


class TestForeign:
    @pytest.mark.parametrize("hint", [collections.abc.Callable, numpy.float32, threading.Thread], ids=str)
    def test_value(self, hint):
        """A value of a type without a conversion from plain data is left as it was written."""
        assert structured(0.5, hint) == 0.5


class TestRefused:
    @pytest.mark.parametrize(
        ("value", "hint"),
        [
            ("7", int),
            (7, str),
            (1.0, int),
            (True, int),
            (True, float),
            (1, bool),
            ("1.5", float),
            (b"a", str),
            ("a", bytes),
            (0, type(None)),
            ("ab", list[str]),
            ({"a": 1}, list[str]),
            ([], dict[str, int]),
            ([], dict),
            ({}, list),
            ("ab", tuple[str, str]),
            ([1], tuple[int, str]),
            (["a"], list[int]),
            ({"a": "b"}, dict[str, int]),
            ({"a": 1}, dict[int, int]),
            ("a", int | None),
            ("a", int | list[int]),
            ("green", Colour),
            (2, Level),
            ("c", typing.Literal["a", "b"]),
            ({}, Point),
            ({"x": "1"}, Point),
            ({"x": 1, "names": "ab"}, Point),
            ("x", Point),
            ("yesterday", datetime.datetime),
            (5, datetime.datetime),
            ("1", datetime.timedelta),
            (5, pathlib.Path),
        ],
    )
    def test_value(self, value, hint):
        """A value of another type is refused, and not converted."""
        with pytest.raises(Exception):  # noqa: B017  the class of the error does not matter
            structured(value, hint)
