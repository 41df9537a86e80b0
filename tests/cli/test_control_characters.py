"""Text from a log never steers a terminal, in any command's output."""

from __future__ import annotations

import time

import pytest

from trackside.bus import Bus
from trackside.events import (
    IterationEnded,
    Source,
    SpanEnded,
    SpanStarted,
    UnknownEvent,
)
from trackside.handlers import EventLog
from windows import section_window

pytestmark = pytest.mark.once

EVIL = "\x1b[2J\x07\r\n\x9b1m\u202e"
COMMANDS = ["runs", "info", "tail", "scores", "goodput", "export --jsonl -"]


@pytest.fixture(scope="module")
def evil_log(tmp_path_factory):
    """Give a log in which every free text would clear a terminal, ring its bell and reverse its text."""
    directory = tmp_path_factory.mktemp("evil")
    source = Source(
        run_id=EVIL, session_tag=EVIL, host=EVIL, application=EVIL, perf_tags=(EVIL,), metadata={EVIL: EVIL}
    )
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL}
    events = [
        SpanStarted(span_id=1, parent_span_id=0, name=EVIL, attributes={EVIL: EVIL}),
        SpanEnded(span_id=2, parent_span_id=1, name=EVIL, duration_ns=5, attributes={"badput_type": EVIL}, error=error),
        section_window({EVIL: 1.0}, steps=2, at_ns=time.time_ns()),
        UnknownEvent(name=EVIL, fields={EVIL: EVIL}),
        *(IterationEnded(step=step, duration_ns=10**6) for step in range(3)),
    ]
    with Bus(source=source) as bus:
        bus.subscribe(EventLog(directory))
        for event in events:
            bus.log(event)
        bus.end(EVIL)
    assert bus.stats().lost == 0
    return directory


class TestControlCharacters:
    @pytest.mark.parametrize("line", [*COMMANDS, *(f"{name} --json" for name in COMMANDS[:-1])])
    def test_are_escaped(self, command, evil_log, line):
        """No unprintable character reaches the terminal but the end of a line."""
        name, *options = line.split()
        outcome = command(name, evil_log, *options)

        assert outcome.code == 0
        assert "[2J" in outcome.out
        assert [char for char in outcome.out + outcome.err if not char.isprintable() and char != "\n"] == []
