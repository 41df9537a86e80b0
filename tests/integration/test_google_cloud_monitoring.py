"""Goodput in Google Cloud Monitoring: the library's own client against a stand-in that decodes its requests."""

from __future__ import annotations

import datetime

import pytest

from trackside.compat.goodput.goodput import GoodputRecorder
from trackside.compat.goodput.goodput_utils import GCPOptions
from trackside.events import ConfigError, GoodputUpdated, IterationEnded

pytest.importorskip("google.cloud.monitoring_v3")
grpc = pytest.importorskip("grpc")

from trackside.handlers.google_cloud_monitoring import GoogleCloudMonitoringSink  # noqa: E402  it imports the library

pytestmark = pytest.mark.integration

AT_NS = 1_700_000_000_123_456_789


def update(**given):
    return GoodputUpdated(
        **{
            "at_ns": AT_NS,
            "session": "llm-7b",
            "elapsed_s": 200.0,
            "productive_s": 150.0,
            "goodput": 0.75,
            "disruptions": 2,
            "last_step": 41,
            "badput_s": {
                "TRAINING_PREP": 20.0,
                "VALIDATION": 10.0,
                "CUSTOM_BADPUT_EVENTS": {"EVAL": 5.0, "SDC_SCAN": 3.0},
                "OTHER": 12.0,
            },
            "step_time": {"ideal_s": 3.5, "deviation_s": 0.25},
            **given,
        }
    )


@pytest.fixture
def sink(monitoring):
    return GoogleCloudMonitoringSink(
        "my-project",
        "europe-west4-a",
        accelerator_type="NVIDIA-H100",
        export_interval_s=0.0,
        client=monitoring.client(),
    )


def recorded(monitoring):
    """Return the series that the server got, as name and sorted labels to value."""
    found = {}
    for request in monitoring.requests:
        for series in request.time_series:
            [point] = series.points
            value = point.value.int64_value if "int64_value" in point.value else point.value.double_value
            found[key_of(series.metric.type, series.metric.labels)] = value
    return found


def key_of(metric, labels):
    return (metric.rpartition("/")[2], *sorted(labels.items()))


ACCELERATOR = ("accelerator_type", "NVIDIA-H100")


