"""The stall watch: with a clock that a test sets, and in a real process."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import trackside
from trackside.bus import Bus
from trackside.events import IterationEnded, ProfileSpanEnded, Source, SpanEnded, StallDetected
from trackside.handlers import Capture
from trackside.job._stall import StallWatch, stacks
from trackside.wire import FrameView

S = 10**9


class Job:
    """A watched job on a clock of its own, in seconds."""

    def __init__(self, **options):
        self.now_s = 0.0
        bus = Bus()
        self.captured = Capture()
        bus.subscribe(self.captured)
        self.watch = StallWatch(bus, read_s=lambda: self.now_s, **options)

    def steps(self, count, each_s, kind="training"):
        """End so many iterations, one every *each_s* seconds, and let the watch read them at once."""
        events = []
        for step in range(count):
            self.now_s += each_s
            events.append(IterationEnded(at_ns=int(self.now_s * S), step=step, duration_ns=S, kind=kind))
        return self.reads(events)

    def reads(self, events):
        """Let the watch read *events* at once."""
        self.watch.consume(FrameView(Source.unknown("job"), events))
        return self

    def waits(self, seconds):
        """Let time pass, asking every second; return the stalls that were published so far."""
        for _ in range(seconds):
            self.now_s += 1
            self.watch.check()
        return self.captured.of(StallDetected)


class TestStallWatch:
    def test_after_a_minute(self):
        """Short steps: a stall is one of a minute."""
        job = Job().steps(10, 0.5)
        assert job.waits(59) == []
        (stall,) = job.waits(2)
        assert (stall.stalled_s, stall.usual_s, stall.step) == (60, 0.5, 9)

    def test_long_steps(self):
        """Steps of half a minute: a stall is ten of them."""
        job = Job().steps(10, 30)
        assert job.waits(299) == []
        assert len(job.waits(1)) == 1

    def test_once(self):
        """A stall is published once; the next one again."""
        job = Job().steps(10, 0.5)
        assert len(job.waits(1_000)) == 1
        job.steps(1, 0.5)
        assert len(job.waits(1_000)) == 2

    def test_configured(self):
        """The least length is the caller's."""
        job = Job(least_s=5).steps(10, 0.1)
        assert [stall.stalled_s for stall in job.waits(8)] == [5]

    def test_before_training(self):
        """Without steps there is no usual length, and no stall."""
        assert Job().steps(2, 0.5).waits(1_000) == []

    def test_many_at_once(self):
        """The usual length is that of the latest steps, however many are read at once."""
        job = Job().steps(10, 30).steps(300, 0.5)
        (stall,) = job.waits(61)
        assert (stall.stalled_s, stall.usual_s, stall.step) == (60, 0.5, 299)

    def test_evaluation(self):
        """Steps of an evaluation are progress, and do not change the usual length of training steps."""
        job = Job().steps(10, 0.5)
        for _ in range(10):
            job.waits(50)
            job.steps(1, 0.5, kind="validation")
        assert job.captured.of(StallDetected) == []

    def test_after_training(self):
        """After the training loop no step is expected."""
        job = Job().steps(10, 0.5).reads([SpanEnded(name="training_loop", duration_ns=S)])
        assert job.waits(1_000) == []


def test_parts(tmp_path, bus):
    """Of a step the watch gets only the iteration: the parts of a step cost it nothing."""
    with trackside.start(tmp_path, bus=bus, report=False, heartbeat_interval_s=1000):
        for step in range(10):
            bus.log(ProfileSpanEnded(span_id=1, parent_span_id=0, name="model_forward", duration_ns=1, attributes={}))
            bus.log(IterationEnded(span_id=2, duration_ns=1, step=step))
        bus.log(SpanEnded(span_id=3, parent_span_id=0, name="training_loop", duration_ns=1, attributes={}))
        bus.flush()
        (handled,) = (stats.handled for stats in bus.stats().handlers if "StallWatch" in stats.name)
    assert handled == 11


class TestStacks:
    def test_every_thread(self):
        """Each thread has its frames, innermost last, the main thread first; trackside's own threads are left out."""
        waiting, done = threading.Event(), threading.Event()

        def wait_for_the_others():
            waiting.set()
            done.wait()

        threads = [
            threading.Thread(target=wait_for_the_others, name=name, daemon=True)
            for name in ("loader", "trackside-dispatcher")
        ]
        for thread in threads:
            thread.start()
        waiting.wait(10)
        found = stacks()
        done.set()
        assert next(iter(found)) == "MainThread"
        assert "trackside-dispatcher" not in found
        assert "wait_for_the_others" in found["loader"]
        assert f"{Path(__file__).name}:" in found["MainThread"].splitlines()[-2]

    def test_bounds(self):
        """A deep stack is cut at its outer end."""

        def fall(depth):
            return fall(depth - 1) if depth else stacks()["MainThread"]

        found = fall(200)
        assert (len(found.splitlines()) <= 24, len(found) <= 4_000) == (True, True)
        assert found.splitlines()[-1].endswith("in stacks")


@pytest.mark.hang_guard(120)
def test_real_process(tmp_path):
    """A process that hangs in user code records the place while it hangs."""
    program = """
import sys, time
import trackside

def lost_in_a_lock():
    time.sleep(4)

with trackside.start(sys.argv[1], report=False, stall_after_s=1, heartbeat_interval_s=0.1):
    for step in range(6):
        with trackside.training_iteration(step):
            time.sleep(0.01)
    with trackside.training_iteration(6), trackside.data_loading():
        lost_in_a_lock()
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    (stall,) = [event for event in trackside.replay(tmp_path) if isinstance(event, StallDetected)]
    assert (stall.step, 1 <= stall.stalled_s < 4) == (5, True)
    assert "lost_in_a_lock" in stall.stacks["MainThread"]
    assert stall.open_spans["MainThread"][1] == "data_loading"
