"""The metric catalogue, the summary of scores, and the current metrics of a job."""

from __future__ import annotations

import math

import pytest

from processes import of
from trackside.events import (
    CounterWindow,
    GoodputUpdated,
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
)
from trackside.handlers.export import CATALOGUE, CurveReader, Histogram, JobMetrics, MetricReader, flat_badput
from trackside.handlers.export._metric_catalogue import ScoreSummary
from windows import straggler_reports


def window(total, total_sum, values=None, name="train.loss", kind="stat"):
    return CounterWindow(
        name=name,
        kind=kind,
        start_ns=0,
        end_ns=total,
        count=1,
        values=values or {},
        total_count=total,
        total_sum=total_sum,
    )


def points(*events):
    """Return name, kind, value and labels of the OpenTelemetry metrics of *events*."""
    reader = MetricReader()
    return [
        (point.metric.name, point.metric.kind, point.value, point.labels)
        for event in events
        for point in reader.read(of(SOURCE, event))
        if point.metric.name
    ]


SOURCE = Source(run_id="run", rank=0)


class TestCatalogue:
    @pytest.mark.parametrize("system", ["name", "prometheus"])
    def test_names_are_unique(self, system):
        """No two rows have the same name in one system."""
        names = [name for metric in CATALOGUE if (name := getattr(metric, system))]
        assert len(names) == len(set(names)) > 10

    def test_fields_exist(self):
        """Each row reads fields that its event has."""
        for metric in CATALOGUE:
            fields = {metric.field, *metric.labels.values(), metric.curve_relative_to} - {""}
            assert all(hasattr(metric.event, field) for field in fields), metric

    def test_ends_up_somewhere(self):
        """Each row is exported to a system."""
        assert all(metric.name or metric.prometheus or metric.curve for metric in CATALOGUE)

    def test_iteration(self):
        """An iteration yields its duration in seconds, its samples and tokens, its loss and its step."""
        event = IterationEnded(duration_ns=5 * 10**8, samples=5, loss=1.0, step=7)
        loop = {"loop": "training"}
        assert points(event) == [
            ("trackside.iteration.duration", "histogram", 0.5, {**loop, "failed": False}),
            ("trackside.iteration.samples", "counter", 5, loop),
            ("trackside.iteration.loss", "gauge", 1.0, loop),
            ("trackside.iteration.step", "gauge", 7, loop),
        ]

    def test_failed_iteration(self):
        """A failed iteration yields its duration alone."""
        event = IterationEnded(duration_ns=10**9, samples=5, loss=1.0, failed=True)
        assert points(event) == [
            ("trackside.iteration.duration", "histogram", 1.0, {"loop": "training", "failed": True})
        ]

    def test_counter(self):
        """A counter is its sum since the process began."""
        assert points(window(5, 70.0, {"sum": 20.0}, kind="counter")) == [("train.loss", "counter", 70.0, {})]

    def test_gauge(self):
        """A gauge is its latest value."""
        assert points(window(5, 9.0, {"value": 0.0}, kind="gauge")) == [("train.loss", "gauge", 0.0, {})]

    def test_stat(self):
        """A stat is the statistics of its window, and its sum and count since the process began."""
        assert points(window(5, -1.0, {"mean": 0.5})) == [
            ("train.loss", "gauge", 0.5, {"aggregation": "mean"}),
            ("train.loss.sum", "up_down_counter", -1.0, {}),
            ("train.loss.count", "counter", 5, {}),
        ]

    @pytest.mark.parametrize(("name", "fit"), [("a b/c", "a_b/c"), ("9x", "counter.9x"), ("ä", "counter._")])
    def test_names(self, name, fit):
        """An instrument of any name gets one that OpenTelemetry accepts."""
        assert points(window(1, 1, name=name))[0][0] == f"{fit}.sum"

    def test_losses(self):
        """The losses in a heartbeat are totals by reason; its other counts are no metrics."""
        heartbeat = Heartbeat(sequence=0, counts={"dropped": 7, "published": 9})
        assert points(heartbeat) == [("trackside.events.dropped", "counter", 7, {"reason": "dropped"})]

    def test_updates(self):
        """A known field of a metric update is a gauge of its name and unit; an unknown one has no point."""
        update = TrainingMetricsUpdated(
            train_iterations_start=0,
            current_iteration=1,
            num_iterations=2,
            train_samples_start=0,
            num_train_samples=8,
            interval=1,
            avg_iteration_time_sec=0.5,
        )
        units = {point.metric.name: (point.metric.unit, point.value) for point in MetricReader().read(update)}
        assert units["trackside.training.avg_iteration_time_sec"] == ("s", 0.5)
        assert "trackside.training.mfu" not in units

    def test_flat_badput(self):
        """Custom badput is named by its type."""
        assert list(flat_badput({"OTHER": 1.0, "CUSTOM_BADPUT_EVENTS": {"A": 2.0}})) == [
            ("OTHER", 1.0),
            ("CUSTOM_BADPUT_EVENTS.A", 2.0),
        ]