class TestSeries:
    def test_names_labels_and_values(self, monitoring, sink, bus):
        """Every metric of ml-goodput's arrives under its name, with its labels, its unit and its type."""
        bus.subscribe(sink)
        bus.log(update())
        assert bus.flush(10)
        cumulative = ("window_type", "cumulative")
        assert recorded(monitoring) == {
            ("goodput_time", ACCELERATOR, ("goodput_source", "TOTAL")): 150.0,
            ("badput_time", ACCELERATOR, ("badput_source", "TRAINING_PREP")): 20.0,
            ("badput_time", ACCELERATOR, ("badput_source", "CUSTOM_BADPUT_EVENTS.VALIDATION")): 10.0,
            ("badput_time", ACCELERATOR, ("badput_source", "CUSTOM_BADPUT_EVENTS.EVAL")): 5.0,
            ("badput_time", ACCELERATOR, ("badput_source", "CUSTOM_BADPUT_EVENTS.SDC_SCAN")): 3.0,
            ("badput_time", ACCELERATOR, ("badput_source", "OTHER")): 12.0,
            ("disruptions", ACCELERATOR, cumulative): 2,
            ("total_elapsed_time", ACCELERATOR, cumulative): 200.0,
            ("max_productive_steps", ACCELERATOR): 41,
            ("step_time_deviation", ACCELERATOR): 0.25,
            ("performance",): 3.5,
        }

    def test_peer_names(self, monitoring, sink, bus):
        """A bucket has the name that the peer's dashboards use."""
        bus.subscribe(sink)
        bus.log(update(badput_s={"ACCELERATOR_INITIALIZATION": 4.0}))
        assert bus.flush(10)
        assert recorded(monitoring)["badput_time", ACCELERATOR, ("badput_source", "TPU_INITIALIZATION")] == 4.0

    def test_extreme_numbers(self, monitoring, sink, bus, losses, bits):
        """NaN and infinities, which the service does not have, are left out and counted; the rest arrives."""
        bus.subscribe(sink)
        bus.log(update(badput_s={f"B{event.step}": event.loss for event in losses}))
        assert bus.flush(10)
        arrived = {
            dict(key[1:])["badput_source"]: value
            for key, value in recorded(monitoring).items()
            if key[0] == "badput_time"
        }
        assert list(arrived) == ["B3", "B4", "B5"]
        assert bits(arrived.values()) == bits([-0.0, 1e308, 5e-324])
        assert sink.not_finite == 3

    def test_largest_step(self, monitoring, sink, bus):
        """A step beyond what the service has for whole numbers is sent as the largest that it has."""
        bus.subscribe(sink)
        bus.log(update(last_step=(1 << 64) - 1))
        assert bus.flush(10)
        assert recorded(monitoring)["max_productive_steps", ACCELERATOR] == 9_223_372_036_854_775_807

    def test_whole_numbers(self, monitoring, sink, bus):
        """Counts are whole numbers on the wire, all other values are not."""
        bus.subscribe(sink)
        bus.log(update(productive_s=150))
        assert bus.flush(10)
        [request] = monitoring.requests
        whole = {
            series.metric.type.rpartition("/")[2]
            for series in request.time_series
            if "int64_value" in series.points[0].value
        }
        assert whole == {"disruptions", "max_productive_steps"}

    def test_resource_and_time(self, monitoring, sink, bus):
        """The resource is the workload, the time the update's own."""
        bus.subscribe(sink)
        bus.log(update())
        assert bus.flush(10)
        [request] = monitoring.requests
        assert request.name == "projects/my-project"
        for series in request.time_series:
            assert series.resource.type == "compute.googleapis.com/Workload"
            labels = {"location": "europe-west4-a", "workload_id": "llm-7b", "replica_id": "0"}
            assert dict(series.resource.labels) == labels
            end = series.points[0].interval.end_time
            assert end.timestamp_pb().seconds * 10**9 + end.timestamp_pb().nanos == AT_NS

    def test_optional_labels(self, monitoring, bus):
        """Cluster, workload and replica are the given ones."""
        bus.subscribe(
            GoogleCloudMonitoringSink(
                "p",
                "l",
                workload_id="w",
                replica_id="3",
                cluster_name="c",
                export_interval_s=0.0,
                client=monitoring.client(),
            )
        )
        bus.log(update())
        assert bus.flush(10)
        for series in monitoring.requests[0].time_series:
            assert (series.resource.labels["workload_id"], series.resource.labels["replica_id"]) == ("w", "3")
            if not series.metric.type.endswith("/performance"):
                assert series.metric.labels["cluster_name"] == "c"

    def test_all_of_a_window(self, monitoring, sink, bus):
        """A bucket that has all of a window is 100 %, where 100 × 1.289 ÷ 1.289 is a little more."""
        bus.subscribe(sink)
        windows = {"length_s": [2.0], "elapsed_s": [1.289], "productive_s": [1.289], "badput_s": [{}]}
        bus.log(update(windows=windows))
        assert bus.flush(10)
        found = [value for key, value in recorded(monitoring).items() if key[0] == "interval_goodput"]
        assert found == [100.0]

    def test_rolling_windows(self, monitoring, sink, bus):
        """A rolling window is in percent, with its length in seconds."""
        bus.subscribe(sink)
        windows = {"length_s": [600.0], "elapsed_s": [400.0], "productive_s": [100.0], "badput_s": [{"OTHER": 300.0}]}
        bus.log(update(windows=windows, slice_efficiency={"stepping": 0.5, "available": 0.75}))
        assert bus.flush(10)
        found = recorded(monitoring)
        size = ("rolling_window_size", "600")
        assert found["interval_goodput", ACCELERATOR, ("goodput_source", "TOTAL"), size] == 25.0
        assert found["interval_badput", ACCELERATOR, ("badput_source", "OTHER"), size] == 75.0
        whole = (("rolling_window_size", "0"), ("window_type", "CUMULATIVE"))
        assert found[("stepping_slice_efficiency", ACCELERATOR, *whole)] == 0.5
        assert found[("available_slice_efficiency", ACCELERATOR, *whole)] == 0.75

    def test_what_is_not_known(self, monitoring, sink, bus):
        """An unknown value is left out, and not 0."""
        bus.subscribe(sink)
        bus.log(update(last_step=None, step_time={"ideal_s": None, "deviation_s": None}))
        assert bus.flush(10)
        names = {name for name, *_ in recorded(monitoring)}
        assert names == {"goodput_time", "badput_time", "disruptions", "total_elapsed_time"}

    def test_as_ml_goodput_writes(self, monitoring, sink, bus):
        """The series of names and labels are those that ml-goodput-measurement's own uploader writes."""
        monitor = pytest.importorskip("ml_goodput_measurement.src.monitoring")
        utils = pytest.importorskip("ml_goodput_measurement.src.goodput_utils")
        theirs = []

        class Sender:
            def send_metrics(self, metrics, context=None):
                theirs.extend(metrics)

        options = monitor.GCPOptions(project_id="p", location="l", acc_type="NVIDIA-H100")
        details = {
            utils.MetricType.GOODPUT_TIME.value: {utils.GoodputType.TOTAL: 150.0},
            utils.MetricType.BADPUT_TIME.value: {
                utils.BadputType.TRAINING_PREP: 20.0,
                utils.BadputType.CUSTOM_BADPUT_EVENTS: {"EVAL": 5.0},
                utils.BadputType.OTHER: 25.0,
            },
            utils.MetricType.DISRUPTION_COUNT.value: 2,
            utils.MetricType.MAX_PRODUCTIVE_STEP.value: 41,
            utils.MetricType.STEP_TIME_DEVIATION.value: {1: 0.25, 2: 0.25},
            utils.MetricType.TOTAL_ELAPSED_TIME.value: 200.0,
            utils.MetricType.IDEAL_STEP_TIME.value: 3.5,
        }
        upload = monitor._upload_goodput_metrics_to_gcm
        upload(Sender(), details, {"gcp_options": options, "job_name": "llm-7b"})
        bus.subscribe(sink)
        bus.log(update(badput_s={"TRAINING_PREP": 20.0, "CUSTOM_BADPUT_EVENTS": {"EVAL": 5.0}, "OTHER": 25.0}))
        assert bus.flush(10)
        expected = {key_of(one["metric_type"], one.get("metric_labels", {})): one["value"] for one in theirs}
        assert recorded(monitoring) == expected


