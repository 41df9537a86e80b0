"""Events in numbers: for OpenTelemetry, for Prometheus, and of scores the few that matter."""

from __future__ import annotations

import pytest

from trackside.events import (
    CounterWindow,
    GoodputUpdated,
    Heartbeat,
    IterationEnded,
    SectionWindow,
    Source,
    SourceEnded,
    StragglerReport,
    TrainingMetricsUpdated,
)
from trackside.handlers._board import Board, Histogram
from trackside.handlers._figures import Figures, flat_badput
from trackside.handlers._plain import attributes_of
from trackside.handlers._scoreboard import Scoreboard
from trackside.handlers.models.scores import ScoreAggregator


def of(source, event):
    event._source = source
    return event


def window(total, total_sum, values=None, name="train.loss"):
    return CounterWindow(
        name=name, start_ns=0, end_ns=total, count=1, values=values or {}, total_count=total, total_sum=total_sum
    )


def reports(ranks, slow=()):
    found = []
    aggregator = ScoreAggregator(publish=found.append)
    for rank in range(ranks):
        lasted = [2e6 if rank in slow else 1e6 + rank]
        columns = dict.fromkeys(("min_ns", "max_ns", "median_ns", "mean_ns"), lasted)
        told = SectionWindow(
            window=0,
            first_step=0,
            last_step=9,
            start_ns=1,
            at_ns=2,
            names=["forward"],
            counts=[10],
            entries=[10],
            std_ns=[0.0],
            **columns,
        )
        aggregator(of(Source(rank=rank, world_size=ranks, run_id="run", host=f"node{rank // 8}"), told))
    return [report for report in found if isinstance(report, StragglerReport)]


def told(figures, *events):
    return [(one.name, one.kind, one.value, one.attributes) for event in events for one in figures.read(event)]


class TestFigures:
    def test_counter(self):
        """Of sums and counts since the beginning, what came since the last time is to be added."""
        figures = Figures()
        told(figures, window(3, 1.5))
        assert told(figures, window(5, -1.0, {"mean": 0.5})) == [
            ("train.loss", "gauge", 0.5, {"trackside.aggregation": "mean"}),
            ("train.loss.sum", "change", -2.5, {}),
            ("train.loss.count", "count", 2, {}),
        ]

    def test_late_window(self):
        """A count that fell, because windows came in another order, adds nothing."""
        figures = Figures()
        counts = [
            value for name, _, value, _ in told(figures, window(5, 1), window(3, 1), window(6, 1)) if "count" in name
        ]
        assert counts == [5, 0, 1]

    @pytest.mark.parametrize(("name", "fit"), [("a b/c", "a_b/c"), ("9x", "counter.9x"), ("ä", "counter._")])
    def test_names(self, name, fit):
        """Any counter has a name that OpenTelemetry accepts."""
        assert told(Figures(), window(1, 1, name=name))[0][0] == f"{fit}.sum"

    def test_losses(self):
        """Losses of heartbeats are counts by reason."""
        figures = Figures()
        beats = [Heartbeat(sequence=n, counts={"shed": shed, "published": 9}) for n, shed in enumerate((2, 7))]
        assert [value for _, _, value, _ in told(figures, *beats)] == [2, 5]

    def test_failed_iteration(self):
        """Of a failed iteration only the duration counts."""
        event = IterationEnded(duration_ns=10**9, samples=5, loss=1.0, failed=True)
        assert [name for name, *_ in told(Figures(), event)] == ["trackside.iteration.duration"]

    def test_updates(self):
        """What is known in an update of metrics is told, under its name and in its unit."""
        update = TrainingMetricsUpdated(
            train_iterations_start=0,
            current_iteration=1,
            num_iterations=2,
            train_samples_start=0,
            num_train_samples=8,
            interval=1,
            avg_iteration_time_sec=0.5,
        )
        units = {one.name: (one.unit, one.value) for one in Figures().read(update)}
        assert units["trackside.training.avg_iteration_time_sec"] == ("s", 0.5)
        assert "trackside.training.mfu" not in units

    def test_flat_badput(self):
        """Custom badput is told by its type."""
        assert list(flat_badput({"OTHER": 1.0, "CUSTOM_BADPUT_EVENTS": {"A": 2.0}})) == [
            ("OTHER", 1.0),
            ("CUSTOM_BADPUT_EVENTS.A", 2.0),
        ]


