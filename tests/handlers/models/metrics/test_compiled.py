"""Training metrics read by the compiled core, beside the Python functions that it stands for."""

from __future__ import annotations

import gc
import math
import random

import pytest

import trackside
from blocks import growth_here
from foreign_keys import Key, Raising
from trackside.events import (
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    Source,
    SpanEnded,
    SpanStarted,
    TrainingConfigured,
)
from trackside.events import event as declare
from trackside.handlers.models import TrainingMetrics, training_metrics
from trackside.wire import FrameView

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(trackside.implementation == "pure", reason="there is only the Python function"),
]


SOURCE = Source(id="a", run_id="run", rank=0, world_size=4)
IDS = [0, 1, 2, 3, 70, None, "x", 1 << 70]
TIMES = [0, -1, 1 << 62, 1 << 63, 1 << 70, 5.5, True, None, "x"]
ODD = {
    "at_ns": TIMES,
    "duration_ns": [*TIMES, 40 * 10**9, (1 << 53) - 1],
    "span_id": IDS,
    "parent_span_id": IDS,
    "step": [-1, 0, 3, 1 << 62, 1 << 70, True, 2.0],
    "name": [None, "training_loop", "checkpoint_save_sync", "validation_loop", "testing_loop", "data_loading"],
    "attributes": [
        None,
        [],
        {"thread": "worker"},
        {"thread": None},
        {"other": 1},
        {Key("thread"): 1},
        {Raising("thread"): 1},
    ],
    "kind": ["validation", "testing", None],
    "failed": [True, 1, 0],
    "samples": [None, 7, -3, 1 << 60, 2.5, True, "12"],
    "tokens": [None, 1_000, 1 << 60, 2.5, "many"],
    "flops": [None, 10, 10**20, 2.75, -0.0, -0.5, 1e301, math.nan, math.inf, True, "5"],
    "loss": [None, 2, 1 << 60, math.nan, "0.25", True, "low"],
}


@declare("tests.metrics.span.ended")
class OwnSpanEnded(SpanEnded):
    """A span that another program publishes."""


