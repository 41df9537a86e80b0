"""The output of commands."""

from __future__ import annotations

import math

import pytest

from trackside.cli._print import EventLines, event_line, json_text
from trackside.events import ExceptionRaised, IterationEnded, SectionWindow, Source

pytestmark = pytest.mark.once


class TestEventLine:
    def test_fields(self):
        """Durations are readable, floats short, missing values a dash, booleans in lower case."""
        given = IterationEnded(
            at_ns=0, parent_span_id=0, step=7, duration_ns=250_000_000, loss=1 / 3, samples=None, failed=True
        )
        given._source, given._seq = Source(rank=12), 345

        assert event_line(given) == (
            "00:00:00.000Z  rank 12            345  step 7      trackside.iteration.ended"
            "  parent_span_id=0 kind=training duration_ns=250 ms samples=- tokens=- flops=- loss=0.333333 failed=true"
        )


def test_line_of_sections():
    """A window of sections is one line: its steps, and how long each section takes, the longest first."""
    times = {name: [0.0, 0.0] for name in ("min_ns", "max_ns", "median_ns", "std_ns")} | {"mean_ns": [2e6, 3.5e6]}
    counted = {"counts": [9, 9], "entries": [9, 9]}
    steps = {"window": 3, "first_step": 20, "last_step": 29, "start_ns": 0}
    given = SectionWindow(at_ns=0, step=29, names=["load", "forward"], **steps, **counted, **times)
    given._source = Source()

    assert EventLines(width=200)(given).endswith("section.window  steps 20-29  forward 3.5 ms  load 2 ms")


def test_json_has_no_nan():
    """JSON that a command prints has null where a number is not finite."""
    assert json_text({"a": [1.5, math.nan], "b": {"c": -math.inf}}) == '{"a": [1.5, null], "b": {"c": null}}'


def test_traceback():
    """The lines of a traceback follow the line of its event, with control characters escaped."""
    given = ExceptionRaised(
        at_ns=0, span_id=0, step=1, type="ValueError", message="no", traceback="Traceback:\n  x\x1b[2J\n"
    )
    given._source, given._seq = Source(), 0
    first, *rest = event_line(given).splitlines()
    assert "type=ValueError message=no" in first
    assert "Traceback" not in first
    assert rest == ["    Traceback:", "      x\\x1b[2J"]
