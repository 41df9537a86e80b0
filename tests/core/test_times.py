"""Times as people write them."""

from __future__ import annotations

import pytest

from trackside.core.times import time_ns
from trackside.events import ConfigError

pytestmark = pytest.mark.once

NOON_NS = 1_769_860_800 * 10**9
"""2026-01-31 12:00:00 UTC."""


class TestTime:
    @pytest.mark.parametrize(
        "text",
        [
            "2026-01-31T12:00:00Z",
            "2026-01-31t12:00z",
            "2026-01-31 12:00:00.000000000Z",
            "2026-01-31T12:00:00,0Z",
            "2026-01-31T13:00:00+01:00",
            "2026-01-31T06:30:00-0530",
            "2026-01-31T14:00+02",
            "20260131T120000Z",
            "1769860800",
            "1769860800.0",
        ],
    )
    def test_same(self, text):
        """All these notations give the same moment."""
        assert time_ns("--from", text) == NOON_NS

    @pytest.mark.parametrize(
        "text", ["2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.1234567894Z", "1769860800.123456789"]
    )
    def test_exact(self, text):
        """A time is exact to the nanosecond."""
        assert time_ns("--from", text) == NOON_NS + 123_456_789

    @pytest.mark.parametrize("text", ["2026-01-31T12:00:00", "2026-01-31", "20260131T1200"])
    def test_naive(self, text):
        """A time without a zone is refused."""
        with pytest.raises(ConfigError, match="has no time zone"):
            time_ns("--from", text)

    @pytest.mark.parametrize(
        "text",
        ["", "now", "-5", "nan", "1e9", "2026-02-30T00:00:00Z", "2026-01-31T25:00Z", "2026-01-31T12:00+99", "٣"],
    )
    def test_no_time(self, text):
        """A text that is no time is refused, with a valid example."""
        with pytest.raises(ConfigError, match=r"--from: got .*; give a time as 2026-01-31T12:00:00Z or in seconds"):
            time_ns("--from", text)

    @pytest.mark.parametrize("text", ["1769860800000", "1969-12-31T23:59:59Z", "9999-01-01T00:00Z"])
    def test_impossible(self, text):
        """Numbers of milliseconds, and times before 1970, are refused."""
        with pytest.raises(ConfigError, match="no job ran then"):
            time_ns("--to", text)
