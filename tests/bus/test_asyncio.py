"""Tasks keep their span and step across awaits."""

from __future__ import annotations

import asyncio
import random
import time

from ticking import Ticked
from trackside.events import RunsOn, ambient

TASKS = 1_000


async def work(bus, number, rng):
    """Enter a span of this task's own, and one within it, and log between awaits."""
    ambient.set((number, number * 10))
    for _ in range(3):
        await asyncio.sleep(rng.uniform(0, 0.005))
        bus.log(Ticked(number=number))
    token = ambient.set((-number, number * 10 + 1))
    await asyncio.gather(*(inner(bus, number) for _ in range(2)))
    ambient.reset(token)
    await asyncio.sleep(0)
    bus.log(Ticked(number=number))


async def inner(bus, number):
    """Log in a task that a task started."""
    await asyncio.sleep(0)
    bus.log(Ticked(number=number))


class TestTasks:
    def test_ambient(self, bus, model, rng):
        """A thousand tasks at once: each event carries the span and the step of its own task, none of another's."""
        inline = []
        bus.subscribe(inline.append, to=Ticked)
        bus.subscribe(model, to=Ticked)

        async def main():
            await asyncio.gather(*(work(bus, number, rng) for number in range(1, TASKS + 1)))

        asyncio.run(main())
        bus.flush(20)
        assert model.events == inline
        assert len(inline) == TASKS * 6
        crossed = [
            one
            for one in inline
            if (one.span_id, one.step) not in {(one.number, one.number * 10), (-one.number, one.number * 10 + 1)}
        ]
        assert crossed == []
        within = [one for one in inline if one.span_id < 0]
        assert len(within) == TASKS * 2
        assert ambient.get() == (0, -1)

    def test_the_loop_goes_on(self, bus, gate):
        """A queued handler that blocks does not block the event loop."""
        bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        rng = random.Random(1)

        async def main():
            await asyncio.gather(*(work(bus, number, rng) for number in range(1, 101)))

        started = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - started < 10
        assert gate.entered.wait(10)
