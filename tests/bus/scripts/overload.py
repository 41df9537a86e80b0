"""
Log to handlers that block or refuse: ``overload.py EVENTS``.

A queued handler that blocks for ever and a frame sink that refuses every frame; a model reads along. Prints the counts
and how much the process grew, as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path

from trackside.bus import Bus
from trackside.events import LIFECYCLE, Event, RunsOn, event


@event("test.overload.ticked", priority=LIFECYCLE)
class Ticked(Event):
    number: int
    text: str


class Refuser:
    lost = 0

    def open(self, source):
        """Do nothing."""

    def accept(self, frame, *, events):
        """Refuse."""
        return False

    def flush(self, timeout_s):
        """Do nothing."""
        return True

    def close(self, timeout_s):
        """Do nothing."""
        return True

    def after_fork(self, source):
        """Do nothing."""


class Model:
    runs_on = RunsOn.DISPATCHER

    def __init__(self):
        self.read = 0
        self.missed_events = 0

    def __call__(self, one):
        """Count."""
        self.read += 1

    def missed(self, source, count):
        """Count."""
        self.missed_events += count


def resident_bytes():
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def main(count):
    logging.disable(logging.WARNING)
    bus = Bus()
    model = Model()
    never = threading.Event()
    blocked = bus.subscribe(lambda _event: never.wait(), to=Ticked, runs_on=RunsOn.WORKER)
    refused = bus.subscribe(Refuser(), to=Ticked)
    read = bus.subscribe(model, to=Ticked)
    # Everything is in place and has run once before the process is measured.
    for number in range(1000):
        bus.log(Ticked(number=number, text="x" * 300))
    bus.flush(0.2)
    before = peak = resident_bytes()
    for number in range(count):
        # A text of its own for each event, so that memory is not shared.
        bus.log(Ticked(number=number, text=f"{number:0300}"))
        if number % 10_000 == 0:
            peak = max(peak, resident_bytes())
    bus.flush(2.0)
    peak = max(peak, resident_bytes())
    stats = [one.stats() for one in (blocked, refused, read)]
    keys = ("logged", "handled", "dropped", "in_queue", "balance")
    print(
        json.dumps(
            {
                "grown_mib": (peak - before) / 2**20,
                "blocked": {key: getattr(stats[0], key) for key in keys},
                "refused": {key: getattr(stats[1], key) for key in keys},
                "read": {key: getattr(stats[2], key) for key in keys},
                "model": [model.read, model.missed_events],
                "dropped_by_type": bus.stats().dropped_by_type,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
