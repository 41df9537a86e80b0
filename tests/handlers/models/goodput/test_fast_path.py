"""The fast path for the events of every step, beside the general path for any event."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random

import pytest

from blocks import growth_here
from foreign_keys import Key, Raising
from trackside.events import (
    DecodeError,
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    Source,
    SpanEnded,
)
from trackside.events import event as declare
from trackside.handlers.models.goodput import GoodputAccumulator, GoodputMonitor, _goodput_monitor
from trackside.handlers.models.goodput._reading import ProcessState
from trackside.handlers.models.goodput._track import Track
from trackside.wire import FrameView

pytestmark = pytest.mark.once


BEGIN = 10_000
KINDS = [ProfileSpanEnded, ProfileSpanEnded, IterationSpanEnded, SpanEnded]
NO_TIMES = [None, "x", 5.5, 7.0, True, 0, -3, 1 << 62, 1 << 70, [1]]
ODD = {
    "_seq": [None, "x", 2, 0, 1.5, 1 << 40],
    "at_ns": [*NO_TIMES, 9_000, 10_500],
    "duration_ns": [*NO_TIMES, 1, 30, 300, 3_000, 10_000],
    "name": [None, [], "training_single_iteration", "checkpoint_load", "data_loading", "validation_loop", "else"],
    "attributes": [
        None,
        [],
        ["thread"],
        {"thread": "worker"},
        {"badput_type": "EVAL"},
        {"badput_type": "ELASTIC_SCALE_UP"},
        {"badput_type": "CHECKPOINT"},
        {"badput_type": None, "thread": None},
        {"badput_type": 3},
        {Key("badput_type"): "EVAL"},
        {Key("thread"): "worker"},
        {Raising("badput_type"): "EVAL"},
        {Raising("thread"): "worker"},
    ],
    "id": [0, 3, None],
    "error": [{"type": "ValueError"}],
    "step": [None, "x", 2.0, True, -1, 0, 3, 1 << 62, 1 << 63],
    "kind": ["validation", "testing", None],
    "failed": [True, 1, "yes"],
}


@declare("tests.goodput.span.ended")
class OwnSpanEnded(SpanEnded):
    """A span that another program publishes."""


class Ordinarily(GoodputAccumulator):
    """The model without its fast path."""

    def __call__(self, event):
        """Read *event* by the general path."""
        self._consume(event)


class Life:
    """The events of a random process, generated step by step."""

    def __init__(self, job, rng):
        self.job, self.rng = job.start(BEGIN), rng
        self.at, self.number = BEGIN + 5, 0
        self.happenings = [
            self.reach_back,
            self.lose,
            self.restore,
            self.count_anew,
            self.fail,
            self.evaluate,
            self.beat,
            self.begin,
            self.leave_open,
            self.mark,
            self.thread,
            self.save,
            self.come_late,
            self.end,
            self.many,
        ]

    def live(self, steps):
        """Go on for so many steps, with other events between and within some of them, and return the events."""
        for _ in range(steps):
            if self.rng.random() < 0.2:
                self.rng.choice(self.happenings)()
            self.step(within=self.rng.choice(self.happenings) if self.rng.random() < 0.05 else None)
        self.spoil()
        return self.job.events

    def pause(self, *lengths):
        """Let time pass."""
        self.at += self.rng.choice(lengths)

    def load(self, **attributes):
        """Load data."""
        start = self.at
        self.pause(0, 1, 4, 9, 9)
        self.job.span("data_loading", start, self.at, kind=self.rng.choice(KINDS), **attributes)

    def step(self, within=None):
        """Do a step."""
        if self.rng.random() < 0.2:
            self.load()
        self.pause(0, 3)
        start = self.at
        for _ in range(self.rng.choice([0, 1, 1, 1, 1, 2, 3])):
            self.pause(0, 2, 2)
            self.load()
        if within is not None:
            within()
        for name in ("model_forward", "model_backward", "optimizer_update", "whatever"):
            began = self.at
            self.pause(0, 1, 5)
            self.job.span(name, began, self.at, kind=self.rng.choice(KINDS))
        self.pause(0, 1, 1)
        self.job.step(self.number, start, self.at)
        self.number += self.rng.choice([1] * 20 + [0, 2])

    def reach_back(self):
        """Load from within an earlier step on, or do a step in another one's time."""
        start = max(BEGIN + self.rng.choice([0, -20]), self.at - self.rng.choice([3, 20, 100, 10**6]))
        self.at += self.rng.choice([0, 2])
        if self.rng.random() < 0.5:
            self.job.span("data_loading", start, self.at)
        else:
            self.job.step(self.number, start, self.at)

    def lose(self):
        """Lose some events."""
        for _ in range(self.rng.choice([1, 2, 5])):
            if len(self.job.events) > 1:
                self.job.events[-1] = self.job.events[-2]

    def restore(self):
        """Go back to a checkpoint."""
        back = max(0, self.number - self.rng.choice([0, 1, 4, 20]))
        attributes = {"current_iteration": back} if self.rng.random() < 0.5 else {}
        self.job.long("checkpoint_load", self.at, self.at + 7, **attributes)
        self.pause(7, 8)
        self.number = self.rng.choice([back, back, self.number])

    def count_anew(self):
        """Count the steps from a lower number on."""
        self.number = self.rng.randrange(self.number + 1)

    def fail(self):
        """Fail in a step."""
        self.job.step(self.number, self.at, self.at + 5, failed=True)
        self.pause(5)

    def evaluate(self):
        """Validate."""
        number = self.job.open("validation_loop", self.at) if self.rng.random() < 0.5 else None
        began = self.at
        self.job.step(0, self.at, self.at + 4, kind="validation")
        self.pause(4)
        self.step()
        if number:
            self.job.span("validation_loop", began, self.at, id=number, kind=SpanEnded)

    def beat(self):
        """Publish a heartbeat, perhaps within a span."""
        last = next((event.span_id for event in reversed(self.job.events) if isinstance(event, IterationEnded)), 0)
        start = self.at - self.rng.choice([0, 1, 30])
        name = self.rng.choice(["data_loading", "model_forward", "else"])
        inside = (self.rng.choice([last, 10**6]), name, start)
        self.job.beat(self.at, inside=self.rng.choice([None, inside, inside]))

    def begin(self):
        """Publish the start of a step."""
        self.job.step_start(self.number + self.rng.choice([0, 0, 1, -1]), self.at)
        self.pause(0, 2)

    def leave_open(self):
        """Open a span and never close it, perhaps one of a step."""
        parent = self.rng.choice([0, next(self.job.ids) + 6])
        self.job.open(self.rng.choice(["checkpoint_load", "model_initialization"]), self.at, parent=parent)

    def mark(self):
        """Mark a span with a bucket."""
        start = max(1, self.at - self.rng.choice([0, 3, BEGIN]))
        kind = self.rng.choice(["EVAL", "ELASTIC_SLICE_DOWN", "VALIDATION"])
        self.job.span("own", start, self.at + 3, kind=OwnSpanEnded, badput_type=kind)
        self.pause(3)

    def thread(self):
        """Load in another thread, or train in one from now on."""
        if self.rng.random() < 0.1:
            self.job.open("training_loop", self.at, thread="worker")
        self.load(thread="worker")

    def save(self):
        """Save a checkpoint."""
        self.job.long("checkpoint_save_sync", self.at, self.at + 6)
        self.pause(6)

    def come_late(self):
        """Publish a span of long ago."""
        start = self.rng.randrange(BEGIN, self.at)
        if self.rng.random() < 0.5:
            self.job.span("data_loading", start, min(start + 40, self.at))
        else:
            self.job.step(self.number // 2, start, min(start + 40, self.at))

    def end(self):
        """Publish a good end, after which the process may go on."""
        if self.rng.random() < 0.1:
            self.job.end(self.at)

    def many(self):
        """Do many steps without other events."""
        if self.rng.random() < 0.1:
            for _ in range(300):
                self.step()

    def spoil(self):
        """Give some events impossible values, or values of other events."""
        for event in self.job.events:
            if self.rng.random() < 0.03:
                name = self.rng.choice([name for name in ODD if hasattr(event, name)])
                value = getattr(event, name)
                likewise = [float(value)] * 5 if type(value) is int and name != "id" else []
                setattr(event, name, self.rng.choice([*ODD[name], *likewise]))
            if self.rng.random() < 0.01:
                event._source = Source(**{name: getattr(event.source, name) for name in ("id", "run_id", "rank")})
            if self.rng.random() < 0.002:
                del event._seq


def mixed(lives, rng):
    """Yield the events of *lives*, those of each in their order, some of one and then some of another."""
    left = [iter(events) for events in lives]
    while left:
        events = rng.choice(left)
        some = list(itertools.islice(events, rng.choice([1, 3, 50])))
        if not some:
            left.remove(events)
        yield from some


def plain(stream, steps, saves=1):
    """Return a job that begins with so many saves and does so many steps of 95 ns, 10 ns of each to load data."""
    job = stream().start(5)
    for number in range(saves):
        job.span("checkpoint_save_sync", 10 + 10 * number, 15 + 10 * number)
    for number in range(steps):
        at = 100 + 100 * number
        job.span("data_loading", at + 1, at + 11).span("model_forward", at + 12, at + 40, kind=ProfileSpanEnded)
        job.span("model_backward", at + 50, at + 90, kind=ProfileSpanEnded).step(number, at, at + 95)
    return job


def both(events):
    """Return the model and the one without the fast path, each with *events* read."""
    models = GoodputAccumulator(), Ordinarily()
    for model in models:
        for event in events:
            model(event)
    return models


class TestUsual:
    @pytest.mark.parametrize("seed", range(60))
    def test_any_history(self, stream, seed):
        """For any events, queries and transfers of the state, both models have the same state."""
        rng = random.Random(seed)
        jobs = stream(), stream(rank=1), stream(rank=2, role="worker")
        lives = [Life(job, rng).live(rng.choice([5, 40, 150])) for job in jobs]
        models, often = (GoodputAccumulator(), Ordinarily()), rng.choice([0.01, 0.01, 0.2])
        for index, event in enumerate(mixed(lives, rng)):
            for model in models:
                model(event)
            if rng.random() < 0.01 and models[0].sessions():
                assert models[0].result().to_json() == models[1].result().to_json(), index
            if rng.random() < often:
                assert models[0].dump() == models[1].dump(), index
            if rng.random() < 0.002:
                for model in models:
                    with contextlib.suppress(DecodeError):  # some odd values can be dumped and not be loaded
                        model.load(model.dump())
        assert models[0].dump() == models[1].dump()
        assert models[0].result().to_json() == models[1].result().to_json()
        assert list(models[0].step_times()) == list(models[1].step_times())

    @pytest.mark.parametrize("seed", range(60))
    def test_frames(self, stream, seed):
        """For any history in frames of any length, with queries between them, both models have the same state."""
        rng = random.Random(seed)
        lives = [Life(stream(), rng).live(rng.choice([5, 40, 150, 400])), Life(stream(rank=1), rng).live(40)]
        model, reference = GoodputAccumulator(), Ordinarily()
        left = list(mixed(lives, rng))
        while left:
            length = rng.choice([1, 2, 7, 100, 1_000])
            frame, left = left[:length], left[length:]
            model.consume(FrameView(frame[0].source, frame))
            for event in frame:
                reference(event)
            if rng.random() < 0.2 and model.sessions():
                assert model.result().to_json() == reference.result().to_json(), len(left)
            assert model.dump() == reference.dump(), len(left)

    def test_leaves_no_memory_behind(self, stream):
        """A model that read many steps, loadings and odd events frees all memory when it is gone."""
        events = Life(stream(), random.Random(2)).live(60) + plain(stream, 400).events

        def run():
            model = GoodputAccumulator()
            for first in range(0, len(events), 70):
                frame = events[first : first + 70]
                model.consume(FrameView(frame[0].source, frame))

        assert growth_here(run) < 100

    def test_tracks_replaced_while_one_is_packed(self, stream, monkeypatch):
        """Code that runs while slices are packed, as a signal handler may, can replace another track of the process."""
        job = plain(stream, 2)
        for number in range(2, 1_500):
            at = 100 + 100 * number
            job.span("data_loading", at + 1, at + 11, thread="worker").step(number, at, at + 95)
        events = job.events
        model = GoodputAccumulator()
        model.consume(FrameView(events[0].source, events[:20]))
        (process,) = (
            each for each in gc.get_objects() if type(each) is ProcessState and each.source is events[0].source
        )
        pack, packed = Track._seal, []

        def replace_beside(track):
            packed.append(track)
            process.beside = Track()
            gc.collect()
            pack(track)

        monkeypatch.setattr(Track, "_seal", replace_beside)
        model.consume(FrameView(events[0].source, events[20:]))
        assert packed
        assert set(map(id, packed)) == {id(process.track)}
        assert model.result().spent_ns["PRODUCTIVE"] == 2 * 85 + 1_498 * 95

    def test_plain_job(self, stream, monkeypatch):
        """In a plain job all events take the fast path but the start, one-time events and the first iteration."""
        model, odd = GoodputAccumulator(), []
        consume = model._consume
        monkeypatch.setattr(model, "_consume", lambda event: (odd.append(event), consume(event)))
        for event in plain(stream, 1_000).events:
            model(event)
        assert [type(event).__name__ for event in odd] == ["SourceStarted", "IterationSpanEnded", "IterationEnded"]
        assert model.result().spent_ns["DATA_LOADING_SYNC"] == 1_000 * 10
        assert model.result().spent_ns["PRODUCTIVE"] == 1_000 * 85

    @pytest.mark.parametrize("saves", range(3))
    def test_packed(self, stream, saves):
        """Slices are packed at the same moments, whichever slice fills the block."""
        models = GoodputAccumulator(), Ordinarily()
        for place, event in enumerate(plain(stream, 345, saves).events):
            for model in models:
                model(event)
            if place > 4 * 338:
                assert models[0].dump() == models[1].dump(), place
        assert place > 4 * 338

    def test_long_span_within_a_step(self, stream):
        """A span over the whole past that ends within a step has the time that others left."""
        job = plain(stream, 400)
        job.span("data_loading", 40_105, 40_110).span("model_initialization", 50, 40_120).step(400, 40_100, 40_150)
        model, reference = both(job.events)
        assert model.dump() == reference.dump()
        assert model.result().spent_ns["TRAINING_PREP"] == 40_120 - 50 - 400 * 10 - 5

    def test_late_step(self, stream):
        """A step that begins among packed slices and ends within the next one takes that one's time."""
        job = stream().start(5).step(0, 10, 20).step(1, 20, 30)
        for number in range(1_100):
            job.span("data_loading", 40 + 10 * number, 45 + 10 * number)
        job.step(2, 50, 11_037).step(3, 11_025, 11_060)
        model, reference = both(job.events)
        assert model.dump() == reference.dump()
        assert model.result().problems["a step that began before the last one ended"] == 1

    def test_begun_again(self, stream):
        """A step that began after a checkpoint was loaded is the last one again, so that one was wasted."""
        job = plain(stream, 6).long("checkpoint_load", 700, 710).step_start(5, 720)
        job.span("data_loading", 731, 741).step(5, 730, 800)
        model, reference = both(job.events)
        assert model.dump() == reference.dump()
        assert model.result().spent_ns["WASTED_PROGRESS_FROM_DISRUPTION"] == 85 + 10

    def test_begun_after_a_checkpoint_was_loaded(self, stream):
        """The end of a step that began after a checkpoint was loaded marks the same step before it as done again."""
        job = plain(stream, 6).long("checkpoint_load", 700, 710).step_start(5, 720).step(5, 720, 800)
        model, reference = both(job.events)
        framed = GoodputAccumulator()
        framed.consume(FrameView(job.events[0].source, job.events))
        assert model.dump() == reference.dump() == framed.dump()
        assert model.result().spent_ns["WASTED_PROGRESS_FROM_DISRUPTION"] == 85 + 10

    @pytest.mark.parametrize("role", ["main", "worker"])
    def test_role_of_another_class(self, stream, role):
        """A role that is a text of another class counts like that text."""
        model, reference = both(plain(stream, 20).events)
        found = []
        for one in (model, reference):
            data = one.dump()
            one.load(data)
            process = next(iter(one._processes.values()))
            object.__setattr__(process.source, "role", Key(role))
            for event in plain(stream, 23).events[-8:]:
                event._source = process.source
                one(event)
            found.append(one.dump())
        assert found[0] == found[1]

    @pytest.mark.parametrize("times", [[(1 << 63) - 1, -(1 << 63)], [1, -5]])
    def test_loaded_with_impossible_times(self, stream, times):
        """A loaded state may have any times: a span before them is impossible in both."""

        def spoil(process):
            process["times"] = times

        job = plain(stream, 20)
        for event in job.events[-4:]:
            event.at_ns = -2
        self.check_loaded(job, spoil)

    def test_loaded_with_the_greatest_count(self, stream):
        """A loaded state may have read any number of events."""

        def spoil(process):
            process["events"][0] = (1 << 63) - 2

        self.check_loaded(plain(stream, 20), spoil)

    @pytest.mark.parametrize("start", [-1, 0, 20_045, 20_150])
    def test_loaded_with_an_odd_start(self, stream, start):
        """A loaded state may have a start of the process later than its steps, or none."""

        def spoil(process):
            process["times"][0] = start

        self.check_loaded(plain(stream, 201), spoil)

    def test_loaded_without_a_first_step(self, stream):
        """A loaded state may have no first step."""

        def spoil(process):
            process["steps"][0] = -1

        self.check_loaded(plain(stream, 201), spoil)

    def test_loaded_without_slices(self, stream):
        """A loaded state may have no slices."""

        def spoil(process):
            process["tracks"][0][1] = []

        self.check_loaded(plain(stream, 201), spoil)

    @staticmethod
    def check_loaded(job, spoil):
        """Check that the last step is the same after the state before it was dumped, changed and loaded."""
        found = []
        for model in both(job.events[:-4]):
            data = model.dump()
            spoil(data["processes"][0])
            model.load(data)
            for event in job.events[-4:]:
                model(event)
            found.append(model.dump())
        assert found[0] == found[1]

    def test_asked_within_a_step(self, stream):
        """A query between a loading and the end of its step changes no later result."""
        job = plain(stream, 20)
        model, reference = both(job.events[:-3])
        model.result()
        for event in job.events[-3:]:
            model(event)
            reference(event)
        assert model.result().to_json() == reference.result().to_json()
        assert model.result().spent_ns["PRODUCTIVE"] == 20 * 85

    def test_monitor(self, stream, monkeypatch):
        """A monitor publishes the same, at the same moments."""
        updates = []
        for usual in (_goodput_monitor.read_usual, lambda _process, _source, _events, place, _before: place):
            monkeypatch.setattr(_goodput_monitor, "read_usual", usual)
            found = []
            monitor = GoodputMonitor(found.append, update_interval_s=1e-6)
            for event in plain(stream, 100).events:
                monitor(event)
            updates.append(found)
        assert len(updates[0]) == 10
        assert [update.at_ns for update in updates[0]] == [update.at_ns for update in updates[1]]
        assert updates[0] == updates[1]
