"""The modules of ml-goodput-measurement beside its recorder and calculator."""

from __future__ import annotations

import datetime
import http.server
import threading

import pytest

from trackside.compat.goodput import checkpoint_badput_calculator as checkpoints
from trackside.compat.goodput import exclusion_utils, goodput_utils
from trackside.compat.goodput._records import LocalLog

UTC = datetime.timezone.utc


def at(seconds, zone=UTC):
    """Return the moment so many seconds after the epoch."""
    return datetime.datetime.fromtimestamp(seconds, zone)


class TestExclusions:
    def test_merged(self):
        """Intervals come in order, and those that touch or overlap as one."""
        given = [(at(50), at(60)), (at(10), at(20)), (at(20), at(25)), (at(12), at(14))]
        assert exclusion_utils.normalize_intervals(given) == [(10.0, 25.0), (50.0, 60.0)]

    def test_left_out(self, caplog):
        """Those that are empty or of another zone are left out, each with a warning."""
        east = datetime.timezone(datetime.timedelta(hours=2))
        given = [(at(5), at(5)), (at(1, east), at(2, east)), (at(7), at(8))]
        assert exclusion_utils.normalize_intervals(given) == [(7.0, 8.0)]
        assert len(caplog.records) == 2

    def test_overlap(self):
        """Time that lies in several exclusions is added up."""
        assert exclusion_utils.get_exclusion_overlap(10, 30, [(0, 12), (20, 21), (29, 40), (50, 60)]) == 2 + 1 + 1


def save(step, directory, seconds, **more):
    """Return Orbax's record of a save."""
    keys = [
        "checkpoint_manager_blocking_duration_secs",
        "checkpointer_blocking_duration_secs",
        "wait_for_prev_duration_secs",
        "get_old_steps_duration_secs",
    ]
    return {"event_type": "save", "step": step, "directory": directory, **dict.fromkeys(keys, seconds), **more}


class TestCheckpoints:
    def asked(self, entries):
        """Return a calculator over *entries*."""
        found = checkpoints.CheckpointBadputCalculator(checkpoints.CheckpointLoggerOptions(use_goodput_logger=True))
        found.entries += entries
        return found

    def test_saves(self):
        """Hosts of one save count as their mean; figures are over the steps."""
        entries = [save(1, "gs://b", 2.0), save(1, "gs://b", 4.0), save(2, "gs://b", 9.0), save(2, "/local", 1.0)]
        found = self.asked(entries).calculate_save_operation_checkpoint_manager_blocking_time("persistent")
        # The two steps took 3 s and 9 s.
        assert found.total_checkpoint_manager_blocking_time == 12.0
        assert found.average_wait_for_prev_time == 6.0
        assert (found.minimum_get_old_steps_time, found.maximum_checkpointer_blocking_time) == (3.0, 9.0)
        assert found.standard_deviation_wait_for_prev_time == pytest.approx(18**0.5)

    def test_places(self):
        """A directory of the cloud's is persistent; without a type both count."""
        calculator = self.asked([save(1, "gs://b", 2.0), save(1, "s3://b", 5.0)])
        ask = calculator.calculate_save_operation_checkpoint_manager_blocking_time
        totals = [ask(kind).total_wait_for_prev_time for kind in ("persistent", "local", "persistent_and_local")]
        assert totals == [2.0, 5.0, 7.0]

    def test_restores(self):
        """Emergency restores are the local ones; a broadcast is averaged over the steps that have one."""
        common = {"checkpoint_manager_duration_secs": 4.0, "checkpointer_duration_secs": 1.0, "directory": "local"}
        entries = [
            {"event_type": "emergency_restore", "step": 1, "broadcast_duration_secs": 2.0, **common},
            {"event_type": "emergency_restore", "step": 2, "broadcast_duration_secs": None, **common},
            {"event_type": "restore", "step": 3, **common},
        ]
        found = self.asked(entries).calculate_restore_operation_checkpoint_manager_blocking_time("local")
        assert (found.total_checkpoint_manager_time, found.average_restore_time) == (8.0, 1.0)
        assert (found.total_broadcast_time, found.average_broadcast_time) == (2.0, 2.0)

    def test_nothing(self):
        """Without records all figures are zero."""
        found = self.asked([]).calculate_save_operation_checkpoint_manager_blocking_time()
        assert found == checkpoints.SaveCheckpointManagerVerticalStepStats()

    def test_files(self, tmp_path, monkeypatch):
        """Without a client the records of local files are read."""
        monkeypatch.setenv("TRACKSIDE_GOODPUT_DIR", str(tmp_path))
        log = LocalLog("job", "log")
        log.write_cloud_logging_entry({"job_name": "job", **save(1, "gs://b", 2.0)})
        log.close()
        options = checkpoints.CheckpointLoggerOptions(job_name="job", logger_name="log")
        found = checkpoints.CheckpointBadputCalculator(options)
        assert found.calculate_save_operation_checkpoint_manager_blocking_time().total_wait_for_prev_time == 2.0


