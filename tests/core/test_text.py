"""Numbers in readable form."""

from __future__ import annotations

import pytest

from trackside.core import text

pytestmark = pytest.mark.once


class TestDuration:
    @pytest.mark.parametrize(
        ("length_ns", "expected"),
        [
            (None, "–"),
            (0, "0 s"),
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (22_149_000, "22.1 ms"),
            (-2e9, "-2 s"),
            (90e9, "1.5 min"),
            (5_400e9, "1.5 h"),
            (3.6e12 * 12_345, "12,345 h"),
            (999_900_000, "1,000 ms"),
        ],
    )
    def test_unit(self, length_ns, expected):
        """A duration has three digits, in the largest unit of which it is at least one."""
        assert text.duration(length_ns) == expected

    def test_seconds(self):
        """Seconds are written like the same number of ns."""
        assert (text.seconds(0.0221), text.seconds(None)) == ("22.1 ms", "–")


class TestAmount:
    @pytest.mark.parametrize(
        ("value", "unit", "expected"),
        [
            (None, "By", "–"),
            (512, "By", "512 B"),
            (1_536, "bytes", "1.5 KiB"),
            (3 * 2**30, "B", "3 GiB"),
            (13_268.4, "tokens/s", "13,268 tokens/s"),
            (2.14001, "nats", "2.14 nats"),
            (7.0, "", "7"),
        ],
    )
    def test_unit(self, value, unit, expected):
        """Bytes are in the unit that keeps the number short, all other values in their own unit."""
        assert text.amount(value, unit) == expected

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            ("duration_ns", 32_749_049, "32.7 ms"),
            ("start_ns", 1_796_000_000 * 10**9, "2026-11-30 00:53:20Z"),
            ("size_bytes", 2_048, "2 KiB"),
            ("worker", 3, "3"),
        ],
    )
    def test_named(self, name, value, expected):
        """The end of a name says the unit of its value; nanoseconds since the epoch are a time."""
        assert text.amount_of(name, value) == expected


class TestClock:
    @pytest.mark.parametrize(
        ("at_ns", "has_ms", "expected"),
        [
            (1_769_860_800_123_999_999, False, "2026-01-31 12:00:00Z"),
            (1_769_860_800_123_999_999, True, "2026-01-31 12:00:00.123Z"),
            (-1, True, "1969-12-31 23:59:59.999Z"),
            (10**30, True, f"{10**30} ns"),
            (None, True, "–"),
        ],
    )
    def test_utc(self, at_ns, has_ms, expected):
        """A time is that of UTC; a time outside the calendar stays a number."""
        assert text.clock(at_ns, has_ms=has_ms) == expected


class TestClockTicks:
    def test_within(self):
        """No time is written that lies before the first moment or after the last one."""
        start_ns, end_ns = 1_700_000_000_700_000_000, 1_700_000_003_200_000_000
        assert [at_ns for at_ns, _ in text.clock_ticks(start_ns, end_ns)] == [
            1_700_000_001_000_000_000,
            1_700_000_002_000_000_000,
            1_700_000_003_000_000_000,
        ]

    def test_ends(self):
        """Both ends are written where they are round themselves."""
        start_ns, end_ns = 1_700_000_001_000_000_000, 1_700_000_002_000_000_000
        assert [at_ns for at_ns, _ in text.clock_ticks(start_ns, end_ns)] == [start_ns, end_ns]


class TestRanges:
    @pytest.mark.parametrize(
        ("numbers", "most", "expected"),
        [([], None, ""), ([3], None, "3"), ([7, 0, 1, 7, 3], None, "0-1, 3, 7"), ([0, 1, 5], 1, "0-1 …")],
    )
    def test_neighbours(self, numbers, most, expected):
        """Numbers come in order, each once, neighbours as a range; an ellipsis stands for those that do not fit."""
        assert text.ranges(numbers, most=most) == expected


class TestShares:
    def test_percent(self):
        """A share is a percentage, a change has its sign."""
        assert (text.percent(0.576), text.percent(1.0, 0), text.change(-0.0271)) == ("57.6 %", "100 %", "-2.71 %")

    def test_step(self):
        """A step is named after its number; -1, the number of none, is not."""
        assert (text.step(7), text.step(0, "at"), text.step(-1)) == (
            "after step 7",
            "at step 0",
            "before its first step",
        )

    def test_plural(self):
        """One is singular, all else plural."""
        assert (text.plural(1, "log"), text.plural(0, "log"), text.plural(1_200, "log")) == (
            "1 log", "0 logs", "1,200 logs",
        )  # fmt: skip


class TestPrintable:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [("ünïcode 中", "ünïcode 中"), ("\x1b[2J", r"\x1b[2J"), ("\u202e", r"\u202e"), ("\ud800", r"\ud800")],
    )
    def test_escapes(self, given, expected):
        """Control characters, invisible ones and lone surrogates are escaped, and nothing else is."""
        assert text.printable(given) == expected
