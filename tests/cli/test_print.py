"""Text for terminals."""

from __future__ import annotations

import pytest

from trackside.cli._print import clock_text, duration_text, event_line, printable
from trackside.events import IterationEnded, Source

pytestmark = pytest.mark.once


class TestPrintable:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("plain, and ünïcode 中", "plain, and ünïcode 中"),
            ("\x1b[2J", r"\x1b[2J"),
            ("a\nb\tc\r", r"a\nb\tc\r"),
            ("\x00\x7f\x9b", r"\x00\x7f\x9b"),
            ("\u202e\u200b\ufeff", r"\u202e\u200b\ufeff"),
            ("\ud800", r"\ud800"),
            ("", ""),
        ],
    )
    def test_escapes(self, text, expected):
        """Control characters, invisible ones and halves of pairs are escaped, and nothing else is."""
        assert printable(text) == expected


class TestClockText:
    @pytest.mark.parametrize(
        ("at_ns", "expected"),
        [
            (0, "1970-01-01 00:00:00.000Z"),
            (1_769_860_800_123_999_999, "2026-01-31 12:00:00.123Z"),
            (-1, "1969-12-31 23:59:59.999Z"),
            (None, "-"),
            (2**70, f"{2**70} ns"),
        ],
    )
    def test_times(self, at_ns, expected):
        """A time is shown in UTC, to the millisecond; what no calendar has, as a number."""
        assert clock_text(at_ns) == expected


class TestDurationText:
    @pytest.mark.parametrize(
        ("duration_ns", "expected"),
        [
            (0, "0 ns"),
            (999, "999 ns"),
            (1500, "1.5 µs"),
            (12_345_678, "12.35 ms"),
            (59 * 10**9, "59 s"),
            (90 * 10**9, "1.5 min"),
            (3600 * 10**9, "1 h"),
            (-2 * 10**9, "-2 s"),
        ],
    )
    def test_units(self, duration_ns, expected):
        """A duration is shown in the unit that suits it."""
        assert duration_text(duration_ns) == expected


class TestEventLine:
    def test_fields(self):
        """Durations are readable, floats short, what is not there a dash, truth in lower case."""
        given = IterationEnded(
            at_ns=0, parent_span_id=0, step=7, duration_ns=250_000_000, loss=1 / 3, samples=None, failed=True
        )
        given._source, given._seq = Source(rank=12), 345

        assert event_line(given) == (
            "00:00:00.000Z  rank 12            345  step 7      trackside.iteration.ended"
            "  parent_span_id=0 kind=training duration_ns=250 ms samples=- tokens=- flops=- loss=0.333333 failed=true"
        )
