"""
A job that follows commands, line by line; started by the `jobs` fixture.

Each line of stdin is JSON: the name of a method, and its arguments. Each is answered by a line of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import threading
import time
from pathlib import Path

import msgpack

import trackside
from trackside.events import Source
from trackside.handlers.models import SpanBuilder, TrainingMetrics
from trackside.handlers.models.counters import CounterBoard
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.job import Remote, RemoteAccess

HERE = Path(__file__)
LIVE_IS_REPLAY = HERE.parents[3] / "test_live_is_replay.py"


@trackside.event("test.step.taken")
class StepTaken(trackside.Event):
    """An event with a number."""

    number: int
    text: str = ""


@trackside.event("test.rare.noted", priority=trackside.LIFECYCLE)
class RareNoted(trackside.Event):
    """An event that comes rarely."""

    number: int


class Job:
    """A bus, its models, and its publishers."""

    Step = StepTaken

    def __init__(self, directory, rank=0, models=True, **config):
        self.bus = trackside.Bus(source=Source.detect({}, rank=rank, run_id="test"))
        made = (SpanBuilder(), CounterBoard(), GoodputAccumulator(), ScoreAggregator(), TrainingMetrics())
        self.models = {type(model).__name__: model for model in made} if models else {}
        for model in self.models.values():
            self.bus.subscribe(model)
        if models:
            self.bus.subscribe(TrainingMetrics(publish=self.bus.publish))
        self.remote = RemoteAccess(
            Remote(**config), bus=self.bus, source=self.bus._identity.find(), directory=Path(directory)
        )
        self.logged = 0
        self._pacing = None
        self._is_resting = threading.Event()

    @property
    def endpoint(self):
        """Return its endpoint."""
        return self.remote.endpoints[0]

    def where(self):
        """Return its endpoint."""
        return self.remote.endpoints

    def log(self, count, size=0, flush=True):
        """Log so many events, as fast as the queue has room for them."""
        for _ in range(count):
            self.bus.log(StepTaken(number=self.logged, text="x" * size, step=self.logged))
            self.logged += 1
            if self.logged % 4000 == 0:
                self.bus.flush()
        if flush:
            self.bus.flush()
        return self.logged

    def note(self, count):
        """Log so many of another type."""
        for number in range(count):
            self.bus.log(RareNoted(number=number, step=number))
        self.bus.flush()

    def work(self, seed, steps):
        """Log the events of a small training job."""
        spec = importlib.util.spec_from_file_location("live_is_replay", LIVE_IS_REPLAY)
        module = sys.modules["live_is_replay"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.work(self.bus, random.Random(seed), steps)
        self.bus.flush()

    def pace(self, per_s, size=0):
        """Log *per_s* events a second from now on, on another thread, until `stop_logging` is called."""
        self._is_resting.clear()
        self._pacing = threading.Thread(target=self._pace, args=(per_s, size))
        self._pacing.start()

    def _pace(self, per_s, size):
        start, text, count = time.monotonic(), "x" * size, 0
        while not self._is_resting.wait(0.005):
            due = int((time.monotonic() - start) * per_s)
            for _ in range(due - count):
                self.bus.log(StepTaken(number=self.logged, text=text, step=self.logged))
                self.logged += 1
            count = due

    def stop_logging(self):
        """Stop logging on that thread; return how many events were logged in all."""
        self._is_resting.set()
        self._pacing.join()
        self.bus.flush()
        return self.logged

    def wants(self, name):
        """Return whether a handler wants events of that type."""
        return self.bus.wants({"step": StepTaken, "rare": RareNoted}[name])

    def declare(self, name, count):
        """Declare a type by that name, and log some."""
        cls = trackside.event(name)(type("Late", (trackside.Event,), {"__module__": name}))
        for _ in range(count):
            self.bus.log(cls())
        self.bus.flush()

    def stats(self):
        """Return the bus's counts."""
        stats = self.bus.stats()
        return {
            "published": stats.published,
            "lost": stats.lost,
            "in_queue": stats.in_queue,
            "handlers": [handler.name.rpartition(".")[2] for handler in stats.handlers],
            "remote": [publisher.stats() for publisher in self.remote._publishers],
        }

    def memory(self):
        """Return the peak memory and the present one, in bytes."""
        recorded = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        return [int(recorded[name].split()[0]) << 10 for name in ("VmHWM", "VmRSS")]  # ru_maxrss has the parent's, too

    def dumps(self):
        """Return each model's state."""
        return {name: msgpack.packb(model.dump()).hex() for name, model in self.models.items()}

    def end(self, reason="closed"):
        """End the stream."""
        self.bus.end(reason)
        self.bus.flush()

    def close(self, timeout_s=0.3):
        """Close the publishers; return how long that took and whether every viewer had everything."""
        start = time.monotonic()
        done = self.remote.close(timeout_s)
        return [time.monotonic() - start, done]


def main():
    job = None
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        if verb == "start":
            job = Job(sys.argv[1], **arguments)
            answer = job.where()
        else:
            answer = getattr(job, verb)(**arguments)
        print(json.dumps(answer), flush=True)
    if job is not None:
        job.close()


if __name__ == "__main__":
    main()
