"""A process that another one replaces, as when a script without a launcher is run again under one run id."""

from __future__ import annotations

from trackside.events import clock
from trackside.handlers.models.scores import ScoreAggregator


class TestReplaced:
    def test_the_only_one(self, source, section_window):
        """Windows of which the earlier process was the only rank are forgotten with it, and the rest is scored."""
        aggregator = ScoreAggregator(keep=2)
        early, late = (source(0, world=1, id=name, anchor=clock.Anchor(0, at, 0)) for at, name in enumerate("ab"))
        for window in (0, 1):
            aggregator(section_window(early, window, {"forward": 1.0}))
        for window in (5, 6, 7):
            aggregator(section_window(late, window, {"forward": 1.0}))
        assert [report.window for report in aggregator.result().windows] == [6, 7]