class TestScoreboard:
    def test_stats(self):
        """The lowest, the 5th and the 50th percentile are scores of ranks; worked out by hand of 64."""
        board = Scoreboard()
        assert [board.read(report) for report in reports(64, slow={17})] == [False] * (len(reports(64)) - 1) + [True]
        stats = {stat: score for kind, section, stat, score in board.stats() if kind == "relative"}
        assert stats == {"min": 0.5, "p05": 1e6 / (1e6 + 61), "p50": 1e6 / (1e6 + 33)}

    def test_worst(self):
        """The worst ranks are named with their host, each once, the worst first."""
        board = Scoreboard()
        for report in reports(64, slow={17}):
            board.read(report)
        worst = board.worst(3)
        assert [(one.rank, one.host, one.section) for one in worst] == [
            (17, "node2", "forward"),
            (63, "node7", "forward"),
            (62, "node7", "forward"),
        ]

    def test_in_parts(self):
        """A report of many ranks comes in parts, and counts when all are there."""
        parts = reports(3_000, slow={2_999})
        assert len(parts) > 1
        board = Scoreboard()
        for part in reversed(parts):
            assert board.scores == []
            board.read(part)
        assert board.worst(1)[0].rank == 2_999


class TestBoard:
    SOURCE = Source(run_id="run", rank=0)

    def families(self, *events, **options):
        """Return the series by family and labels."""
        board = Board(**options)
        for event in events:
            board.read(event if hasattr(event, "_source") else of(self.SOURCE, event))
        return {family.name: {one.labels: one.value for one in family.series} for family in board.families()}

    def test_durations(self):
        """A duration on a bucket's bound belongs to that bucket."""
        events = [IterationEnded(duration_ns=n) for n in (10**9, 10**9 + 1, 2 * 10**9)]
        found = self.families(*events, buckets_s=(1, 2))
        assert found["trackside_step_duration_seconds"] == {
            ("run", "training"): Histogram([1, 2, 0], pytest.approx(4.000000001))
        }

    def test_goodput_of_who_knows_most(self):
        """Of several that tell of a session's goodput, the one that knows most ranks is believed."""
        own = GoodputUpdated(session="s", elapsed_s=9.0, productive_s=1.0, goodput=0.1, ranks={"rank": [0]})
        whole = GoodputUpdated(session="s", elapsed_s=9.0, productive_s=5.0, goodput=0.6, ranks={"rank": [0, 1]})
        collector = Source(run_id="run", rank=0, role="collector")
        for events in ((own, of(collector, whole)), (of(collector, whole), own)):
            assert self.families(*events)["trackside_goodput_ratio"] == {("run", "s"): 0.6}

    def test_who_has_ended(self):
        """A rank that has ended in good order is not waited for."""
        beats = [of(Source(run_id="run", rank=rank), Heartbeat(sequence=0, at_ns=rank * 10**9)) for rank in (1, 2)]
        over = of(beats[0].source, SourceEnded())
        found = self.families(*beats, over)
        assert found["trackside_ranks"] == {("run",): 1}
        assert found["trackside_oldest_heartbeat_timestamp_seconds"] == {("run",): 2.0}

    def test_nothing_known(self):
        """A family of which nothing is known is not there."""
        assert "trackside_mfu_ratio" not in self.families(Heartbeat(sequence=0))


class TestAttributes:
    def test_kinds(self):
        """Scalars and lists of one kind stay; None goes; the rest becomes text."""
        given = {
            "a": 1,
            "b": [1.5, 2.0],
            "c": None,
            "d": [1, "x"],
            "e": {"k": 1},
            "f": 1 << 64,
            "g": [1 << 64],
            "h": [],
        }
        assert attributes_of(given) == {
            "a": 1,
            "b": [1.5, 2.0],
            "d": '[1, "x"]',
            "e": '{"k": 1}',
            "f": str(1 << 64),
            "g": f"[{1 << 64}]",
            "h": "[]",
        }

    def test_other_libraries(self):
        """NumPy's scalars are numbers."""
        numpy = pytest.importorskip("numpy")
        assert attributes_of({"x": numpy.int64(3), "y": numpy.float32(0.5)}) == {"x": 3, "y": 0.5}
