"""Steps that come in one frame, beside the same read one by one."""

from __future__ import annotations

import random

import pytest

from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.wire import FrameView

pytestmark = pytest.mark.once


def together(events):
    """Return a model that read *events* as one frame."""
    model = GoodputAccumulator()
    model.consume(FrameView(events[0].source, events))
    return model


def one_by_one(events):
    """Return a model that read *events* one by one."""
    model = GoodputAccumulator()
    for event in events:
        model(event)
    return model


class TestTogether:
    def test_usual(self, stream, monkeypatch):
        """A long plain run leaves the same state; only the start and the first step take the general path."""
        job = stream().start(1)
        for number in range(3_000):
            job.step(number, 10 + 10 * number, 19 + 10 * number)
        expected, odd = one_by_one(job.events), []
        consume = GoodputAccumulator._consume
        monkeypatch.setattr(
            GoodputAccumulator, "_consume", lambda self, event: (odd.append(event), consume(self, event))
        )
        found = together(job.events)
        assert odd == job.events[:2]
        assert found.dump() == expected.dump()
        assert found.result().spent_ns["PRODUCTIVE"] == 27_000

    @pytest.mark.parametrize(
        "odd",
        [
            {"failed": True},
            {"kind": "validation"},
            {"step": 3},
            {"step": True},
            {"step": 10.0},
            {"step": -1},
            {"duration_ns": 0},
            {"duration_ns": -5},
            {"duration_ns": 4.0},
            {"duration_ns": 15},
            {"duration_ns": 10**6},
            {"at_ns": 1 << 62},
            {"at_ns": 1 << 70},
            {"at_ns": 0},
            {"at_ns": 30},
            {"at_ns": None},
            {"step": 1 << 63},
            {"_seq": None},
            {"_seq": 2},
        ],
        ids=str,
    )
    def test_odd_one(self, stream, odd):
        """One unusual step, anywhere in a run, has the same effect as alone."""
        for index in (0, 10, 19):
            job = stream().start(1)
            for number in range(20):
                job.step(number, 100 + 10 * number, 109 + 10 * number)
            job.beat(400)
            event = job.events[1 + index]
            for name, value in odd.items():
                setattr(event, name, value)
            assert together(job.events).dump() == one_by_one(job.events).dump()

    def test_closes_what_was_left_open(self, stream):
        """A step of which a loading never ended ends it, also in the middle of a run."""
        job = stream().start(1)
        job.open("checkpoint_load", 101, parent=12)
        for number in range(20):
            job.step(number, 110 + 10 * number, 119 + 10 * number)
        found = together(job.events)
        assert found.dump() == one_by_one(job.events).dump()
        assert found.result().problems

    def test_begins_within_a_span(self, stream):
        """The first step of a run may have begun while a checkpoint was saved."""
        job = stream().start(1)
        job.step(0, 10, 19).long("checkpoint_save_sync", 30, 60)
        for number in range(1, 20):
            job.step(number, 50 + 10 * number - 5, 59 + 10 * number - 5)
        found = together(job.events)
        assert found.dump() == one_by_one(job.events).dump()
        assert found.result().spent_ns["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] == 30

    def test_ends_what_was_begun(self, stream):
        """A span last seen in a step's heartbeat is not open any more once steps have ended."""
        job = stream().start(1).step(0, 10, 19).beat(25, inside=(700, "model_forward", 22)).step_start(1, 26)
        job.step(1, 27, 29)
        for seen in ({"inside": (900, "model_forward", 32)}, {}):
            job.beat(35, **seen)
            for number in range(2, 20):
                job.step(number, 20 + 10 * number, 29 + 10 * number)
            assert together(job.events).dump() == one_by_one(job.events).dump()

    @pytest.mark.parametrize("seed", range(20))
    def test_any_history(self, stream, seed):
        """Steps, loads, saves and restarts at random leave the same state."""
        rng = random.Random(seed)
        job, at, number = stream().start(1), 10, 0
        for _ in range(60):
            for _ in range(rng.choice([1, 5, 9, 40, 600])):
                length = rng.randrange(1, 50)
                job.step(number, at, at + length, failed=rng.random() < 0.01)
                at += length + rng.choice([0, 0, 3]) - (rng.random() < 0.01)
                number += rng.choice([1] * 50 + [0, 2, -5])
                number = max(number, 0)
            chosen = rng.choice(["checkpoint_save_sync", "checkpoint_load", "data_loading", "validation_loop", ""])
            if chosen:
                start = at - rng.choice([0, 0, 70])
                job.long(chosen, max(start, 2), at + 20)
                at += 20
            if rng.random() < 0.1:
                number = rng.randrange(number + 1)
        found, expected = together(job.events), one_by_one(job.events)
        assert found.dump() == expected.dump()
        assert found.result().to_json() == expected.result().to_json()

    def test_results_in_between(self, stream):
        """A track of whole steps has the same sums whether it was queried while it grew, or once."""
        job = stream().start(1)
        for number in range(100):
            job.step(number, 10 + 10 * number, 19 + 10 * number)
        model = GoodputAccumulator()
        model(job.events[0])
        for place in range(1, 101, 10):
            model.consume(FrameView(job.source, job.events[place : place + 10]))
            spent = model.result().spent_ns
            assert spent["PRODUCTIVE"] == 9 * (place + 9)
        assert model.result().to_json() == one_by_one(job.events).result().to_json()
