"""The output of commands."""

from __future__ import annotations

import math

import pytest

from trackside.cli._print import EventLines, event_line, json_text
from trackside.events import CounterWindow, ExceptionRaised, IterationEnded, Source
from trackside.testing import recorded
from windows import Taken, section_window

pytestmark = pytest.mark.once


class TestEventLine:
    def test_fields(self):
        """Durations are readable, floats short, missing values a dash, booleans in lower case."""
        given = IterationEnded(
            at_ns=0, parent_span_id=0, step=7, duration_ns=250_000_000, loss=1 / 3, samples=None, failed=True
        )

        assert event_line(recorded(given, source=Source(rank=12), seq=345)) == (
            "00:00:00.000Z  rank 12            345  step 7      trackside.iteration.ended"
            "  parent_span_id=0 kind=training duration_ns=250 ms samples=- tokens=- flops=- loss=0.333333 failed=true"
        )


def test_line_of_sections():
    """A window of sections is one line: its steps, and how long each section takes, the longest first."""
    given = section_window({"load": Taken(0, 2e6, 9), "forward": Taken(0, 3.5e6, 9)}, window=2)

    assert EventLines(width=200)(recorded(given)).endswith("section.window  steps 20-29  forward 3.5 ms  load 2 ms")


@pytest.mark.parametrize(
    ("kind", "unit", "count", "values", "line"),
    [
        ("stat", "nats", 13, {"mean": 0.25, "sum": 3.25, "max": 1.0}, "13 values  mean=0.25 nats  max=1 nats"),
        ("counter", "", 2, {"sum": 4096.0}, "2 values  sum=4,096  total=12,288"),
        ("gauge", "By", 1, {"mean": 2048.0, "min": 2048.0, "value": 2048.0}, "value=2 KiB"),
        ("gauge", "1", 2, {"mean": 0.5, "value": 0.75}, "2 values  value=0.75  mean=0.5"),
    ],
)
def test_line_of_a_counter(kind, unit, count, values, line):
    """A window says what matters of its kind: a total, a mean without a sum, or one value, in a unit that suits it."""
    bounds = {"at_ns": 0, "start_ns": 0, "end_ns": 1, "total_count": 9, "total_sum": 12_288.0}
    given = CounterWindow(name="acme.x", kind=kind, unit=unit, count=count, values=values, **bounds)

    assert EventLines(width=200)(recorded(given)).endswith(f"counter.window  acme.x  {line}")


def test_json_has_no_nan():
    """JSON that a command prints has null where a number is not finite."""
    assert json_text({"a": [1.5, math.nan], "b": {"c": -math.inf}}) == '{"a": [1.5, null], "b": {"c": null}}'


def test_traceback():
    """The lines of a traceback follow the line of its event, with control characters escaped."""
    given = ExceptionRaised(
        at_ns=0, span_id=0, step=1, type="ValueError", message="no", traceback="Traceback:\n  x\x1b[2J\n"
    )
    first, *rest = event_line(recorded(given)).splitlines()
    assert "type=ValueError message=no" in first
    assert "Traceback" not in first
    assert rest == ["    Traceback:", "      x\\x1b[2J"]