class Life:
    """The events of a random process."""

    def __init__(self, rng):
        self.rng, self.at_ns, self.id, self.events = rng, 10**18, 100, []
        self.oddity = rng.choice([0, 0.002, 0.02])

    def add(self, cls, **fields):
        """Add an event, now and then with values that no program should give."""
        one = cls(at_ns=self.at_ns, **fields)
        one._source, one._seq = SOURCE, len(self.events)
        while self.rng.random() < self.oddity:
            name = self.rng.choice([name for name in ODD if hasattr(one, name)])
            setattr(one, name, self.rng.choice(ODD[name]))
        self.events.append(one)

    def span(self, name, parent_id, **fields):
        """Add a span that took some time, and return its id."""
        self.id += 1
        took_ns = self.rng.choice([0, 5, 1_000, 10**6])
        self.at_ns += took_ns
        cls = self.rng.choice([ProfileSpanEnded] * 5 + [IterationSpanEnded, SpanEnded, OwnSpanEnded])
        fields = {"span_id": self.id, "parent_span_id": parent_id, "duration_ns": took_ns, **fields}
        self.add(cls, name=name, **fields)

    def foreign(self):
        """Return attributes whose key is of another class, and perhaps cannot be compared."""
        return {(Raising if self.rng.random() < self.oddity else Key)("thread"): "worker"}

    def step(self, number):
        """Add a step with its parts, perhaps deeper within spans, and perhaps with loading before it."""
        rng = self.rng
        began_ns, loop_id = self.at_ns, rng.choice([1, 1, 1, 0])
        if rng.random() < 0.3:
            self.span("data_loading", loop_id, attributes=rng.choice([{}, {}, {"thread": "worker"}, self.foreign()]))
        self.id += 10
        step_id, deeper_id = rng.choice([self.id, self.id, self.id, 0]), self.id + 5
        often = rng.choice([0, 0.8, 0.8, 0.8])
        for name in ("data_loading", "model_forward", "model_backward", "optimizer_update", "microbatch"):
            if rng.random() < often:
                self.span(name, rng.choice([step_id, step_id, deeper_id]))
        if rng.random() < 0.5:
            parent_id = rng.choice([step_id, step_id, deeper_id])
            self.span(rng.choice(["microbatch", "model_forward"]), parent_id, span_id=deeper_id)
        given = {
            "samples": rng.choice([None, 8]),
            "tokens": rng.choice([None, 512]),
            "flops": rng.choice([None, None, 1e12, 7.5e17, 3, 0.1, -0.5]),
            "loss": rng.choice([None, rng.random(), 1]),
        }
        self.at_ns += rng.choice([0, 1])
        took_ns = self.at_ns - began_ns + rng.choice([0] * 8 + [10**7])
        self.add(IterationEnded, step=number, span_id=step_id, parent_span_id=loop_id, duration_ns=took_ns, **given)

    def between(self):
        """Add what is not part of each step."""
        rng = self.rng
        happens = rng.randrange(6)
        if happens == 0:
            self.span("validation_loop", 1)
        elif happens == 1:
            self.span("checkpoint_save_sync", 1)
        elif happens == 2:
            self.add(SpanStarted, name="training_loop", span_id=1, parent_span_id=0, attributes={})
        elif happens == 3:
            for _ in range(rng.choice([1, 70])):  # whose ends are lost
                self.id += 1
                self.span("model_forward", 10_000 + self.id)
        elif happens == 4:
            self.at_ns += 20 * 10**9
        else:
            self.configure()

    def configure(self):
        """Add a configuration."""
        rng = self.rng
        self.add(
            TrainingConfigured,
            perf_tag=["test"],
            log_every_n_train_iterations=rng.choice([1, 7, 50, 1_000, None]),
            global_batch_size=rng.choice([None, 32]),
            seq_length=rng.choice([None, 128, 1 << 50]),
            flops_per_sample=rng.choice([None, 10**9, 1 << 60]),
        )

    def live(self, steps):
        """Do so many steps, and return all events."""
        self.configure()
        number = 0
        for _ in range(steps):
            if self.rng.random() < 0.05:
                self.between()
            self.step(number)
            number += self.rng.choice([1] * 20 + [0, 2, -3])
        return self.events


@pytest.mark.parametrize("seed", range(80))
def test_any_history(seed, monkeypatch):
    """For any history in frames of any length, both derive the same events, fail alike, and have the same state."""
    rng = random.Random(seed)
    events = Life(rng).live(rng.choice([5, 50, 400]))
    frames = []
    while events:
        length = rng.choice([1, 2, 7, 100, 1_000])
        frames.append(events[:length])
        events = events[length:]
    found = []
    for read in (training_metrics.read_until_derived, training_metrics.read_until_derived.__wrapped__):
        monkeypatch.setattr(training_metrics, "read_until_derived", read)
        derived, states = [], []
        model = TrainingMetrics(derived.append)
        for frame in frames:
            try:
                model.consume(FrameView(SOURCE, frame))
            except Exception as error:  # as a value of the wrong type raises in the Python function
                states.append(f"{type(error).__name__}: {error}")
            states.append(repr(model.dump()))
        found.append((repr(derived), states))
    compiled, python = found
    assert compiled[0] == python[0]
    for place, states in enumerate(zip(compiled[1], python[1], strict=True)):
        assert states[0] == states[1], place


@pytest.mark.parametrize(("deeper", "length"), [(False, 2_000), (True, 127)])
def test_long_parts(deeper, length, monkeypatch):
    """Times of parts that add up to more than 64 bits hold are exact; *deeper* also those that spans hand on."""
    greatest = (1 << 53) - 1
    found = []
    for read in (training_metrics.read_until_derived, training_metrics.read_until_derived.__wrapped__):
        monkeypatch.setattr(training_metrics, "read_until_derived", read)
        life, model = Life(random.Random(1)), TrainingMetrics()
        life.oddity = 0
        for number in range(2):
            life.add(IterationEnded, step=number, span_id=7, parent_span_id=1, duration_ns=5)
        for inner in range(5):
            parent_id = 90 + inner if deeper else 9
            for _ in range(250):
                life.add(
                    ProfileSpanEnded, name="model_forward", span_id=8, parent_span_id=parent_id, duration_ns=greatest
                )
        for inner in range(5 if deeper else 0):
            life.add(ProfileSpanEnded, name="own", span_id=90 + inner, parent_span_id=9, duration_ns=5)
        life.add(IterationEnded, step=2, span_id=9, parent_span_id=1, duration_ns=5)
        for first in range(0, len(life.events), length):
            model.consume(FrameView(SOURCE, life.events[first : first + length]))
        found.append(model.result().sources[0].training.avg_forward_time_sec)
    assert found == [float(1_250 * greatest) / 10**9] * 2


