"""CounterBoard: the totals of all counters over all ranks."""

from __future__ import annotations

import json

import attrs
import pytest

from trackside.core.sketch import Sketch
from trackside.events import CounterWindow, DecodeError, Event, Source
from trackside.handlers.models.counters import CounterBoard
from trackside.testing import recorded

pytestmark = pytest.mark.once


def window_of(
    source: Source, *, name="train.loss", count=2, total=(2, 3.0), values=None, end_ns=10, sketch=b""
) -> Event:
    window = CounterWindow(
        name=name,
        unit="nats",
        start_ns=0,
        end_ns=end_ns,
        count=count,
        values=values if values is not None else {"mean": 1.5},
        sketch=sketch,
        total_count=total[0],
        total_sum=total[1],
    )
    return recorded(window, source=source)


LEFT = Source(id="a", rank=0)
RIGHT = Source(id="b", rank=1)


class TestCounterBoard:
    def test_totals_add_up_over_ranks(self):
        """The total over two ranks is the sum of their latest cumulative values."""
        model = CounterBoard()
        for window in (window_of(LEFT), window_of(LEFT, total=(5, 9.0), end_ns=20), window_of(RIGHT, total=(3, 4.5))):
            model(window)

        totals = model.result().counters["train.loss"]

        assert (totals.count, totals.sum) == (8, 13.5)

    def test_lost_window(self):
        """A window that was lost does not change the total, since the next one carries it."""
        model = CounterBoard()
        model(window_of(LEFT, count=1, total=(100, 250.0), end_ns=90))

        assert model.result().counters["train.loss"].count == 100

    def test_late_window(self):
        """A window that comes after a later one does not reset the total."""
        model = CounterBoard()
        model(window_of(LEFT, total=(5, 9.0), end_ns=20, values={"mean": 3.0}))
        model(window_of(LEFT, total=(2, 3.0), end_ns=10))

        totals = model.result().counters["train.loss"]

        assert (totals.count, totals.windows) == (5, [{"mean": 3.0}])

    def test_empty_window(self):
        """An empty window keeps the values of the one before it."""
        model = CounterBoard()
        model(window_of(LEFT, end_ns=10, values={"mean": 1.5}))
        model(window_of(LEFT, end_ns=20, count=0, values={"count": 0.0}))

        assert model.result().counters["train.loss"].windows == [{"mean": 1.5}]

    def test_quantiles_of_merged_ranks(self):
        """Quantiles over two ranks are those of all values together, within 1 %."""
        model = CounterBoard()
        model(window_of(LEFT, sketch=Sketch(range(1, 501)).to_wire()))
        model(window_of(RIGHT, sketch=Sketch(range(501, 1001)).to_wire()))

        quantiles = model.result().counters["train.loss"].quantiles

        assert quantiles["p50"] == pytest.approx(500, rel=0.011)
        assert quantiles["p99"] == pytest.approx(990, rel=0.011)

    def test_extremes(self):
        """Minimum and maximum are the extremes over all windows that have them."""
        model = CounterBoard()
        model(window_of(LEFT, values={"min": -1.0, "max": 2.0}))
        model(window_of(RIGHT, values={"min": 0.0, "max": 7.0}))

        totals = model.result().counters["train.loss"]

        assert (totals.minimum, totals.maximum) == (-1.0, 7.0)

    def test_dump_and_load(self):
        """A model that loads another's state goes on as that one would."""
        model, other = CounterBoard(), CounterBoard()
        model(window_of(LEFT, sketch=Sketch([1.0, 2.0]).to_wire()))
        model.missed(Source.unknown(""), 3)
        other.load(model.dump())
        for each in (model, other):
            each(window_of(RIGHT, sketch=Sketch([3.0]).to_wire()))

        assert other.dump() == model.dump()

    def test_result_is_json(self):
        """The result serializes to JSON."""
        model = CounterBoard()
        model(window_of(LEFT))

        assert json.loads(json.dumps(attrs.asdict(model.result())))["counters"]["train.loss"]["counts"] == [2]

    def test_missed(self):
        """Missed events are in the result."""
        model = CounterBoard()
        model.missed(Source.unknown(""), 4)
        model.missed(Source.unknown(""), 1)

        assert model.result().missed == 5

    def test_refused_state(self):
        """An invalid state is refused, and the model stays as it was."""
        model = CounterBoard()
        model(window_of(LEFT))
        before = model.dump()

        for state in (
            {},
            {**before, "version": 0},
            {**before, "counters": {"loss": {"sum": 1}}},
            {**before, "missed": None},
        ):
            with pytest.raises(DecodeError):
                model.load(state)
        assert model.dump() == before

    def test_broken_sketch(self):
        """A sketch that cannot be read loses the quantiles of its window, and no total."""
        model = CounterBoard()
        model(window_of(LEFT, sketch=b"\xff"))

        totals = model.result().counters["train.loss"]
        assert (totals.count, totals.quantiles) == (2, {})
