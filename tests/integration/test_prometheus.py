"""The page for Prometheus: the real server's results against the models' own numbers."""

from __future__ import annotations

import json
import logging
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import attrs
import pytest

import trackside
from processes import of
from trackside.bus import Bus
from trackside.events import (
    ConfigError,
    CounterWindow,
    GoodputUpdated,
    Heartbeat,
    IterationEnded,
    RunsOn,
    Source,
    SourceEnded,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
)
from trackside.handlers import replay
from trackside.handlers.models import CounterBoard
from trackside.handlers.models.goodput import GoodputAccumulator
from windows import straggler_reports

pytest.importorskip("prometheus_client")

from trackside.handlers.prometheus_client import PrometheusSink

pytestmark = pytest.mark.integration

SHARES = ("min", "p05", "p50")
DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD = DOCS.parent / "examples" / "deploy" / "grafana-dashboard.json"


@pytest.fixture
def sink(port):
    found = PrometheusSink(port)
    yield found
    found.close(5)


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def goodput_update(**given):
    return GoodputUpdated(
        **{
            "session": "s",
            "elapsed_s": 100.0,
            "productive_s": 61.8,
            "goodput": 0.618,
            "badput_s": {"OTHER": 30.0, "CUSTOM_BADPUT_EVENTS": {"EVAL": 8.2}},
            "disruptions": 1,
            **given,
        }
    )


class TestTexts:
    def test_lone_surrogates(self, sink, port):
        """A label without a UTF-8 form has an escape, and the page is served."""
        sink(of(Source(run_id="run"), goodput_update(badput_s={"evaluation\udcff": 8.2})))
        assert r'trackside_badput_seconds{bucket="evaluation\\udcff",run="run",session="s"} 8.2' in scrape(port)


class TestNumbers:
    def test_are_the_models(self, prometheus, port, tmp_path, eventually):
        """Queries return the models' numbers of the same job: goodput, badput, stats, steps."""
        sink = PrometheusSink(port, stats=trackside.stats)
        with trackside.start(tmp_path, report=False, collect_interval_s=0.1):  # noqa: SIM117  the job ends last
            with trackside.application(), trackside.training_loop(train_iterations_start=0):
                for step in range(40):
                    with trackside.training_iteration(step=step, samples=8, tokens=64):
                        trackside.stat("train.loss").record(1.0 / (step + 1))
        events = list(replay(tmp_path))
        goodput, counters = GoodputAccumulator(), CounterBoard()
        for event in events:
            goodput(event)
            counters(event)
            sink(event)
        result = goodput.result()
        sink(of(events[0].source, goodput_update_of(result)))
        durations = [event.duration_ns / 1e9 for event in events if isinstance(event, IterationEnded)]
        server = prometheus(port)
        eventually(lambda: server.query("trackside_goodput_ratio"), what="it was scraped")

        assert server.value("trackside_goodput_ratio") == result.goodput
        assert server.value("trackside_productive_seconds") == result.productive_s
        recorded = {labels["bucket"]: value for labels, value in server.query("trackside_badput_seconds")}
        assert recorded == {name: value for name, value in result.badput_s.items() if not isinstance(value, dict)}
        spent = server.value("sum(trackside_badput_seconds) + sum(trackside_productive_seconds)")
        assert spent == pytest.approx(server.value("trackside_elapsed_seconds"), rel=1e-9)
        board = counters.result().counters["train.loss"]
        assert server.value('trackside_stat_count{name="train.loss"}') == board.count == 40
        assert server.value('trackside_stat_sum{name="train.loss"}') == board.sum
        assert not server.query("trackside_stat_window")  # the process has ended
        assert server.value("trackside_step_duration_seconds_count") == 40
        assert server.value("trackside_step_duration_seconds_sum") == pytest.approx(sum(durations), rel=1e-12)
        slow = sum(duration > 0.001 for duration in durations)
        assert server.value('trackside_step_duration_seconds_bucket{le="0.001"}') == 40 - slow
        assert server.value("trackside_samples_total") == 320
        assert server.value("trackside_tokens_total") == 2_560
        assert server.value("trackside_last_step") == 39
        sink.close(5)

    def test_scores(self, prometheus, sink, port, eventually):
        """The scores of 64 ranks are the lowest, the 5th and the 50th percentile, and the eight worst by name."""
        source = Source(run_id="run")
        for report in straggler_reports(64, slow={17}, windows=2):
            sink(of(source, report))
        server = prometheus(port)
        eventually(lambda: server.query("trackside_straggler_score"), what="it was scraped")
        relative = 'kind="relative",section="forward"'
        # By hand: the reference is the fastest rank's 1 ms; of 64 scores, the 4th and the 32nd from below.
        stats = {stat: server.value(f'trackside_straggler_score{{{relative},stat="{stat}"}}') for stat in SHARES}
        assert stats == {"min": 1e6 / 2e6, "p05": 1e6 / (1e6 + 61), "p50": 1e6 / (1e6 + 33)}
        worst = server.query(f"trackside_straggler_worst_score{{{relative}}}")
        assert len(server.query("trackside_straggler_worst_score")) == 8
        first = min(worst, key=lambda one: one[1])
        assert (first[0]["rank"], first[0]["host"], first[1]) == ("17", "node2", 0.5)
        ((labels, lost_s),) = server.query(f"trackside_straggler_lost_seconds{{{relative}}}")
        assert (labels["rank"], lost_s) == ("17", pytest.approx(1e-3, rel=1e-12))

    def test_ranks(self, prometheus, sink, port, eventually):
        """Over a whole job, counts are sums over the ranks, and the rank that is silent for longest is shown."""
        for rank in range(3):
            source = Source(rank=rank, run_id="run", world_size=3)
            sink(of(source, IterationEnded(step=rank, duration_ns=10**9, samples=5)))
            sink(of(source, Heartbeat(sequence=0, counts={"dropped": rank, "failed": 1}, at_ns=(1_000 + rank) * 10**9)))
        sink(of(source, SourceEnded(reason="closed")))
        server = prometheus(port)
        eventually(lambda: server.query("trackside_ranks"), what="it was scraped")
        assert server.value("trackside_ranks") == 2
        assert server.value("trackside_oldest_heartbeat_timestamp_seconds") == 1_000
        assert server.value("trackside_samples_total") == 15
        assert server.value('trackside_dropped_total{reason="dropped"}') == 3
        assert server.value("sum(trackside_dropped_total)") == 6
        assert server.value('trackside_step_duration_seconds_bucket{le="0.5"}') == 0
        assert server.value('trackside_step_duration_seconds_bucket{le="1.0"}') == 3


