"""
Ranks of one job in one process, which step together and publish to a stream of NATS until a line comes.

Prints a line after the first step, and then, as JSON, the steps, the longest time that a step took to log in seconds,
whether the stream acknowledged all of it, and how many events were lost or dropped.
"""

from __future__ import annotations

import json
import select
import sys
import time

from trackside.bus import Bus
from trackside.events import IterationEnded, Source
from trackside.handlers.nats import NatsSink

STEP_S = 0.1
FLUSH_S = 60.0


def main():
    """Step."""
    servers, stream, first, count = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    buses = [Bus(source=Source.detect({}, run_id="run", rank=first + rank, world_size=64)) for rank in range(count)]
    sinks = [NatsSink(servers, stream=stream, replicas=3) for _ in buses]
    for bus, sink in zip(buses, sinks, strict=True):
        bus.subscribe(sink)
    step, longest_s = 0, 0.0
    while not select.select([sys.stdin], [], [], STEP_S)[0]:
        for bus in buses:
            began_s = time.monotonic()
            bus.log(IterationEnded(step=step, duration_ns=1))
            longest_s = max(longest_s, time.monotonic() - began_s)
        step += 1
        if step == 1:
            print("steps", flush=True)
    give_up_s = time.monotonic() + FLUSH_S
    waiting = list(buses)
    while waiting and time.monotonic() < give_up_s:
        waiting = [bus for bus in waiting if not bus.flush(5)]
    dropped = sum(handler.dropped for bus in buses for handler in bus.stats().handlers)
    lost = sum(sink.lost for sink in sinks)  # what close() logs has less time
    for bus in buses:
        bus.close()
    print(json.dumps({"steps": step, "longest_s": longest_s, "acknowledged": not waiting, "lost": lost + dropped}))


if __name__ == "__main__":
    main()