class TestCurves:
    def test_goodput_of_windows(self):
        """The goodput of each rolling window is a curve in percent; a window that has none yet has no point."""
        windows = {"length_s": [600.0, 3600.0], "goodput": [0.25, None]}
        update = GoodputUpdated(
            session="s", elapsed_s=900.0, productive_s=450.0, goodput=0.5, last_step=7, windows=windows
        )
        found = [point for point in CurveReader().read(update) if point.tag.startswith("goodput/window")]
        assert found == [("goodput/window_600_s", 25.0, 7)]


class TestScoreSummary:
    def test_stats(self):
        """The lowest, the 5th and the 50th percentile are scores of ranks; worked out by hand of 64."""
        summary = ScoreSummary()
        reports = straggler_reports(64, slow={17})
        assert [summary.add(report) for report in reports] == [False] * (len(reports) - 1) + [True]
        stats = {stat: score for kind, section, stat, score in summary.statistics() if kind == "relative"}
        assert stats == {"min": 0.5, "p05": 1e6 / (1e6 + 61), "p50": 1e6 / (1e6 + 33)}

    def test_worst(self):
        """The worst ranks are named with their host, each once, the worst first."""
        summary = ScoreSummary()
        for report in straggler_reports(64, slow={17}):
            summary.add(report)
        worst = summary.worst(3)
        assert [(one.rank, one.host, one.section) for one in worst] == [
            (17, "node2", "forward"),
            (63, "node7", "forward"),
            (62, "node7", "forward"),
        ]

    def test_stragglers(self):
        """A rank that is slow in two windows is a straggler, with what it loses: 1 ms in each step, by hand."""
        summary = ScoreSummary()
        for report in straggler_reports(64, slow={17}, windows=2):
            summary.add(report)
            assert summary.stragglers == [] or report.window == 1
        (found,) = summary.stragglers
        assert (found.rank, found.host, found.section, found.kind) == (17, "node2", "forward", "relative")
        assert found.score == pytest.approx(1e-3, rel=1e-12)

    @pytest.mark.parametrize("row", [[], [1, "node"], [1, "node", "relative gpu", 0.5, "much", 0, 0]])
    def test_malformed_stragglers(self, row):
        """A straggler that is not as one is written is left out."""
        (report,) = straggler_reports(2)
        report.stragglers = [row, [1, "node", "relative gpu", 0.5, 2.0, 0, 0]]
        summary = ScoreSummary()
        assert summary.add(report)
        assert [one.score for one in summary.stragglers] == [2.0]

    def test_in_parts(self):
        """A report of many ranks comes in parts, and counts when all are there."""
        parts = straggler_reports(3_000, slow={2_999})
        assert len(parts) > 1
        summary = ScoreSummary()
        for part in reversed(parts):
            assert summary.scores == []
            summary.add(part)
        assert summary.worst(1)[0].rank == 2_999


