"""
Records in Google Cloud Logging: the library's own client against a stand-in that keeps, filters and pages.

Records written by ml-goodput-measurement are read by both, and so are those written by trackside.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import types

import pytest

from trackside.compat.goodput import goodput as ours
from trackside.events import ConfigError

pytest.importorskip("google.cloud.logging")
grpc = pytest.importorskip("grpc")

from trackside.compat.goodput.google_cloud_logging import GoogleCloudLog  # noqa: E402  it imports the library

pytestmark = pytest.mark.integration

JOB, LOGGER = 'llama "7b"', "goodput_llama"
START = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)


def at(seconds):
    return START + datetime.timedelta(seconds=seconds)


def record(recorder, *, steps=8, length_s=10.0):
    """Record a job with a restart after its fourth step, two steps of which are done again."""
    recorder.record_job_start_time(at(0))
    recorder.record_tpu_init_start_time(at(0))
    recorder.record_tpu_init_end_time(at(20))
    recorder.record_data_loading_start_time(at(20))
    recorder.record_data_loading_end_time(at(25))
    for step in range(5):
        recorder.record_step_start_time(step, at(30 + length_s * step))
    recorder.record_job_start_time(at(100))
    recorder.record_data_loading_start_time(at(101))
    recorder.record_data_loading_end_time(at(104))
    for step in range(2, steps):
        recorder.record_step_start_time(step, at(110 + length_s * (step - 2)))
    recorder.record_custom_badput_event_start_time(at(152), "sdc")
    recorder.record_custom_badput_event_end_time(at(155), "sdc")
    recorder.record_job_end_time(at(110 + length_s * (steps - 2)))
    recorder.flush()


def figures(calculator):
    """Return the goodput, the badput without empty buckets, and the last step, to 1e-6."""
    share, badput, last = calculator.get_job_goodput(include_badput_breakdown=True)
    flat = {
        kind.name: {name: round(each, 6) for name, each in value.items()}
        if isinstance(value, dict)
        else round(value, 6)
        for kind, value in badput.items()
        if value
    }
    return round(share, 6), flat, last


@pytest.fixture
def local(tmp_path):
    """Give the figures of trackside's calculator for the same job in files."""
    record(ours.GoodputRecorder(JOB, LOGGER, True, directory=tmp_path))
    return figures(ours.GoodputCalculator(JOB, LOGGER, directory=tmp_path))


@pytest.fixture
def peer(cloud_logging, monkeypatch, tmp_path):
    """Give the peer's module, whose client speaks to the stand-in, and which finds no cache of another job."""
    goodput = pytest.importorskip("ml_goodput_measurement.src.goodput")
    import google.cloud.logging

    monkeypatch.setattr(google.cloud.logging, "Client", cloud_logging.client)
    directories = (tmp_path / f"cache-{number}" for number in itertools.count())

    def calculator(*args):
        return goodput.GoodputCalculator(*args, cache_dir=str(next(directories)))

    return types.SimpleNamespace(
        GoodputRecorder=goodput.GoodputRecorder, GoodputCalculator=calculator, CloudLogger=goodput._CloudLogger
    )


@pytest.fixture
def log(cloud_logging):
    """Give a log of the job."""
    found = GoogleCloudLog(JOB, LOGGER, client=cloud_logging.client())
    yield found
    found.close()


