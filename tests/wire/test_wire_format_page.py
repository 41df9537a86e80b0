"""The page on the wire format: its figures are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trackside.events import _schema
from trackside.handlers.eventlog import _format
from trackside.wire import _frames, _values

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text(encoding="utf-8")


class TestFigures:
    @pytest.mark.parametrize(
        ("text", "figure"),
        [
            ("| bytes of a row | {} |", _values.MAX_ROW_BYTES),
            ("| bytes of a text | {};", _values.MAX_STRING_BYTES),
            ("| elements of a list | {} |", _values.MAX_ARRAY_LENGTH),
            ("| entries of a map, fields of a type | {} |", _schema.MAX_MAP_LENGTH),
            ("| depth of lists and maps in a field | {} |", _values.MAX_DEPTH),
            ("| characters of a wire name | {};", _schema.MAX_NAME_LENGTH),
            ("of all field names of a type {} |", _schema.MAX_SCHEMA_LENGTH),
            ("A frame has at most {} bytes", _values.MAX_FRAME_BYTES),
            ("{} rows and", _values.MAX_FRAME_ROWS),
            ("| 0 | `version` | {} |", _frames.FRAME_VERSION),
            ("| 4 | 1 | version | {} |", _format.VERSION),
            ("a header of {} bytes", _format.HEADER_BYTES),
            ("payload has at most {} bytes", _format.MAX_PAYLOAD_BYTES),
        ],
    )
    def test_is_the_codes(self, text, figure):
        """Each limit on the page is the one that readers and writers keep."""
        assert text.format(f"{figure:,}") in PAGE

    def test_kinds(self):
        """So are the kinds of records."""
        kinds = ", ".join(f"{int(kind)} {kind.name.lower()}" for kind in _format.Kind)
        assert f"| {kinds} |" in PAGE

    def test_row(self):
        """And the places of the envelope in a row."""
        assert re.findall(r"^\| ([234]) \| `(\w+)`", PAGE, re.MULTILINE)[:3] == [
            ("2", "at_ns"),
            ("3", "span_id"),
            ("4", "step"),
        ]