class TestJobMetrics:
    def families(self, *events, **options):
        """Return the series by family and labels."""
        metrics = JobMetrics(**options)
        for event in events:
            metrics.add(event if hasattr(event, "_source") else of(SOURCE, event))
        return {family.name: {one.labels: one.value for one in family.series} for family in metrics.families()}

    def test_durations(self):
        """A duration on a bucket's bound belongs to that bucket."""
        events = [IterationEnded(duration_ns=n) for n in (10**9, 10**9 + 1, 2 * 10**9)]
        found = self.families(*events, buckets_s=(1, 2))
        assert found["trackside_step_duration_seconds"] == {
            ("run", "training", "false"): Histogram((1, 2, 0), pytest.approx(4.000000001))
        }

    def test_of_several_ranks(self):
        """Samples and tokens are summed over the ranks; the largest step stands for all."""
        events = [
            of(Source(run_id="run", rank=rank), IterationEnded(duration_ns=1, step=step, samples=step))
            for rank, step in ((0, 3), (1, 5), (0, 4))
        ]
        found = self.families(*events)
        assert found["trackside_samples"] == {("run", "training"): 12}
        assert found["trackside_last_step"] == {("run", "training"): 5}

    def test_lowest_rank(self):
        """Metrics of a whole job that several ranks publish are those of the lowest rank."""

        def update(rank, loss):
            fields = {"train_iterations_start": 0, "current_iteration": 1, "num_iterations": 2, "interval": 1}
            event = TrainingMetricsUpdated(train_samples_start=0, num_train_samples=8, latest_loss=loss, **fields)
            return of(Source(run_id="run", rank=rank), event)

        found = self.families(update(2, 2.0), update(1, 1.0), update(2, 3.0), update(1, 0.0))
        assert found["trackside_loss"] == {("run",): 0.0}

    def test_of_the_latest_iterations(self):
        """Throughput is there over the latest iterations, and over the job so far."""
        started = {"train_iterations_start": 0, "current_iteration": 1, "num_iterations": 2, "train_samples_start": 0}
        whole = TrainingMetricsUpdated(interval=1, mfu=0.4, **started)
        found = self.families(TrainingWindowUpdated(num_iterations=1, mfu=0.5), whole)
        assert found["trackside_window_mfu_ratio"] == {("run",): 0.5}
        assert found["trackside_mfu_ratio"] == {("run",): 0.4}

    def test_goodput_of_who_knows_most(self):
        """Of several updates of a session's goodput, the one that knows more ranks is shown."""
        own = GoodputUpdated(session="s", elapsed_s=9.0, productive_s=1.0, goodput=0.1, ranks={"rank": [0]})
        whole = GoodputUpdated(session="s", elapsed_s=9.0, productive_s=5.0, goodput=0.6, ranks={"rank": [0, 1]})
        collector = Source(run_id="run", rank=0, role="collector")
        for events in ((own, of(collector, whole)), (of(collector, whole), own)):
            assert self.families(*events)["trackside_goodput_ratio"] == {("run", "s"): 0.6}

    def test_bucket_that_is_gone(self):
        """A bucket that the latest update of a session does not have any more has no series."""
        updates = [
            GoodputUpdated(session="s", elapsed_s=9.0, productive_s=1.0, goodput=0.1, badput_s=badput_s)
            for badput_s in ({"OTHER": 3.0, "PROGRAM_STARTUP": 5.0}, {"OTHER": 8.0})
        ]
        assert self.families(*updates)["trackside_badput_seconds"] == {("run", "s", "OTHER"): 8.0}

    def test_who_has_ended(self):
        """A rank that has ended in good order is not waited for."""
        beats = [of(Source(run_id="run", rank=rank), Heartbeat(sequence=0, at_ns=rank * 10**9)) for rank in (1, 2)]
        over = of(beats[0].source, SourceEnded())
        found = self.families(*beats, over)
        assert found["trackside_ranks"] == {("run",): 1}
        assert found["trackside_oldest_heartbeat_timestamp_seconds"] == {("run",): 2.0}

    def test_restart_after_a_kill(self):
        """A rank that was killed is replaced by its next attempt: one rank, one heartbeat, and the totals of both."""
        sources = [Source(run_id="run", rank=3, attempt=attempt) for attempt in (0, 1)]
        events = [
            of(source, event)
            for source in sources
            for event in (
                Heartbeat(sequence=0, at_ns=(1 + source.attempt) * 10**9, counts={"dropped": 5}),
                window(2, 7.0, kind="counter"),
            )
        ]
        found = self.families(*events)
        assert found["trackside_ranks"] == {("run",): 1}
        assert found["trackside_oldest_heartbeat_timestamp_seconds"] == {("run",): 2.0}
        assert found["trackside_dropped"] == {("run", "all", "dropped"): 10}
        assert found["trackside_counter"] == {("run", "train.loss", ""): 14.0}

    def test_losses_of_a_job(self):
        """Without a bus, losses are the sums of the ranks' latest heartbeats; they outlive the ranks."""
        first, second = Source(run_id="run", rank=0), Source(run_id="run", rank=1)
        beats = [(first, 2), (second, 10), (first, 5)]
        events = [of(source, Heartbeat(sequence=0, counts={"dropped": dropped})) for source, dropped in beats]
        expected = {("run", "all", "dropped"): 15}
        assert self.families(*events)["trackside_dropped"] == expected
        assert self.families(*events, of(first, SourceEnded()))["trackside_dropped"] == expected

    def test_nothing_known(self):
        """A family without values is left out."""
        assert "trackside_mfu_ratio" not in self.families(Heartbeat(sequence=0))

    def test_window_of_one_process(self):
        """The statistics of a stat are those of its latest window, and its count and sum those of all values."""
        found = self.families(window(3, 6.0, {"mean": 2.0}), window(5, 6.0, {"mean": 0.0}))
        assert found["trackside_stat_window"] == {("run", "train.loss", "", "mean"): 0.0}
        assert found["trackside_stat"] == {("run", "train.loss", ""): Histogram((5,), 6.0)}

    def test_windows_of_several_processes(self):
        """Windows of several processes are one: the least minimum, the greatest maximum, the mean over all values."""
        values = {"mean": 1.0, "min": 0.5, "max": 2.0}, {"mean": 4.0, "min": 1.0, "max": 5.0}
        events = [of(Source(run_id="run", rank=rank), window(1, 1.0, each)) for rank, each in enumerate(values)]
        assert self.families(*events)["trackside_stat_window"] == {
            ("run", "train.loss", "", "mean"): 2.5,
            ("run", "train.loss", "", "min"): 0.5,
            ("run", "train.loss", "", "max"): 5.0,
        }

    def test_empty_window(self):
        """A window without values is a gap, not the figures of the one before."""
        empty = CounterWindow(
            name="train.loss", start_ns=3, end_ns=4, count=0, values={"count": 0}, total_count=3, total_sum=6.0
        )
        found = self.families(window(3, 6.0, {"mean": 2.0}), empty)
        assert "trackside_stat_window" not in found
        assert found["trackside_stat"] == {("run", "train.loss", ""): Histogram((3,), 6.0)}

    def test_window_of_a_process_that_ended(self):
        """A process that has ended has no current values, and its totals stay."""
        found = self.families(window(3, 6.0, {"mean": 2.0}), SourceEnded())
        assert "trackside_stat_window" not in found
        assert found["trackside_stat"] == {("run", "train.loss", ""): Histogram((3,), 6.0)}

    def test_window_of_a_silent_process(self):
        """A window that is more than five minutes older than the job's latest event is a gap."""
        early = window(3, 6.0, {"mean": 2.0})
        for seconds, is_shown in ((300, True), (301, False)):
            later = Heartbeat(sequence=0, at_ns=early.at_ns + seconds * 10**9)
            found = self.families(early, of(Source(run_id="run", rank=1), later))
            assert ("trackside_stat_window" in found) is is_shown

    def test_counters(self):
        """A counter of a job is the sum over its processes, also of those that have ended."""
        first, second = Source(run_id="run", rank=0), Source(run_id="run", rank=1)
        events = [
            of(first, window(1, 5.0, kind="counter")),
            of(first, SourceEnded()),
            of(second, window(1, 2.0, kind="counter")),
            of(second, window(2, 3.0, kind="counter")),
        ]
        assert self.families(*events)["trackside_counter"] == {("run", "train.loss", ""): 8.0}

    def test_gauges(self):
        """A gauge has its current value: the latest one, also if it is 0, and if the latest window has none."""
        unset = CounterWindow(
            name="train.loss", kind="gauge", start_ns=1, end_ns=2, count=0, total_count=2, total_sum=2.0
        )
        found = self.families(
            window(1, 2.0, {"value": 2.0}, kind="gauge"), window(2, 2.0, {"value": 0.0}, kind="gauge"), unset
        )
        assert found["trackside_gauge"] == {("run", "train.loss", "", stat): 0.0 for stat in ("min", "mean", "max")}

    def test_gauges_of_ranks(self):
        """A gauge of several ranks is their least, mean and greatest value, and on request the value of each."""
        events = [
            of(Source(run_id="run", rank=rank, host="h"), window(1, 1.0, {"value": value}, kind="gauge"))
            for rank, value in ((0, 1.0), (1, 4.0))
        ]
        found = self.families(*events, per_rank=True)
        assert {labels[-1]: value for labels, value in found["trackside_gauge"].items()} == {
            "min": 1.0,
            "mean": 2.5,
            "max": 4.0,
        }
        assert found["trackside_rank_gauge"] == {
            ("run", "train.loss", "", "0", "h"): 1.0,
            ("run", "train.loss", "", "1", "h"): 4.0,
        }

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -0.0, 1e308, 5e-324])
    def test_extreme_numbers(self, value):
        """A number beyond the usual ones is shown as it is, for every kind of instrument and several processes."""
        events = [
            of(Source(run_id="run", rank=rank), window(1, value, {"value": value}, name=kind, kind=kind))
            for rank in (0, 1)
            for kind in ("counter", "stat", "gauge")
        ]
        found = self.families(*events)
        total = pytest.approx(2 * value, rel=1e-15, abs=0.0, nan_ok=True)
        assert found["trackside_counter"][("run", "counter", "")] == total
        assert found["trackside_stat"][("run", "stat", "")].total == total
        shown = [found["trackside_gauge"][("run", "gauge", "", stat)] for stat in ("min", "max")]
        assert shown == [pytest.approx(value, rel=0, abs=0, nan_ok=True)] * 2

    def test_tags_of_the_run(self):
        """A series of value 1 has the run's tags and metadata as labels."""
        source = Source(
            run_id="run", session_tag="friday", perf_tags=("a", "b"), baseline=True, metadata={"git sha": "1234"}
        )
        metrics = JobMetrics()
        metrics.add(of(source, Heartbeat(sequence=0)))
        (info,) = [family for family in metrics.families() if family.name == "trackside_run_info"]
        (series,) = info.series
        assert dict(zip(info.labels, series.labels, strict=True)) == {
            "run": "run",
            "session": "friday",
            "application": "",
            "perf_tags": "a,b",
            "baseline": "true",
            "attempt": "0",
            "world_size": "1",
            "metadata_git_sha": "1234",
        }
        assert series.value == 1