class TestMonitor:
    """ml-goodput's monitor under our names."""

    def uploaded(self, monitoring, monkeypatch, tmp_path, options):
        """Let a monitor upload everything once; return the names of the series that the service got."""
        from trackside.compat.goodput.monitoring import GoodputMonitor
        from trackside.handlers import google_cloud_monitoring

        monkeypatch.setattr(google_cloud_monitoring, "_client", monitoring.client)
        recorder = GoodputRecorder("job", "log", True, directory=tmp_path)
        start = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=60)
        recorder.record_job_start_time(start)
        for step in range(5):
            recorder.record_step_start_time(step, start + datetime.timedelta(seconds=5 + 3 * step))
        recorder.flush()
        monitor = GoodputMonitor(
            "job",
            "log",
            str(tmp_path / "board"),
            3600,
            monitoring_enabled=True,
            include_badput_breakdown=True,
            include_step_deviation=True,
            gcp_options=options,
            final_flush_timeout_seconds=60,
            directory=tmp_path,
        )
        monitor.start_rolling_window_goodput_uploader([100])
        monitor.stop_goodput_uploader()
        monitor.stop_step_deviation_uploader()
        monitor.stop_rolling_window_goodput_uploader()
        monitor.close()
        return {key[0] for key in recorded(monitoring)}

    GOODPUT = frozenset({"goodput_time", "badput_time", "disruptions", "total_elapsed_time", "max_productive_steps"})
    WINDOWS = frozenset({"interval_goodput", "interval_badput"})
    STEPS = frozenset({"step_time_deviation", "performance"})

    def test_all(self, monitoring, monkeypatch, tmp_path):
        """With a project and a location all series are sent, with the labels in the options."""
        options = GCPOptions(project_id="p", location="l", acc_type="TPU-v5e", replica_id="3", cluster_name="c")
        assert self.uploaded(monitoring, monkeypatch, tmp_path, options) == self.GOODPUT | self.WINDOWS | self.STEPS
        series = [one for request in monitoring.requests for one in request.time_series]
        assert {one.resource.labels["replica_id"] for one in series} == {"3"}
        assert {one.resource.labels["workload_id"] for one in series} == {"job"}
        labels = {(one.metric.labels.get("accelerator_type"), one.metric.labels.get("cluster_name")) for one in series}
        assert labels == {("TPU-v5e", "c"), (None, None)}  # the ideal step time has none

    def test_without_steps(self, monitoring, monkeypatch, tmp_path):
        """Each of the two switches turns its series off."""
        options = GCPOptions(project_id="p", location="l", enable_gcp_step_deviation_metrics=False)
        assert self.uploaded(monitoring, monkeypatch, tmp_path, options) == self.GOODPUT | self.WINDOWS

    def test_without_goodput(self, monitoring, monkeypatch, tmp_path):
        """The other one too."""
        options = GCPOptions(project_id="p", location="l", enable_gcp_goodput_metrics=False)
        assert self.uploaded(monitoring, monkeypatch, tmp_path, options) == self.STEPS

    def test_elsewhere(self, monitoring, monkeypatch, tmp_path, caplog):
        """On a machine that is none of Google's no series is sent, and a warning gives the reason."""
        monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        assert self.uploaded(monitoring, monkeypatch, tmp_path, None) == set()
        assert "Google Cloud Monitoring gets nothing: the project or the location is not known" in caplog.text


