"""
Interrupt the bus again and again: ``signals.py log|subscribe|flush|add|stats|suspended ROUNDS SEED``.

A timer's signal handler uses the bus while the main thread is inside of it. Prints the counts as JSON.
"""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import time

from trackside.bus import Bus
from trackside.events import ITERATION, Event, RunsOn, event


@event("test.signals.main", priority=ITERATION)
class FromMain(Event):
    number: int = 0


@event("test.signals.handler", priority=ITERATION)
class FromHandler(Event):
    number: int = 0


class Model:
    runs_on = RunsOn.DISPATCHER

    def __call__(self, event):
        """Do nothing."""


def ignore(_event):
    pass


def main(inside, rounds, seed):
    rng = random.Random(seed)
    logging.disable(logging.WARNING)
    bus = Bus()
    counter = bus.counter("test.signals")
    got = []
    bus.subscribe(got.append, to=FromHandler)
    bus.subscribe(ignore)
    bus.subscribe(ignore, runs_on=RunsOn.WORKER)
    bus.subscribe(Model())
    if inside == "suspended":
        bus.subscribe(lambda event: event.missing, to=FromMain)
    signals = 0
    over = False

    def arm():
        # Not before the last one is done: handlers that interrupt themselves without end overflow the stack.
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, 0.0003))

    def interrupt(_number, _frame):
        nonlocal signals
        bus.log(FromHandler(number=signals))
        counter.add(1)
        if signals % 50 == 0:
            bus.flush(0.5)
            bus.subscribe(ignore, to=FromMain).close()
            bus.stats()
        signals += 1
        if not over:
            arm()

    def use():
        if inside in {"log", "suspended"}:
            bus.log(FromMain())
        elif inside == "subscribe":
            bus.subscribe(ignore, to=FromHandler, runs_on=None if uses % 20 else RunsOn.WORKER).close()
        elif inside == "flush":
            bus.log(FromMain())
            bus.flush(1.0)
        elif inside == "stats":
            bus.stats()
        else:
            counter.add(1)
            if uses % 100 == 0:
                bus.registry.flush(0.1)

    signal.signal(signal.SIGALRM, interrupt)
    arm()
    uses = 0
    deadline_s = time.monotonic() + 100
    while signals < rounds and time.monotonic() < deadline_s:
        use()
        uses += 1
    over = True
    # The handler stays: Python complains on standard error about a signal that arrives while its handler is removed.
    signal.setitimer(signal.ITIMER_REAL, 0)
    bus.flush(5.0)
    stats = bus.stats()
    numbers = [one.number for one in got]
    bus.close()
    print(
        json.dumps(
            {
                "signals": signals,
                "uses": uses,
                "balances": [handler.balance for handler in stats.handlers],
                "from_signals": [len(numbers), numbers == sorted(numbers)],
                "expected_from_signals": [signals, True],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