class TestOurs:
    def test_read_elsewhere(self, log, cloud_logging, local):
        """A calculator that reads only the log has the figures of one that reads the recorder's files."""
        record(ours.GoodputRecorder(JOB, LOGGER, True, cloud_logger=log))
        elsewhere = GoogleCloudLog(JOB, LOGGER, client=cloud_logging.client())
        assert figures(ours.GoodputCalculator(JOB, LOGGER, cloud_logger=elsewhere)) == local
        assert log.lost == 0

    def test_piece_by_piece(self, log, cloud_logging):
        """Each read asks for what arrived since the last one, and gives each record once, in order."""
        reader = GoogleCloudLog(JOB, LOGGER, client=cloud_logging.client())
        given = []
        for number in range(7):
            log.write_cloud_logging_entry({"job_name": JOB, "step_count": number, "step_start_time": float(number)})
            log.flush()
            if number % 2:
                given.append([payload["step_count"] for payload in reader.read_new()])
                assert not reader.begins_again
        assert given == [[0, 1], [2, 3], [4, 5]]
        assert [payload["step_count"] for payload in reader.read_new()] == [6]
        assert reader.read_new() == []
        assert "receiveTimestamp" not in cloud_logging.filters[0]
        assert "receiveTimestamp>=" in cloud_logging.filters[-1]

    def test_of_this_job_alone(self, log, cloud_logging):
        """Neither another job's records are written or read, nor those of another log or severity, or too old ones."""
        log.write_cloud_logging_entry({"job_name": "other", "job_start_time": 1.0})
        client = cloud_logging.client()
        other = GoogleCloudLog("other", LOGGER, client=client)
        record(ours.GoodputRecorder("other", LOGGER, True, cloud_logger=other))
        payload = {"job_name": JOB, "step_count": 1, "step_start_time": 1.0}
        old = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=8)
        client.logger("another").log_struct(payload, severity="INFO")
        client.logger(LOGGER).log_struct(payload, severity="WARNING")
        client.logger(LOGGER).log_struct(payload, severity="INFO", timestamp=old)
        assert log.read_new() == []
        assert GoogleCloudLog(JOB, LOGGER, client=client, retention=datetime.timedelta(days=9)).read_new() == [payload]

    def test_shown_late(self, log, cloud_logging, local):
        """A record that the service shows after later ones makes no restart: the log is read again."""
        record(ours.GoodputRecorder(JOB, LOGGER, True, cloud_logger=log))
        late = sorted(cloud_logging.entries)[7][1]
        cloud_logging.hidden.add(late)
        calculator = ours.GoodputCalculator(JOB, LOGGER, cloud_logger=log)
        assert figures(calculator) != local
        cloud_logging.hidden.clear()
        assert figures(calculator) == local
        assert figures(calculator) == local
        assert not log.begins_again

    def test_sent_twice(self, log, cloud_logging, local):
        """A batch that is sent again because its answer was lost counts once."""
        cloud_logging.code = grpc.StatusCode.UNAVAILABLE
        record(ours.GoodputRecorder(JOB, LOGGER, True, cloud_logger=log))
        sent = [entry.insert_id for request in cloud_logging.written for entry in request.entries]
        assert len(sent) > len(set(sent)) == len(cloud_logging.entries)
        assert log.lost == 0
        assert figures(ours.GoodputCalculator(JOB, LOGGER, cloud_logger=log)) == local

    def test_refused(self, log, cloud_logging):
        """Records that the service refuses for good are counted as lost, and do not block the others."""
        cloud_logging.code = grpc.StatusCode.INVALID_ARGUMENT
        log.write_cloud_logging_entry({"job_name": JOB, "job_start_time": 1.0})
        log.flush()
        assert log.lost == 1
        log.write_cloud_logging_entry({"job_name": JOB, "job_end_time": object()})
        log.flush()
        assert log.lost == 1

    def test_away(self, log, cloud_logging):
        """While the service is away, writing does not wait, and undelivered records are counted at the end."""
        cloud_logging.stop()
        for step in range(100):
            log.write_cloud_logging_entry({"job_name": JOB, "step_count": step, "step_start_time": 1.0})
        log._bus.close(1.0)
        assert log.lost == 100

    def test_no_credentials(self, monkeypatch):
        """Without credentials, the error names the remedy."""
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")
        with pytest.raises(ConfigError, match="gcloud auth application-default login"):
            GoogleCloudLog(JOB, LOGGER)


class TestPeers:
    JOB = "llama"  # the peer does not quote it

    def test_its_records(self, peer, cloud_logging):
        """The log of the peer's recorder gives trackside's calculator the figures of the peer's."""
        record(peer.GoodputRecorder(self.JOB, LOGGER, True))
        log = GoogleCloudLog(self.JOB, LOGGER, client=cloud_logging.client())
        share, badput, last = figures(ours.GoodputCalculator(self.JOB, LOGGER, cloud_logger=log))
        expected, expected_badput, expected_last = figures(peer.GoodputCalculator(self.JOB, LOGGER))
        assert (share, last) == (expected, expected_last)
        assert badput == expected_badput

    def test_its_client(self, peer, cloud_logging):
        """The peer's own client of the log, given to trackside's calculator, does too."""
        record(peer.GoodputRecorder(self.JOB, LOGGER, True))
        expected = figures(peer.GoodputCalculator(self.JOB, LOGGER))
        client = peer.CloudLogger(self.JOB, LOGGER)
        assert figures(ours.GoodputCalculator(self.JOB, LOGGER, cloud_logger=client)) == expected

    def test_its_calculator(self, peer, cloud_logging, local):
        """The peer reads the records of trackside's recorder, with the figures that trackside has from its files."""
        with contextlib.closing(GoogleCloudLog(self.JOB, LOGGER, client=cloud_logging.client())) as log:
            record(ours.GoodputRecorder(self.JOB, LOGGER, True, cloud_logger=log))
        assert figures(peer.GoodputCalculator(self.JOB, LOGGER)) == local

    def test_same_entries(self, peer, cloud_logging):
        """An entry of trackside's has the log, the severity and the payload of the peer's."""
        log = GoogleCloudLog(self.JOB, LOGGER, client=cloud_logging.client())
        written = []
        for recorder in (
            peer.GoodputRecorder(self.JOB, LOGGER, True),
            ours.GoodputRecorder(self.JOB, LOGGER, True, log),
        ):
            cloud_logging.entries.clear()
            record(recorder)
            entries = [entry for _, entry in sorted(cloud_logging.entries.items())]
            written.append([(entry.log_name, entry.severity, dict(entry.json_payload)) for entry in entries])
        assert written[0] == written[1]
