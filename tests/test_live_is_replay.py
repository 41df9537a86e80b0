"""Live = replay: every model ends in the same state, in the job and over its log."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

import trackside
from trackside.events import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    ClockCompared,
    DecodeError,
    Event,
    GpuTimingUnavailable,
    Heartbeat,
    IterationEnded,
    IterationSpanEnded,
    JobConfigured,
    KernelWindow,
    ProfileSpanEnded,
    SectionWindow,
    SlicesCounted,
    Source,
    SpanEnded,
    SpanEventAdded,
    SpanOutOfOrder,
    SpanStarted,
    StepStarted,
    TrainingConfigured,
    clock,
    span_names,
)
from trackside.handlers.models import ClockOffsets, SpanBuilder, TrainingMetrics
from trackside.handlers.models.counters import CounterBoard
from trackside.handlers.models.goodput import GoodputAccumulator, GoodputMonitor
from trackside.handlers.models.scores import ScoreAggregator
from trackside.wire import FrameView

pytestmark = pytest.mark.once

MODELS: dict[str, Callable[[], Any]] = {
    "ClockOffsets": ClockOffsets,
    "CounterBoard": CounterBoard,
    "GoodputAccumulator": GoodputAccumulator,
    "GoodputMonitor": GoodputMonitor,
    "ScoreAggregator": ScoreAggregator,
    "SpanBuilder": SpanBuilder,
    "TrainingMetrics": TrainingMetrics,
}
"""Every model of the project: a new one joins these facts by being listed."""

PUBLISHERS: list[Callable[..., Any]] = [ScoreAggregator, TrainingMetrics]
"""Those that derive events."""


class Work:
    """
    The events of a small training job, generated one by one: phases, loops, saves, errors, and measurements of ranks.
    """

    def __init__(self, bus: trackside.Bus, rng: random.Random) -> None:
        self.bus = bus
        self.rng = rng
        self.ids = itertools.count(1)
        self.step = -1

    def log(self, kind: type[Event], /, **fields: Any) -> None:
        """Publish an event of the step."""
        self.bus.log(kind(**{"step": self.step, "span_id": 0, **fields}))

    @contextlib.contextmanager
    def long(self, name: str, parent_id: int = 0, error: object = None, **attributes: Any) -> Iterator[int]:
        """Publish that a long span starts, and that it ends."""
        number = next(self.ids)
        start_ns = clock.now_ns()
        reported = {"span_id": number, "parent_span_id": parent_id, "name": name, "attributes": attributes}
        self.log(SpanStarted, at_ns=start_ns, **reported)
        yield number
        at_ns = clock.now_ns()
        self.log(SpanEnded, at_ns=at_ns, duration_ns=at_ns - start_ns, error=error, **reported)

    def error(self) -> dict[str, str] | None:
        """Return, one time in ten, an exception."""
        return {"type": "ValueError", "message": "loß"} if self.rng.random() < 0.1 else None

    def iteration(self, kind: str, loop: int) -> None:
        """Publish an iteration and what is in it."""
        number, error = next(self.ids), self.error()
        for name in (span_names.DATA_LOADING, span_names.MODEL_FORWARD, span_names.MODEL_BACKWARD):
            reported = {"span_id": next(self.ids), "name": name, "duration_ns": self.rng.randrange(10**6)}
            self.log(ProfileSpanEnded, parent_span_id=number, **reported)
        if error is not None:
            attributes = {"exception_type": error["type"], "exception_message": error["message"]}
            self.log(SpanEventAdded, span_id=number, name=span_names.ERROR, attributes=attributes)
        self.log(
            IterationEnded,
            span_id=number,
            parent_span_id=loop,
            kind=kind,
            duration_ns=self.rng.randrange(10**6, 10**8),
            loss=self.rng.random(),
            samples=self.rng.choice([None, 8]),
            tokens=self.rng.choice([None, 4096]),
            failed=error is not None,
        )

    def validate(self, loop: int) -> None:
        """Validate for a few iterations."""
        with self.long(span_names.VALIDATION_LOOP, loop) as validation:
            for _ in range(self.rng.randrange(4)):
                self.iteration("validation", validation)

    def save(self, loop: int) -> None:
        """Save a checkpoint, which may fail."""
        strategy, error = self.rng.choice(["sync", "async"]), self.error()
        attributes = {"checkpoint_strategy": strategy, "current_iteration": self.step}
        with self.long(span_names.OF_CHECKPOINT_SAVE[strategy], loop, error, **attributes) as number:
            pass
        reported = {"global_step": self.step, "strategy": strategy, "save_span_id": number, "duration_ns": 10**6}
        if error is not None:
            self.log(CheckpointSaveFailed, error=error, **reported)
        elif self.rng.random() < 0.9:
            self.log(CheckpointSaveSucceeded, path="/ckpt", size_bytes=2**30, **reported)

    def measure(self, window: int, first_step: int) -> None:
        """Publish the times of sections and kernels."""
        names = self.rng.sample(["data", "step", "comm"], 2)
        around = {
            "window": window,
            "first_step": first_step,
            "last_step": self.step,
            "start_ns": clock.now_ns() - 10**9,
        }
        for kind, more in ((SectionWindow, {"entries": [30, 30]}), (KernelWindow, {})):
            columns = {name: [self.rng.uniform(1e6, 2e6) for _ in names] for name in TIMES}
            self.log(kind, **around, **columns, **more, names=names, counts=[30, 30])

    def disturb(self, loop: int) -> None:
        """Publish events that come rarely."""
        inside = {"MainThread": [next(self.ids), "optimizer_update", clock.now_ns()], "reader": ["?"]}
        self.log(Heartbeat, sequence=self.step, open_spans=inside)
        self.log(
            SpanEventAdded, span_id=self.rng.choice([loop, 10**6]), name="noted", attributes={"a": [1, {"b": None}]}
        )
        self.log(SpanOutOfOrder, name="span", problem="ended without a start", span_id=self.rng.randrange(9))
        self.log(IterationSpanEnded, span_id=next(self.ids), parent_span_id=loop, name="custom", duration_ns=-1)
        self.log(StepStarted)
        self.log(SlicesCounted, active=self.rng.randrange(3), total=3, available=3)
        self.log(GpuTimingUnavailable, reason="no GPU")
        clocks = {"source_id": "another", "offset_ns": 1_000 * self.step, "uncertainty_ns": 100, "exchanges": 16}
        self.log(ClockCompared, **clocks)


TIMES = ("min_ns", "max_ns", "median_ns", "mean_ns", "std_ns")


def work(bus: trackside.Bus, rng: random.Random, steps: int) -> None:
    """Publish the events of a small training job on *bus*."""
    losses = bus.stat("train.loss", unit="nats", aggregations=["count", "sum", "min", "max", "p50"])
    collector = bus.collect(count=7)
    job = Work(bus, rng)
    job.log(JobConfigured, world_size=3, rank=0, node_name="node", session_tag="task", perf_tags=["v1"])
    training = {"global_batch_size": 8, "flops_per_sample": 10**9, "peak_flops_per_s": 1e15, "seq_length": 512}
    job.log(TrainingConfigured, perf_tag=["v1"], log_every_n_train_iterations=16, **training)
    with job.long(span_names.APPLICATION) as application:
        with job.long(span_names.CHECKPOINT_LOAD, application, current_iteration=-1):
            pass
        with job.long(span_names.TRAINING_LOOP, application, job.error(), train_iterations_start=0) as loop:
            for job.step in range(steps):
                for _ in range(rng.randrange(4)):
                    losses.record(rng.gauss(2.0, 0.5))
                job.iteration("training", loop)
                if job.step % 16 == 0:
                    bus.registry.flush()
                    job.validate(loop)
                if job.step % 20 == 19:
                    job.save(loop)
                    job.disturb(loop)
                if job.step % 32 == 31:
                    job.measure(job.step // 32, job.step - 31)
    collector.close()


def record(directory: Path, source: Source, seed: int, steps: int = 200) -> dict[str, Any]:
    """Run a job as *source* with a log and all models; return the models. Those that publish do so, into the log."""
    models = {name: make() for name, make in MODELS.items()}
    with trackside.Bus(source=source) as bus:
        bus.subscribe(trackside.EventLog(directory))
        for model in models.values():
            if getattr(model, "publish", model) is None:
                model.publish = [].append  # or the bus would set its own: the publishers below are enough
        for model in (*models.values(), *(publisher(publish=bus.log) for publisher in PUBLISHERS)):
            bus.subscribe(model)
        work(bus, random.Random(seed), steps)
        assert bus.flush(60)
    assert bus.stats().lost == 0
    return models


def interleaved(streams: Iterable[Iterable[Event]], rng: random.Random) -> Iterator[Event]:
    """Yield the events of all *streams*, each in its order, interleaved at random."""
    waiting = [iter(stream) for stream in streams]
    while waiting:
        stream = rng.choice(waiting)
        try:
            yield next(stream)
        except StopIteration:
            waiting.remove(stream)


@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_live_is_replay(self, name, tmp_path, seed):
        """The state in the job, and its result, equal those over the log of the same job."""
        live = record(tmp_path, Source(id="one"), seed)[name]

        (replayed,) = trackside.feed(trackside.replay(tmp_path), MODELS[name]())

        assert replayed.dump() == live.dump()
        assert replayed.result() == live.result()

    def test_any_interleaving(self, name, tmp_path, rng):
        """The interleaving of several sources' streams changes nothing."""
        for rank in range(3):
            record(tmp_path / str(rank), Source(id=f"source-{rank}", rank=rank, world_size=3), seed=rank)
        streams = [list(trackside.replay(tmp_path / str(rank))) for rank in range(3)]
        (by_time,) = trackside.feed(trackside.replay(tmp_path), MODELS[name]())

        for _ in range(5):
            (shuffled,) = trackside.feed(interleaved(streams, rng), MODELS[name]())
            assert shuffled.dump() == by_time.dump()
            assert shuffled.result() == by_time.result()

    def test_any_cut(self, name, tmp_path, rng):
        """The cuts between the frames of the stream change nothing: whole, event by event, or at random."""
        record(tmp_path, Source(id="one"), seed=4)
        events = list(trackside.replay(tmp_path))
        cuts = [[0, len(events)], list(range(len(events) + 1))]
        for _ in range(3):
            inside = rng.sample(range(1, len(events)), rng.randrange(1, 60))
            cuts.append([0, *sorted(inside), len(events)])
        models = [MODELS[name]() for _ in cuts]
        for model, places in zip(models, cuts, strict=True):
            for first, end in itertools.pairwise(places):
                model.consume(FrameView(events[first].source, events[first:end]))

        whole = models[0]
        assert [model.dump() for model in models] == [whole.dump()] * len(cuts)
        assert [model.result() for model in models] == [whole.result()] * len(cuts)
        assert whole.dump() != MODELS[name]().dump()

    def test_refused_state_changes_nothing(self, name, tmp_path):
        """A state of another version, a broken one, or none at all is refused, and the model is unchanged."""
        record(tmp_path, Source(id="one"), seed=5, steps=20)
        (model,) = trackside.feed(trackside.replay(tmp_path), MODELS[name]())
        before = model.dump()
        key = next(key for key, value in before.items() if isinstance(value, (list, dict)))

        for state in ({}, [], {**before, "version": 77}, {**before, key: 7}, {**before, key: [[1, 2, 3]]}):
            with pytest.raises(DecodeError):
                model.load(state)
            assert model.dump() == before

    def test_state_travels(self, name, tmp_path, rng):
        """A model that loads another's state at any moment goes on as that one does."""
        record(tmp_path, Source(id="one"), seed=1)
        events = list(trackside.replay(tmp_path))
        index = rng.randrange(len(events))
        first, second = MODELS[name](), MODELS[name]()
        trackside.feed(events[:index], first)

        second.load(msgpack.unpackb(msgpack.packb(first.dump())))
        trackside.feed(events[index:], first, second)

        assert second.dump() == first.dump()

    def test_derived_events_are_not_read(self, name, tmp_path):
        """Events that models derive leave the state as it is."""
        record(tmp_path, Source(id="one"), seed=2)
        events = list(trackside.replay(tmp_path))
        plain = [event for event in events if not type(event).derived]
        (from_all,) = trackside.feed(events, MODELS[name]())
        (from_plain,) = trackside.feed(plain, MODELS[name]())

        assert len(plain) < len(events)
        assert from_all.dump() == from_plain.dump()


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_derived_events_are_computed_again(publisher, tmp_path, seed):
    """A model publishes over the log the same events as in the job."""
    record(tmp_path, Source(id="one"), seed)
    again: list[Event] = []
    trackside.feed(trackside.replay(tmp_path), publisher(publish=again.append))
    kinds = tuple({type(event) for event in again})
    recorded = list(trackside.replay(tmp_path, to=kinds))

    assert [trackside.wire.fields_of(event) for event in recorded] == [
        trackside.wire.fields_of(event) for event in again
    ]
    assert again != []