def queries():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel["targets"]]


def alerts():
    """Return the queries of the page's alerts."""
    page = (DOCS / "prometheus.md").read_text(encoding="utf-8")
    lines = page.partition("## Alerts worth having")[2].partition("```text\n")[2].partition("```")[0].splitlines()
    assert len(lines) == 3
    return [line.split("   ")[0] for line in lines]


class TestDashboard:
    def test_every_query(self, prometheus, sink, port, eventually):
        """Every query of the Grafana dashboard has a result from the real server, and not an empty one."""
        source = Source(run_id="run", rank=0)

        def feed(step):
            sink(of(source, IterationEnded(step=step, duration_ns=10**8, samples=4, tokens=16, loss=1.0)))
            sink(of(source, Heartbeat(sequence=step, counts={"dropped": step})))
            recorded = {
                "avg_tokens_per_second": 100.0,
                "mfu": 0.4,
                "train_throughput_per_gpu": 300.0,
                "latest_loss": 2.0,
            }
            started = {"train_iterations_start": 0, "current_iteration": step, "num_iterations": step + 1}
            rest = {"train_samples_start": 0, "num_train_samples": 4, "interval": 1}
            sink(of(source, TrainingMetricsUpdated(**started, **rest, **recorded)))
            del recorded["latest_loss"]
            sink(of(source, TrainingWindowUpdated(num_iterations=1, **recorded)))
            sink(of(source, goodput_update()))
            window = CounterWindow(
                name="c",
                start_ns=0,
                end_ns=step + 1,
                count=1,
                values={"mean": 1.0},
                total_count=step + 1,
                total_sum=1.0,
            )
            sink(of(source, window))

        for report in straggler_reports(4, slow={1}):
            sink(of(source, report))
        feed(0)
        server = prometheus(port)
        eventually(lambda: server.query("trackside_ranks"), what="it was scraped")
        stop = threading.Event()

        def go_on():
            step = 0
            while not stop.wait(0.1):
                feed(step := step + 1)

        feeder = threading.Thread(target=go_on, daemon=True)
        feeder.start()
        try:
            for title, query in queries():
                asked = query.replace("$__rate_interval", "10s").replace("$run", ".*")
                eventually(lambda asked=asked: server.query(asked), what=f"{title}: {asked}")
            for alert in alerts():
                server.query(alert)  # the alert may not fire, but the query must be valid
        finally:
            stop.set()
            feeder.join(10)

    def test_panels_have_room(self):
        """No two panels overlap, and each has a title and a query."""
        board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
        cells = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not mine & cells, panel["title"]
            assert at["x"] + at["w"] <= 24
            assert panel["title"]
            assert panel["targets"]
            cells |= mine