def test_leaves_no_memory_behind():
    """A model that read iterations, parts and spans whose parents never end frees all memory when it is gone."""
    rng = random.Random(3)
    life = Life(rng)
    life.oddity = 0
    events = life.live(300)

    def run():
        model = TrainingMetrics()
        for first in range(0, len(events), 70):
            model.consume(FrameView(SOURCE, events[first : first + 70]))

    assert growth_here(run) < 100


def test_finalizer_that_reads_the_metrics():
    """A garbage collection, at whichever allocation, may run a finalizer that sums up what is being changed."""
    second = 10**9

    class Summing:
        def __init__(self, metrics):
            self.itself, self.metrics = self, metrics

        def __del__(self):
            self.metrics.window.settle()

    def of_step(number, at_ns, forward_ns):
        of = {"span_id": 60, "parent_span_id": 50 + number, "attributes": {}, "error": None}
        yield ProfileSpanEnded(at_ns=at_ns - 1, name="model_forward", duration_ns=forward_ns, **of)
        yield IterationEnded(at_ns=at_ns, step=number, span_id=50 + number, parent_span_id=1, duration_ns=second)

    kept, found = gc.get_threshold(), []
    events = [event for number in range(1, 5) for event in of_step(number, (number + 1) * second, 10 * number)]
    # Parts whose step has not ended: there are as many dicts and lists to be made.
    events += [next(of_step(100 + number, 9 * second + number, 1)) for number in range(20)]
    for allocations in range(1, 60):
        metrics = training_metrics.ProcessMetrics()
        training_metrics.read_until_derived(metrics, list(of_step(0, second, 5)), 0)
        gc.collect()
        gc.disable()
        Summing(metrics)
        gc.set_threshold(allocations + gc.get_count()[0])
        gc.enable()
        training_metrics.read_until_derived(metrics, events, 0)
        gc.set_threshold(*kept)
        metrics.window.settle()
        found.append(metrics.window.parts_ns[0])
    assert found == [5 + 10 + 20 + 30 + 40] * 59


def test_plain_job(monkeypatch):
    """Of a plain job, Python reads only the first iteration and those that end a window."""
    life = Life(random.Random(1))
    events, at_ns = [], life.at_ns
    for number in range(200):
        step_id = 10 * number + 10
        for name in ("data_loading", "model_forward", "model_backward", "optimizer_update"):
            ids = {"span_id": step_id + 1, "parent_span_id": step_id}
            events.append(ProfileSpanEnded(at_ns=at_ns + 5, name=name, duration_ns=5, **ids))
        at_ns += 100
        ids = {"span_id": step_id, "parent_span_id": 1}
        events.append(IterationEnded(at_ns=at_ns, step=number, duration_ns=90, samples=8, loss=0.5, **ids))
    read_in_python = []

    def noted(read):
        def call(metrics, event):
            read_in_python.append(event)
            return read(metrics, event)

        return call

    for cls in (IterationEnded, ProfileSpanEnded):
        monkeypatch.setitem(training_metrics._READERS, cls, noted(training_metrics._READERS[cls]))
    model = TrainingMetrics()
    model.consume(FrameView(SOURCE, events))
    assert [event.step for event in read_in_python if isinstance(event, IterationEnded)] == [0, 49, 99, 149, 199]
    assert len(read_in_python) == 5 + 4  # and the spans before the first iteration
    assert model.result().sources[0].training.num_iterations == 200
