"""Events as other programs read them: by name, and as JSON."""

from __future__ import annotations

import base64
import collections
import enum
import json
import math
from typing import Any

import attrs
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.events import Event, IterationEnded, Source, SpanEventAdded, UnknownEvent, event
from trackside.testing import recorded
from trackside.wire import FrameDecoder, RowEncoder, encode_frame, fields_of, to_json, wire_name_of


class Colour(enum.Enum):
    RED = "red"


@attrs.define
class Loss:
    value: float


@event("test.export.noted")
class Noted(Event):
    value: Any = None


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def parsed(happened):
    """Return the event's line as a strict JSON reader parses it."""
    line = to_json(happened)
    assert line.isascii()
    assert "\n" not in line
    return json.loads(line, parse_constant=refuse)


def noted(value):
    return parsed(Noted(value=value))["fields"]["value"]


class TestNames:
    def test_fields(self):
        """Fields are exported by name, in order, without the envelope."""
        assert fields_of(SpanEventAdded(name="x", attributes={"a": 1})) == {"name": "x", "attributes": {"a": 1}}

    def test_unknown(self):
        """An unknown event shows the name that it was read with, and not the class that holds it."""
        unknown = UnknownEvent(name="acme.x", fields={"a": 1})
        assert (wire_name_of(unknown), fields_of(unknown)) == ("acme.x", {"a": 1})

    def test_wire_name(self):
        """A known one shows its class's name."""
        assert wire_name_of(Noted()) == "test.export.noted"


class TestLine:
    def test_keys(self):
        """A line has source, type, time, place and fields."""
        happened = IterationEnded(at_ns=9, span_id=2, parent_span_id=1, step=3, duration_ns=7, loss=0.5)
        assert parsed(recorded(happened, source=Source(id="abc", rank=4), seq=11)) == {
            "source": "abc",
            "rank": 4,
            "seq": 11,
            "time_ns": 9,
            "span_id": 2,
            "step": 3,
            "type": "trackside.iteration.ended",
            "fields": {
                "parent_span_id": 1,
                "kind": "training",
                "duration_ns": 7,
                "samples": None,
                "tokens": None,
                "flops": None,
                "loss": 0.5,
                "failed": False,
            },
        }

    def test_order(self):
        """The keys are in this order, so that people find them."""
        assert list(parsed(Noted())) == ["source", "rank", "seq", "time_ns", "span_id", "step", "type", "fields"]

    def test_not_numbered(self):
        """An event without a number yet has null there."""
        assert parsed(Noted())["seq"] is None


class TestValues:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (math.nan, "NaN"),
            (math.inf, "Infinity"),
            (-math.inf, "-Infinity"),
            ([{"a": math.nan}], [{"a": "NaN"}]),
            (numpy.float32("nan"), "NaN"),
            (numpy.float64("inf"), "Infinity"),
            (Loss(math.nan), {"value": "NaN"}),
            (b"\x00\xff", base64.b64encode(b"\x00\xff").decode()),
            ([bytearray(b"ab"), memoryview(b"ab")], ["YWI=", "YWI="]),
            ({"a": b""}, {"a": ""}),
            ({1: 2, None: 3, Colour.RED: 4, 0.5: 5}, {"1": 2, "None": 3, "red": 4, "0.5": 5}),
            ({Colour.RED: Colour.RED}, {"red": "red"}),
            ((1, 2), [1, 2]),
            ({3, 1}, [1, 3]),
            (collections.OrderedDict(a=1), {"a": 1}),
            (2**64 - 1, 2**64 - 1),
            ("line\nbreak\ttab\x00nul\x1b[31m\x7f\x85\u2028", "line\nbreak\ttab\x00nul\x1b[31m\x7f\x85\u2028"),
            ('quo"te\\', 'quo"te\\'),
            ("🚂", "🚂"),
            ("a\ud800b", "a\\ud800b"),
            (["🚂", "\udfff"], ["🚂", "\\udfff"]),
            ({"\ud800": 1}, {"\\ud800": 1}),
            ("x" * 70_000, "x" * 65_536),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_value(self, value, expected):
        """Every value is JSON that every reader accepts, as a file would hold it."""
        assert noted(value) == expected

    @pytest.mark.torch
    def test_torch(self):
        """The same holds for a loss that is a tensor and NaN."""
        import torch

        assert noted(torch.tensor(math.nan)) == "NaN"
        assert noted(torch.tensor(0.5)) == 0.5

    def test_envelope(self):
        """The same holds for a time outside the calendar."""
        assert parsed(Noted(at_ns=math.nan))["time_ns"] == "NaN"

    def test_control_characters(self):
        """No control character of a terminal is in a line."""
        line = to_json(Noted(value="".join(map(chr, range(0x2100)))))
        assert line.isprintable()

    def test_deepest(self):
        """Every value that can be recorded can be shown."""
        value = 0
        for _ in range(32):
            value = [value]
        assert noted(value) == value

    @pytest.mark.parametrize("value", [object(), {1: "a", "1": "b"}, [0] * 65_537], ids=["object", "keys", "long"])
    def test_refused(self, value):
        """A value that cannot be recorded is an error here too."""
        with pytest.raises((TypeError, ValueError)):
            to_json(Noted(value=value))

    def test_circle(self):
        """So is a list that holds itself."""
        circle = []
        circle.append(circle)
        with pytest.raises(ValueError):
            to_json(Noted(value=circle))

    def test_unchanged(self):
        """Showing an event does not change it."""
        fields = {"a": math.nan, "b": b"x"}
        unknown = UnknownEvent(name="acme.x", fields=fields)
        parsed(unknown)
        assert unknown.fields is fields
        assert fields["b"] == b"x"


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.text(st.characters(categories=["Cs", "Cc", "Co"]), max_size=5)
    | st.binary(max_size=10)
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


class TestProperty:
    @given(anything)
    def test_as_recorded(self, value):
        """An event is JSON if it can be recorded, and only then."""
        happened = Noted(value=value)
        try:
            RowEncoder().encode(happened, 0)
        except (TypeError, ValueError):
            with pytest.raises((TypeError, ValueError)):
                to_json(happened)
        else:
            parsed(happened)

    @given(anything)
    def test_same_after(self, value):
        """The JSON of an event that was read is that of the event that was written."""
        happened = Noted(value=value)
        try:
            schema, row = RowEncoder().encode(happened, 0)
        except (TypeError, ValueError):
            return
        frame = encode_frame(happened.source.id, 0, 0, dropped={}, schemas=[schema.entry], rows=[row])
        decoder = FrameDecoder()
        decoder.introduce(happened.source)
        assert parsed(decoder.decode(frame).events[0]) == {**parsed(happened), "seq": 0}