class TestSeries:
    def test_few_for_many_ranks(self, sink, port):
        """A thousand ranks make as many series as eight do."""
        sizes = []
        for ranks in (8, 1_000):
            for rank in range(ranks):
                source = Source(rank=rank, run_id="run", world_size=ranks)
                sink(of(source, IterationEnded(step=1, duration_ns=10**9)))
                sink(of(source, Heartbeat(sequence=0, counts={"dropped": 0})))
            for report in straggler_reports(ranks, slow={1}):
                sink(of(source, report))
            sizes.append(len(scrape(port).splitlines()))
        assert sizes[0] == sizes[1] < 120

    def test_per_rank_on_request(self, port):
        """On request each rank has series of its own."""
        sink = PrometheusSink(port, per_rank=True)
        source = Source(run_id="run")
        for rank in range(20):
            own = Source(rank=rank, run_id="run", host="h")
            sink(of(own, IterationEnded(step=1, duration_ns=10**9)))
            sink(of(own, Heartbeat(sequence=0, at_ns=5 * 10**9)))
        for report in straggler_reports(20, slow={1}):
            sink(of(source, report))
        sink(of(source, goodput_update(ranks={"rank": [0, 1], "goodput": [0.5, None]})))
        lines = scrape(port).splitlines()
        sink.close(5)
        assert sum(line.startswith("trackside_rank_step_duration_seconds_count") for line in lines) == 20
        assert sum(line.startswith("trackside_rank_heartbeat_timestamp_seconds{") for line in lines) == 20
        assert sum(line.startswith("trackside_rank_straggler_score{") for line in lines) == 40
        assert 'trackside_rank_goodput_ratio{rank="0",run="run",session="s"} 0.5' in lines
        assert not [line for line in lines if line.startswith('trackside_rank_goodput_ratio{rank="1"')]

    def test_losses_by_handler(self, port, caplog):
        """In a job losses are shown by handler and reason, as the bus counts them."""
        bus = Bus()
        sink = PrometheusSink(port, stats=bus.stats)
        bus.subscribe(sink)

        def always_raising(event):
            raise ValueError(event)

        bus.subscribe(always_raising, to=IterationEnded, runs_on=RunsOn.WORKER)
        caplog.set_level(logging.ERROR, logger="trackside")
        for step in range(3):
            bus.log(IterationEnded(step=step, duration_ns=1))
        bus.flush(5)
        lines = scrape(port).splitlines()
        bus.close()
        recorded = {
            line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in lines if "trackside_dropped_total{" in line
        }
        [failed] = [
            value for labels, value in recorded.items() if "always_raising" in labels and 'reason="failed"' in labels
        ]
        assert failed == "3.0"
        assert sum(float(value) for value in recorded.values()) == 3

    def test_hostile_names(self, sink, port):
        """Names of instruments, runs and hosts may contain any characters: the page can still be parsed."""
        from prometheus_client.parser import text_string_to_metric_families

        nasty = 'a"b\\c\nd{e="f"} 1'
        source = Source(run_id=nasty, host=nasty)
        window = CounterWindow(name=nasty, start_ns=0, end_ns=1, count=1, total_count=1, total_sum=2.5)
        sink(of(source, window))
        families = {family.name: family for family in text_string_to_metric_families(scrape(port))}
        [sample] = [one for one in families["trackside_stat"].samples if one.name == "trackside_stat_sum"]
        assert sample.labels["name"] == sample.labels["run"] == nasty
        assert sample.value == 2.5

    def test_extreme_numbers(self, sink, port, losses, bits):
        """Infinities, NaN, negative zero and the limits of the format are read from the page as they were recorded."""
        from prometheus_client.parser import text_string_to_metric_families

        for event in losses:
            window = {"start_ns": 0, "end_ns": 1, "count": 1, "total_count": 1, "total_sum": event.loss}
            for kind in ("counter", "stat", "gauge"):
                values = {"value": event.loss}
                sink(
                    of(
                        Source(run_id="run"),
                        CounterWindow(name=f"{kind}{event.step}", kind=kind, values=values, **window),
                    )
                )
        samples = {}
        for family in text_string_to_metric_families(scrape(port)):
            for sample in family.samples:
                samples.setdefault((sample.name, sample.labels.get("stat")), []).append(sample.value)
        expected = bits(abs(event.loss) for event in losses)
        for series in (
            ("trackside_counter_total", None),
            ("trackside_stat_sum", None),
            ("trackside_stat_window", "value"),
            ("trackside_gauge", "mean"),
            ("trackside_gauge", "max"),
        ):
            assert bits(map(abs, samples[series])) == expected, series

    def test_gauge_and_stat_of_a_job(self, port, tmp_path, eventually):
        """A gauge has its current value; a stat has those of its latest window, and a gap where it had none."""

        def shown(series):
            lines = scrape(port).splitlines() if sink.is_served else []
            return [
                float(line.rpartition(" ")[2]) for line in lines if line.startswith(series) and 'stat="mean"' in line
            ]

        sink = PrometheusSink(port)
        with trackside.start(tmp_path, report=False, handlers=[sink], collect_interval_s=1.0):
            trackside.gauge("queue").set(2.0)
            for value in (4.0, 8.0):
                trackside.stat("loss").record(value)
                eventually(lambda value=value: shown("trackside_stat_window") == [value], what=f"a window of {value}")
            trackside.gauge("queue").set(0.0)
            eventually(lambda: shown("trackside_gauge") == [0.0], what="the gauge is 0")
            eventually(lambda: shown("trackside_stat_window") == [], what="a gap")
            assert shown("trackside_gauge") == [0.0]

    def test_old_runs_go(self, sink, port):
        """Of more than 16 runs the first ones are dropped: memory is bounded."""
        for number in range(40):
            sink(of(Source(run_id=f"run{number}"), IterationEnded(step=1, duration_ns=1)))
        runs = {line for line in scrape(port).splitlines() if line.startswith("trackside_ranks{")}
        assert len(runs) == 16
        assert 'trackside_ranks{run="run39"} 1.0' in runs


