"""Random jobs whose logs were damaged: never a wrong sum, and the same result whatever the unrelated disturbances."""

from __future__ import annotations

import collections
import copy
import random

import msgpack
import pytest

from trackside.events import IterationEnded
from trackside.handlers.models.goodput import GoodputAccumulator, _packed, _track

pytestmark = pytest.mark.once

HISTORIES = 500


def damage_all(streams, rng):
    """Damage *streams* as bad clocks, other writers, broken disks and careless callers do."""
    for stream in streams:
        events = stream.events
        for _ in range(rng.randint(0, 6) if events else 0):
            index = rng.randrange(len(events))
            event = copy.copy(events[index])
            damage = rng.choice((repeat, swap, drop, misdate, misdate, mistime, misnumber, intrude))
            damage(events, index, event, rng)
            if not events:
                break
        number = 0
        stream.events = [copy.copy(event) for event in events]
        for event in stream.events:
            number = max(0, number - 2 * (rng.random() < 0.03))
            event._source, event._seq = stream.source, number
            number += 1


def repeat(events, index, event, rng):
    events.insert(rng.randrange(len(events) + 1), event)


def swap(events, index, event, rng):
    other = rng.randrange(len(events))
    events[index], events[other] = events[other], events[index]


def drop(events, index, event, rng):
    del events[index]


def misdate(events, index, event, rng):
    near = 1_000 + rng.randint(-60, 500)
    event.at_ns = rng.choice((0, -3, 1 << 63, 10**30, near, near, near, 1.5, None, "x"))
    events[index] = event


def mistime(events, index, event, rng):
    if hasattr(event, "duration_ns"):
        event.duration_ns = rng.choice((-5, 0, 1, 2, 30, 10**6, 1.5, None, "3"))
        events[index] = event


def misnumber(events, index, event, rng):
    event.step = rng.choice((0, 3, 7, -1, 10**12, 1.5, None, "3"))
    events[index] = event


def intrude(events, index, event, rng):
    start, length = 1_000 + rng.randrange(200), rng.randrange(1, 30)
    other = IterationEnded(
        at_ns=start + length, duration_ns=length, step=rng.randrange(20), parent_span_id=0, span_id=77
    )
    events.insert(rng.randrange(len(events) + 1), other)


@pytest.fixture
def mistreated(shuffle, monkeypatch):
    """Give a function that returns the result of a model that was disturbed in every way that must not matter."""

    def answer(streams, rng):
        with monkeypatch.context() as patch:
            patch.setattr(_track, "BLOCK", rng.choice((1, 2, 3, 5)))
            patch.setattr(_packed, "MARK", rng.choice((1, 2, 3)))
            model = GoodputAccumulator()
            for event in shuffle(streams, rng):
                model(event)
                if model.sessions() and rng.random() < 0.2:
                    model.result()
                if rng.random() < 0.05:
                    state = msgpack.unpackb(msgpack.packb(model.dump()))
                    model = GoodputAccumulator()
                    model.load(state)
            return model.result()

    return answer


class TestDamage:
    def test_sum(self, historian, feed, seed):
        """With any damage, every instant from the first start to the end is in one bucket."""
        empty = 0
        for history in range(seed, seed + HISTORIES):
            streams = historian(history).job()
            damage_all(streams, random.Random(history))
            model = feed(*streams)
            if not model.sessions():
                empty += 1
                continue
            result = model.result()
            assert (history, sum(result.spent_ns.values())) == (history, result.end_ns - result.start_ns)
        assert empty < HISTORIES // 10

    def test_windows(self, historian, feed, seed):
        """With any damage, windows add up to the whole."""
        for history in range(seed, seed + HISTORIES // 5):
            streams = historian(history).job()
            damage_all(streams, random.Random(history))
            model = feed(*streams)
            if model.sessions():
                total = collections.Counter()
                for window in model.windows(max(1, (model.result().end_ns - model.result().start_ns) // 7) * 1e-9):
                    total.update(window.spent_ns)
                assert (history, +total) == (history, +collections.Counter(model.result().spent_ns))

    def test_nothing_else_matters(self, historian, feed, mistreated, seed):
        """With damage too, packing, queries, interleaving and a transfer of the state do not change the result."""
        for history in range(seed, seed + HISTORIES // 2):
            streams = historian(history).job()
            rng = random.Random(history)
            damage_all(streams, rng)
            plain = feed(*streams)
            if plain.sessions():
                assert (history, mistreated(streams, rng)) == (history, plain.result())
