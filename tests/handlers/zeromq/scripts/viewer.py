"""
Watch a job until it ends, and print the events read; started by tests that stop or kill it.

It assumes that it was stopped when it did not run for a second, and that it has caught up when events are less than two
tenths of a second old.
"""

from __future__ import annotations

import json
import sys
import time

import trackside
from trackside.events import UnknownEvent, clock


def main(endpoint, name):
    with trackside.attach(endpoint, to=name) as viewer:
        viewer.wait(30)
        print("ready", flush=True)
        numbers, caught_up_s = [], None
        awake_s = stopped_s = time.monotonic()
        while events := viewer.read(0.2) or not viewer.is_over:
            now_s = time.monotonic()
            if now_s - awake_s > 1.0:
                stopped_s, caught_up_s = now_s, None
            awake_s = now_s
            if events is True:
                continue
            if caught_up_s is None and clock.now_ns() - events[-1].at_ns < 200_000_000:
                caught_up_s = time.monotonic() - stopped_s
            numbers += [event.fields["number"] for event in events if isinstance(event, UnknownEvent)]
        print(
            json.dumps(
                {
                    "count": len(numbers),
                    "lost": viewer.lost,
                    "in_order": numbers == sorted(set(numbers)),
                    "last": numbers[-1] if numbers else None,
                    "reasons": sorted({gap.reason for gap in viewer.gaps}),
                    "caught_up_s": caught_up_s,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