class TestFigures:
    def test_percentile(self):
        """A percentile is interpolated between the two nearest values."""
        assert goodput_utils.compute_percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
        assert goodput_utils.compute_percentile([1.0, 2.0], 90) == pytest.approx(1.9)
        assert goodput_utils.compute_percentile([], 90) == 0.0

    def test_ideal(self):
        """The ideal is the mean without slow steps and those below a second."""
        # Of 2, 2, 3, 3 and 50 the median is 3 and the median deviation 1: up to 6 counts.
        assert goodput_utils.compute_ideal_step_time([0.5, 2.0, 2.0, 3.0, 3.0, 50.0]) == 2.5
        assert goodput_utils.compute_ideal_step_time([0.5, 0.9]) is None

    def test_deviation(self):
        """Of few steps it is the mean; of many the 90th percentile of the last hundred above the thousand before."""
        ask = goodput_utils.compute_step_deviation_from_baseline
        assert ask({1: 2.0, 2: -4.0}) == 3.0
        many = dict(enumerate([1.0] * 1000 + [5.0] * 100))
        assert ask(many) == 4.0
        assert ask(many, goodput_utils.MonitoringWindowType.INTERVAL) == 5.0
        assert ask({}) == 0.0

    def test_time_of_a_record(self):
        """The time of a record is its first field that is one."""
        assert goodput_utils.get_timestamp_from_log_entry({"job_name": "j", "step_start_time": 5.0}) == at(5)
        assert goodput_utils.get_timestamp_from_log_entry({"job_name": "j"}) is None


ANSWERS = {
    "/computeMetadata/v1/project/project-id": "a-project",
    "/computeMetadata/v1/instance/zone": "projects/1/zones/europe-west4-a",
    "/computeMetadata/v1/instance/machine-type": "projects/1/machineTypes/a3-ultragpu-8g",
}


class Metadata(http.server.BaseHTTPRequestHandler):
    """A stand-in for the metadata server of a machine of Google's."""

    def do_GET(self):
        """Answer, if the header is right."""
        answer = ANSWERS.get(self.path) if self.headers["Metadata-Flavor"] == "Google" else None
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write((answer or "").encode())

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture
def machine(monkeypatch):
    """Be on such a machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    monkeypatch.setattr(goodput_utils, "_METADATA_S", 60.0)
    yield
    server.shutdown()
    server.server_close()
    thread.join()


class TestMachine:
    @pytest.mark.usefixtures("machine")
    def test_known(self):
        """Project, zone and accelerator are those that the metadata server returns; what it lacks is None."""
        assert goodput_utils.get_gcp_project_id() == "a-project"
        assert goodput_utils.get_node_zone() == "europe-west4-a"
        assert goodput_utils.get_accelerator_type() == "NVIDIA-H200"
        assert goodput_utils.get_cluster_name() is None

    def test_none(self, monkeypatch):
        """On another machine all are None."""
        monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")  # nothing listens there
        assert goodput_utils.get_gcp_project_id() is None
        assert goodput_utils.get_accelerator_type() == "UNKNOWN"
