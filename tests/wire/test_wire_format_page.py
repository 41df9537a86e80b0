"""The numbers on the page on the wire format equal those in the code."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from trackside.events import _fields
from trackside.handlers.eventlog import _format
from trackside.handlers.zeromq import _protocol
from trackside.wire import _encoder, _values

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")


class TestFigures:
    @pytest.mark.parametrize(
        ("text", "figure"),
        [
            ("| bytes of a row | {} |", _values.MAX_ROW_BYTES),
            ("| bytes of a text | {};", _values.MAX_STRING_BYTES),
            ("| elements of a list | {} |", _values.MAX_ARRAY_LENGTH),
            ("| entries of a map, fields of a type | {} |", _fields.MAX_MAP_LENGTH),
            ("| depth of lists and maps in a field | {} |", _values.MAX_DEPTH),
            ("| characters of a wire name | {};", _fields.MAX_NAME_LENGTH),
            ("of all field names of a type {} |", _fields.MAX_SCHEMA_LENGTH),
            ("A frame has at most {} bytes", _values.MAX_FRAME_BYTES),
            ("{} rows and", _values.MAX_FRAME_ROWS),
            ("| 0 | `version` | {} |", _encoder.FRAME_VERSION),
            ("| 4 | 1 | version | {} |", _format.VERSION),
            ("a header of {} bytes", _format.HEADER_BYTES),
            ("payload has at most {} bytes", _format.MAX_PAYLOAD_BYTES),
        ],
    )
    def test_is_the_codes(self, text, figure):
        """Each limit on the page is the one that readers and writers enforce."""
        assert text.format(f"{figure:,}") in PAGE

    def test_kinds(self):
        """The same holds for the kinds of records."""
        kinds = ", ".join(f"{int(kind)} {kind.name.lower()}" for kind in _format.Kind)
        assert f"| {kinds} |" in PAGE

    def test_row(self):
        """The same holds for the places of the envelope in a row."""
        assert re.findall(r"^\| ([234]) \| `(\w+)`", PAGE, re.MULTILINE)[:3] == [
            ("2", "at_ns"),
            ("3", "span_id"),
            ("4", "step"),
        ]


KINDS = {
    "Whole": "whole",
    "Number": "number",
    "Flag": "flag",
    "Text": "text",
    "Table": "map",
    "Texts": "texts",
    "WireRule": "rule",
    "Body": "body",
}


class TestMessages:
    def test_table(self):
        """Each message is on the page, with its number and its fields in their order and of their kinds."""
        rows = re.findall(r"^\| (\d+) \| ([A-Z]\w+) \| (.*?) \| .* \|$", PAGE, re.MULTILINE)
        expected = [
            (
                str(cls.kind),
                cls.__name__,
                ", ".join(f"`{one.name}` {KINDS[one.type]}" for one in attrs.fields(cls)) or "none",
            )
            for _, cls in sorted(_protocol._KINDS.items())
        ]
        assert rows == expected

    @pytest.mark.parametrize(
        ("text", "figure"),
        [
            ("of at most {} bytes (a Verb", _protocol.MAX_HEAD_BYTES),
            ("(a Verb: {})", _protocol.MAX_VERB_BYTES),
            ("of at most {} bytes. A message", _protocol.MAX_BODY_BYTES),
            ("a *text* has at most {} characters", _protocol.MAX_TEXT),
            ("an array of at most {} of them", _protocol.MAX_NAMES),
            ("`version` is {};", _protocol.PROTOCOL_VERSION),
        ],
    )
    def test_limits(self, text, figure):
        """The limits are the code's."""
        assert text.format(f"{figure:,}") in PAGE

    @pytest.mark.parametrize(
        ("message", "parts"),
        [
            (
                _protocol.Hello(2, "viewer", "v1", "a reader"),
                ["95 01 02 a6 76 69 65 77 65 72 a2 76 31 a8 61 20 72 65 61 64 65 72"],
            ),
            (_protocol.Ack("s", 300), ["93 10 a1 73 cd 01 2c"]),
            (_protocol.FrameEntry("s", 3, 7, 0, bytes.fromhex("9702")), ["95 0d a1 73 03 07 00", "97 02"]),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_bytes(self, message, parts):
        """The messages in hex are on the page, and mean what the page says of them, in both directions."""
        assert all(f"\n{part}\n" in PAGE for part in parts)
        given = [bytes.fromhex(part) for part in parts]
        assert _protocol.encode(message) == given
        assert _protocol.decode(given) == message