class TestServing:
    def test_port_taken(self, port, caplog, monkeypatch):
        """A port in use affects no handler: it is tried again, and served once it is free; else close() is False."""
        from trackside.handlers import prometheus_client as module

        monkeypatch.setattr(module, "_RETRY_INTERVAL_S", 0.0)
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            sink = PrometheusSink(port)
            sink(of(Source(run_id="run"), IterationEnded(step=1, duration_ns=1)))
            unlucky = PrometheusSink(port)
            unlucky(of(Source(run_id="run"), IterationEnded(step=1, duration_ns=1)))
            assert (unlucky.close(5), unlucky.close(5)) == (False, False)
            assert not sink.is_served
            assert len(caplog.records) == 2
        sink(of(Source(run_id="run"), IterationEnded(step=2, duration_ns=1)))
        assert sink.is_served
        assert "trackside_last_step" in scrape(port)
        sink.close(5)

    def test_from_the_first_event_to_the_end(self, port):
        """A handler listens from the first event on, until the end: a rank that takes no part has no page."""
        sink = PrometheusSink(port)
        assert not sink.is_served
        sink(of(Source(run_id="run"), IterationEnded(step=1, duration_ns=1)))
        assert "trackside_last_step" in scrape(port)
        assert sink.close(5)
        assert sink.close(5)
        with pytest.raises(urllib.error.URLError):
            scrape(port)

    def test_registry_of_ones_own(self):
        """With a registry that is served already trackside starts no server."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        sink = PrometheusSink(None, registry=registry)
        sink(of(Source(run_id="run"), IterationEnded(step=7, duration_ns=1)))
        assert b'trackside_last_step{loop="training",run="run"} 7.0' in generate_latest(registry)
        sink.close(5)
        assert generate_latest(registry) == b""

    def test_buckets(self):
        """Buckets that do not rise are refused, in one line."""
        with pytest.raises(ConfigError, match="buckets_s"):
            PrometheusSink(None, buckets_s=[1, 1])


def goodput_update_of(result):
    plain = attrs.asdict(result)
    names = {field.name for field in attrs.fields(GoodputUpdated)}
    kept = {name: value for name, value in plain.items() if name in names and name not in {"ranks", "slice_efficiency"}}
    return GoodputUpdated(**kept)