class TestSending:
    def test_only_goodput(self, monitoring, sink, bus):
        """Other events are ignored."""
        bus.subscribe(sink)
        bus.log(IterationEnded(duration_ns=1))
        assert bus.flush(10)
        assert monitoring.requests == []

    def test_not_too_often(self, monitoring, bus):
        """Updates that come too soon are replaced by the latest, which is sent at the end."""
        bus.subscribe(GoogleCloudMonitoringSink("p", "l", export_interval_s=1_000.0, client=monitoring.client()))
        for elapsed_s in (100.0, 110.0, 120.0):
            bus.log(update(elapsed_s=elapsed_s))
        assert bus.close(10)
        elapsed = [
            series.points[0].value.double_value
            for request in monitoring.requests
            for series in request.time_series
            if series.metric.type.endswith("total_elapsed_time")
        ]
        assert elapsed == [100.0, 120.0]

    def test_refused(self, monitoring, sink, bus):
        """An update that the service refuses for good is counted as lost, with its reason, and blocks nothing."""
        bus.subscribe(sink)
        monitoring.code = grpc.StatusCode.INVALID_ARGUMENT
        bus.log(update())
        assert not bus.flush(10)
        monitoring.code = None
        bus.log(update(elapsed_s=300.0))
        assert bus.flush(10)
        assert sink.losses() == {"InvalidArgument: as the test wants it": 1}
        assert (
            recorded(monitoring)[
                "total_elapsed_time", ("accelerator_type", "NVIDIA-H100"), ("window_type", "cumulative")
            ]
            == 300.0
        )
        [stats] = [one for one in bus.stats().handlers if one.dropped]
        assert (stats.dropped, stats.balance) == (1, 0)

    def test_service_comes_back(self, monitoring, sink, bus):
        """While the service is away updates wait; when it is back all of them arrive, in order."""
        bus.subscribe(sink)
        monitoring.code = grpc.StatusCode.UNAVAILABLE
        for elapsed_s in (100.0, 110.0, 120.0):
            bus.log(update(elapsed_s=elapsed_s))
        assert not bus.flush(2)
        monitoring.code = None
        assert bus.flush(10)
        assert len(monitoring.requests) == 3
        assert sink.lost == 0

    def test_no_credentials(self, monkeypatch, tmp_path):
        """Without credentials there is one clear line, when the sink is made."""
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
        with pytest.raises(ConfigError, match="gcloud auth application-default login"):
            GoogleCloudMonitoringSink("p", "l")
