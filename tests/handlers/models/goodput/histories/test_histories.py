"""The account of random jobs against one that is computed instant by instant."""

from __future__ import annotations

import random

import msgpack
import pytest

from trackside.handlers.models.goodput import GoodputAccumulator, _packed, _track

pytestmark = pytest.mark.once

HISTORIES = 1_000


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Pack after a few slices, so that packing matters in a short history."""

    def shrink(rng):
        monkeypatch.setattr(_track, "BLOCK", rng.choice((1, 2, 3, 5, 8)))
        monkeypatch.setattr(_packed, "MARK", rng.choice((1, 2, 3)))

    return shrink


@pytest.fixture
def expected(truth, count):
    """Give a function that returns the time of a job by bucket, computed instant by instant."""
    return lambda streams: count(truth(streams))


class TestHistories:
    def test_every_instant(self, historian, expected, feed, seed):
        """Each instant is in the bucket that the rules name, in a thousand jobs with all kinds of faults."""
        for history in range(seed, seed + HISTORIES):
            streams = historian(history).job()

            assert (history, feed(*streams).result().spent_ns) == (history, expected(streams))

    def test_sum(self, historian, feed, seed):
        """The productive time and all badput make up the time that elapsed."""
        for history in range(seed, seed + HISTORIES):
            result = feed(*historian(history).job()).result()
            customs = result.badput_s["CUSTOM_BADPUT_EVENTS"]
            lost = sum(value for key, value in result.badput_s.items() if key != "CUSTOM_BADPUT_EVENTS")

            total = result.productive_s + lost + sum(customs.values())
            assert (history, total) == (history, pytest.approx(result.elapsed_s, rel=1e-9))

    def test_packed(self, historian, expected, feed, tiny_blocks, seed):
        """Packed slices give the same result as unpacked ones."""
        for history in range(seed, seed + HISTORIES // 2):
            streams = historian(history).job()
            tiny_blocks(random.Random(history))

            assert (history, feed(*streams).result().spent_ns) == (history, expected(streams))

    def test_any_stretch(self, historian, truth, count, feed, seed):
        """The account of any stretch is that of its instants, by all events up to the end."""
        for history in range(seed, seed + HISTORIES // 4):
            streams = historian(history).job()
            instants = truth(streams)
            rng = random.Random(history)
            if instants:
                first, last = min(instants), max(instants) + 1
                start = rng.randint(first - 3, last)
                end = rng.randint(start, last)

                found = feed(*streams).result(start_ns=start, end_ns=end).spent_ns
                assert (history, found) == (history, count(instants, start, end))

    def test_windows_add_up(self, historian, feed, seed):
        """Consecutive windows of any length make up the whole, bucket by bucket, to the nanosecond."""
        for history in range(seed, seed + HISTORIES // 10):
            model = feed(*historian(history).job())
            total = {}
            for window in model.windows(random.Random(history).randint(1, 40) * 1e-9):
                for bucket, length in window.spent_ns.items():
                    total[bucket] = total.get(bucket, 0) + length

            assert (history, total) == (history, model.result().spent_ns)

    def test_attempts(self, historian, feed, seed):
        """The time of each attempt is what is said of its stretch when it is asked for alone."""
        for history in range(seed, seed + HISTORIES // 10):
            model = feed(*historian(history).job())
            assert model.attempts()
            for own in model.attempts():
                alone = model.result(start_ns=own.start_ns, end_ns=own.end_ns)
                expected = (alone.goodput, alone.productive_s, alone.named_badput_s)
                assert (history, own.goodput, own.productive_s, own.named_badput_s) == (history, *expected)

    def test_any_interleaving(self, historian, feed, shuffle, seed):
        """The interleaving of several processes' streams changes neither the result nor the state."""
        for history in range(seed, seed + HISTORIES // 4):
            streams = historian(history).job()
            expected = feed(*streams)
            model = GoodputAccumulator()
            for event in shuffle(streams, random.Random(history)):
                model(event)

            assert (history, model.result()) == (history, expected.result())
            assert (history, model.dump()) == (history, expected.dump())

    def test_asking_changes_nothing(self, historian, feed, shuffle, tiny_blocks, seed):
        """Queries at any time have no influence on later results."""
        for history in range(seed, seed + HISTORIES // 4):
            streams = historian(history).job()
            rng = random.Random(history)
            tiny_blocks(rng)
            model = GoodputAccumulator()
            for event in shuffle(streams, rng):
                model(event)
                if model.sessions() and rng.random() < 0.3:
                    model.result()

            assert (history, model.result()) == (history, feed(*streams).result())

    def test_state_travels(self, historian, feed, shuffle, tiny_blocks, seed):
        """A model that loads another's state at any moment, over the wire, goes on as that one does."""
        for history in range(seed, seed + HISTORIES // 4):
            streams = historian(history).job()
            rng = random.Random(history)
            tiny_blocks(rng)
            model = GoodputAccumulator()
            for event in shuffle(streams, rng):
                model(event)
                if rng.random() < 0.1:
                    state = msgpack.unpackb(msgpack.packb(model.dump()))
                    model = GoodputAccumulator()
                    model.load(state)

            assert (history, model.result()) == (history, feed(*streams).result())

    def test_torn(self, historian, expected, feed, seed):
        """A log that is torn at any event gives the account of its sound part, and reports that the end is missing."""
        for history in range(seed, seed + HISTORIES // 4):
            streams = historian(history).job()
            rng = random.Random(history)
            for stream in streams:
                del stream.events[rng.randint(1, len(stream.events)) :]
            result = feed(*streams).result()

            assert (history, result.spent_ns) == (history, expected(streams))
            assert result.has_ended or "an attempt without an end: it runs, or fell silent" in result.problems
