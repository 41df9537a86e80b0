"""
Write event logs and be killed: ``killed_writer.py DIRECTORY ROUNDS SEED``.

Each round is a process of its own, killed after a random time. For each this prints, as JSON, its directory, the size
of its frames, and how many events were reported as flushed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from framing import iterations_of
from trackside.events import Source
from trackside.handlers.eventlog import EventLog

BATCHES = (1, 64, 4096)


def write_for_ever(directory, batch, report, rng):
    source = Source(run_id="killed")
    log = EventLog(directory, flush_s=0.002)
    log.open(source)
    first = 0
    while True:
        for _ in range(rng.randrange(1, 6)):
            if log.accept(iterations_of(source, first, batch), events=batch):
                first += batch
        if log.flush(10):
            os.write(report, first.to_bytes(8, "little"))


def run_round(directory, batch, rng):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write_for_ever(directory, batch, writing, rng)
        finally:
            os._exit(1)
    os.close(writing)
    time.sleep(rng.uniform(0.0, 0.06))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    recorded = b""
    while piece := os.read(reading, 1 << 16):
        recorded += piece
    os.close(reading)
    return int.from_bytes(recorded[-8:], "little")


def main():
    directory, rounds, rng = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
    for n in range(rounds):
        own, batch = f"{directory}/{n}", BATCHES[n % len(BATCHES)]
        safe = run_round(own, batch, random.Random(rng.random()))
        print(json.dumps({"directory": own, "batch": batch, "safe": safe}), flush=True)


if __name__ == "__main__":
    main()
