"""Values on the wire: the conversion of each kind, and the limits."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import math
import pathlib

import attrs
import msgpack
import numpy
import pytest

from trackside.events import DecodeError
from trackside.events._fields import check_schema
from trackside.wire._values import check_plain, is_sound, mended, plain, unpack, weigh


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@attrs.define
class Point:
    x: int
    y: object = None


def nested(depth, inner=0):
    """Return *depth* lists within one another."""
    value = inner
    for _ in range(depth):
        value = [value]
    return value


class TestPlain:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (Colour.RED, "red"),
            (Point(1, 2), {"x": 1, "y": 2}),
            ({3, 1, 2}, [1, 2, 3]),
            (frozenset({"b", "a"}), ["a", "b"]),
            (datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.timezone.utc), "2026-11-20T12:00:00+00:00"),
            (datetime.date(2026, 11, 20), "2026-11-20"),
            (datetime.timedelta(milliseconds=1500), 1.5),
            (msgpack.Timestamp(1, 500_000_000), 1.5),
            (pathlib.PurePosixPath("/runs/7"), "/runs/7"),
            (numpy.int64(-7), -7),
            (numpy.uint64(2**64 - 1), 2**64 - 1),
            (numpy.float32(0.5), 0.5),
            (numpy.bool_(True), True),
            (numpy.array(3), 3),
            (numpy.array([3.5]), 3.5),
        ],
    )
    def test_value(self, value, expected):
        """A value that msgpack does not know becomes one that it does."""
        result = plain(value)
        assert result == expected
        assert type(result) is type(expected)

    @pytest.mark.torch
    def test_torch(self):
        """So does a tensor of one number, on a graph or not."""
        import torch

        assert plain(torch.tensor(0.5)) == 0.5
        assert plain(torch.tensor(0.5, requires_grad=True)) == 0.5
        assert plain(torch.tensor([7])) == 7
        assert plain(torch.tensor(True)) is True

    def test_mixed_set(self):
        """A set without an order is written in the same order each time."""
        assert plain({None, "a", 1}) == plain({1, "a", None})

    def test_set_of_members(self):
        """Members of an enum have none."""
        assert set(plain(set(Colour))) == set(Colour)

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            print,
            1j,
            decimal.Decimal(1),
            range(3),
            (entry for entry in ()),
            ValueError("x"),
            numpy.complex64(1),
            numpy.datetime64("2026-11-20"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_refused(self, value):
        """A value without a sensible plain form is refused."""
        with pytest.raises(TypeError):
            plain(value)

    def test_array(self):
        """So is an array of several numbers, which would be long."""
        with pytest.raises(ValueError):
            plain(numpy.zeros(3))


class TestMended:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (None, None),
            (True, True),
            (-(2**63), -(2**63)),
            (0.1, 0.1),
            ("ünï", "ünï"),
            (b"\xff", b"\xff"),
            (bytearray(b"a"), b"a"),
            (memoryview(b"abcd")[::2], b"ac"),
            ((1, (2, 3)), [1, [2, 3]]),
            ({"a": (1,)}, {"a": [1]}),
            ({1: "a", None: "b", Colour.RED: "c"}, {"1": "a", "None": "b", "red": "c"}),
            (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
            (Point(1, Point(2, {Colour.BLUE})), {"x": 1, "y": {"x": 2, "y": [2]}}),
            ([pathlib.PurePosixPath("a")], ["a"]),
            (numpy.float64(0.5), 0.5),
            (collections.Counter("aab"), {"a": 2, "b": 1}),
            (msgpack.ExtType(5, b"a"), b"a"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_value(self, value, expected):
        """All values inside are plain afterwards."""
        assert mended(value) == (expected, 0)

    @pytest.mark.parametrize("value", [numpy.float64(1), numpy.int32(1), enum.IntEnum("E", "A").A, True])
    def test_exact(self, value):
        """Numbers are of Python's own types."""
        assert type(mended(value)[0]) in (int, float, bool)

    def test_lone_surrogate(self):
        """A lone surrogate has no UTF-8, and becomes its escape."""
        assert mended("a\udc80b") == ("a\\udc80b", 0)

    def test_longest(self):
        """A string of 64 KiB is kept."""
        assert mended("a" * 65_536) == ("a" * 65_536, 0)

    def test_cut(self):
        """A longer one is cut to 64 KiB, and counted."""
        assert mended("a" * 65_537) == ("a" * 65_536, 1)

    @pytest.mark.parametrize(
        ("character", "kept"),
        [("ü", 32_768), ("€", 21_845), ("🚂", 16_384)],
        ids=["two bytes", "three bytes", "four bytes"],
    )
    def test_cut_characters(self, character, kept):
        """The cut is between characters: 64 KiB hold so many of two, three or four bytes."""
        assert mended(character * 70_000) == (character * kept, 1)
        assert mended(character * kept) == (character * kept, 0)

    def test_cut_within(self):
        """Each string within counts, keys too."""
        long = "a" * 65_537
        cut = "a" * 65_536
        assert mended({long: [long, {"b": long}], "c": "d"}) == ({cut: [cut, {"b": cut}], "c": "d"}, 3)

    def test_equal_keys(self):
        """Two keys that become equal would lose an entry: refused."""
        with pytest.raises(ValueError, match="two keys"):
            mended({1: "a", "1": "b"})

    def test_equal_cut_keys(self):
        """The same holds if they become equal by being cut."""
        with pytest.raises(ValueError, match="two keys"):
            mended({"a" * 65_537: 1, "a" * 65_538: 2})

    def test_deepest(self):
        """Lists and maps may be nested 32 deep."""
        assert mended(nested(32)) == (nested(32), 0)

    @pytest.mark.parametrize("value", [nested(33), nested(32, inner=[]), nested(32, inner={})])
    def test_too_deep(self, value):
        """Deeper ones are refused."""
        with pytest.raises(ValueError, match="deeper than 32"):
            mended(value)

    def test_circle(self):
        """A list that holds itself counts as too deep."""
        circle = []
        circle.append(circle)
        with pytest.raises(ValueError, match="deeper than 32"):
            mended(circle)

    def test_circle_of_objects(self):
        """So is an object that holds itself."""
        point = Point(1)
        point.y = point
        with pytest.raises(ValueError, match="deeper than 32"):
            mended(point)

    def test_longest_list(self):
        """A list has at most 65,536 elements."""
        assert len(mended([0] * 65_536)[0]) == 65_536
        with pytest.raises(ValueError, match="65537 elements; at most 65536"):
            mended([0] * 65_537)

    def test_largest_map(self):
        """A map has at most 1,024 entries."""
        assert len(mended({str(key): 0 for key in range(1024)})[0]) == 1024
        with pytest.raises(ValueError, match="1025 entries; at most 1024"):
            mended({str(key): 0 for key in range(1025)})


