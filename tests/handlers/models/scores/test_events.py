from __future__ import annotations

import math
import struct

import pytest

from trackside.handlers.models.scores import ScoreAggregator
from trackside.wire import RowEncoder

pytestmark = pytest.mark.once


@pytest.fixture
def published():
    return []


def scores_in(event):
    """Return the scores by rank and column."""
    count = len(event.ranks) // 4
    ranks = struct.unpack(f"<{count}I", event.ranks)
    scores = struct.unpack(f"<{count * len(event.columns)}d", event.scores)
    return {
        (rank, column): scores[row * len(event.columns) + index]
        for row, rank in enumerate(ranks)
        for index, column in enumerate(event.columns)
    }


class TestEventsOf:
    @pytest.fixture
    def event(self, published, source, section_window):
        """Give the report of a window with a straggler, a missing section and a silent rank."""
        aggregator = ScoreAggregator(publish=published.append)
        for window in range(2):
            aggregator(section_window(source(0, world=3), window, {"a": 1e6, "b": 1e6}))
            aggregator(section_window(source(1, world=3), window, {"a": 2e6}))
        aggregator(section_window(source(0, world=3), 3, {"a": 1e6}))
        (event,) = [event for event in published if event.window == 1]
        return event

    def test_scores(self, event):
        """The scores are packed by rank and column; a missing one is NaN."""
        scores = scores_in(event)
        assert (scores[0, "relative section a"], scores[1, "relative section a"]) == (1.0, 0.5)
        assert math.isnan(scores[0, "relative section b"])
        assert scores[0, "individual section b"] == 1.0

    def test_columns(self, event):
        """There is a column for each scored section and kind of score."""
        assert event.columns == [
            "relative gpu",
            "relative section a",
            "relative section b",
            "individual gpu",
            "individual section a",
            "individual section b",
        ]

    def test_reasons(self, event):
        """Each missing score has its reason, each score none."""
        table = [
            [event.reason_names[code - 1] if code else "" for code in event.reasons[row * 6 : row * 6 + 6]]
            for row in range(3)
        ]
        assert table == [
            ["no samples", "", "not common to the peers", "no samples", "", ""],
            ["no samples", "", "no samples", "no samples", "", "no samples"],
            ["rank silent"] * 6,
        ]

    def test_stragglers(self, event):
        """A straggler is in it with node, column, score, loss and onset."""
        assert event.stragglers == [[1, "node0", "relative section a", 0.5, 1e-3, 0, 0]]

    def test_nodes(self, event):
        """Each host is named once; a silent rank has none."""
        nodes = [event.nodes[place] for place in struct.unpack("<3I", event.node_of)]
        assert nodes == ["node0", "node0", ""]


class TestParts:
    @pytest.fixture
    def parts(self, published, source, section_window):
        """Give the report on many ranks."""
        aggregator = ScoreAggregator(publish=published.append)
        medians = dict.fromkeys((f"section {number} {'x' * 100}" for number in range(8)), 1.0)
        for rank in range(2000):
            aggregator(section_window(source(rank, world=2000), 0, medians))
        return published

    def test_every_rank_once(self, parts):
        """The parts of a report share the ranks among them."""
        ranks = [rank for event in parts for rank in struct.unpack(f"<{len(event.ranks) // 4}I", event.ranks)]
        assert ranks == list(range(2000))

    def test_numbered(self, parts):
        """Each part has its number and the number of parts."""
        assert [(event.part, event.parts) for event in parts] == [(n, len(parts)) for n in range(len(parts))]

    def test_each_fits(self, parts):
        """Each can be written as a row."""
        assert len(parts) > 1
        for event in parts:
            _, row = RowEncoder().encode(event, 0)
            assert len(row) <= 1 << 18