class TestCheckPlain:
    @pytest.mark.parametrize("value", [1, 0.5, "a", b"a", None, True, [], {}, [{"a": [1]}], nested(32)])
    def test_plain(self, value):
        """A value that msgpack reads back unchanged is plain."""
        assert check_plain([value]) is None

    @pytest.mark.parametrize(
        "value",
        [
            {1: 2},
            {b"a": 2},
            [{"a": {None: 1}}],
            (1,),
            numpy.float64(1),
            Colour.RED,
            object(),
            msgpack.ExtType(1, b""),
            bytearray(),
            collections.OrderedDict(),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_else(self, value):
        """No other value is."""
        with pytest.raises(TypeError):
            check_plain([value])

    @pytest.mark.parametrize("value", [nested(33), nested(32, inner={}), {"a": nested(32)}])
    def test_deep(self, value):
        """Nor is a value nested deeper than 32."""
        with pytest.raises(ValueError):
            check_plain([value])


class TestIsSound:
    @pytest.mark.parametrize("value", [[], {}, nested(32), {"a": nested(31)}, [{"a": {"b": []}}] * 3])
    def test_sound(self, value):
        """Maps with text keys, up to 32 deep, are sound."""
        assert is_sound(value)

    @pytest.mark.parametrize(
        "value", [nested(33), nested(32, inner=[]), nested(32, inner={}), {"a": nested(32)}, {b"a": 1}, [{"a": {1: 2}}]]
    )
    def test_unsound(self, value):
        """Deeper ones, and other keys, are not."""
        assert not is_sound(value)

    @pytest.mark.parametrize("value", [nested(depth) for depth in range(1, 40)] + [nested(d, {}) for d in range(1, 40)])
    def test_as_written(self, value):
        """Every value that may be written may be read, and no other."""
        try:
            mended(value)
        except ValueError:
            writable = False
        else:
            writable = True
        assert is_sound(value) == writable


class TestCheckSchema:
    def test_accepted(self):
        """A type is written as a name, a version and some names of fields."""
        assert check_schema("a.b", 1, ["x", "y"]) is None

    def test_limits(self):
        """A name has 128 characters, a type 1,024 fields, their names 16,384 characters together."""
        assert check_schema("a" * 128, 1, [f"{number:016d}" for number in range(1024)]) is None

    @pytest.mark.parametrize(
        ("name", "version", "names"),
        [
            (1, 1, []),
            (b"a", 1, []),
            ("a", "1", []),
            ("a", True, []),
            ("a", 1.0, []),
            ("a", 1, None),
            ("a", 1, "xy"),
            ("a", 1, {"x": 1}),
            ("a", 1, ["x", 1]),
            ("a", 1, ["x", ["y"]]),
        ],
    )
    def test_types(self, name, version, names):
        """Other values are refused."""
        with pytest.raises(TypeError):
            check_schema(name, version, names)

    @pytest.mark.parametrize(
        ("name", "names"),
        [
            ("a" * 129, []),
            ("a", [str(number) for number in range(1025)]),
            ("a", ["x" * 16_385]),
            ("a", ["x", "y", "x"]),
            ("a", ["x", "step"]),
        ],
    )
    def test_values(self, name, names):
        """So are names that are too long, too many, or repeated."""
        with pytest.raises(ValueError):
            check_schema(name, 1, names)


class TestUnpack:
    def test_value(self):
        """Packed data is unpacked unchanged."""
        assert unpack(msgpack.packb([1, "ü", {"a": b"b", "c": None}])) == [1, "ü", {"a": b"b", "c": None}]

    def test_size(self):
        """Data that is too large is refused before it is parsed."""
        with pytest.raises(DecodeError, match="11 bytes; at most 10"):
            unpack(b"\xc0" * 11, max_bytes=10)

    @pytest.mark.parametrize("data", ["text", None, 5, [1]], ids=lambda value: type(value).__name__)
    def test_no_bytes(self, data):
        """An argument that is no bytes is an error of the caller."""
        with pytest.raises((DecodeError, TypeError)):
            unpack(data)

    def test_nan(self):
        """NaN is unpacked as NaN."""
        assert math.isnan(unpack(msgpack.packb(math.nan)))


class TestWeigh:
    def test_strings(self):
        """A thousand long strings weigh what they hold, and a little more."""
        assert 1_000_000 < weigh({str(key): "x" * 1000 for key in range(1000)}) < 1_500_000

    def test_nested(self):
        """Nested values count."""
        assert weigh([["x" * 1000]]) > 1000
