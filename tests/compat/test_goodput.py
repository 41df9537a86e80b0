"""ml-goodput-measurement's names over trackside: the records written, and the figures returned."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trackside.bus import default_bus
from trackside.compat.goodput import _monitor as monitor_module
from trackside.compat.goodput import goodput_elastic
from trackside.compat.goodput._monitor import UploadingMonitor
from trackside.compat.goodput.goodput import BadputType, GoodputCalculator, GoodputRecorder, GoodputType
from trackside.events import GoodputUpdated, RunsOn

UTC = datetime.timezone.utc
START = datetime.datetime(2024, 1, 1, 1, tzinfo=UTC)
DEADLINE_S = 30.0


def at(seconds):
    """Return the time so many seconds after the job's start."""
    return START + datetime.timedelta(seconds=seconds)


@pytest.fixture
def recorder(tmp_path):
    """Give a recorder into the test's own directory."""
    made = goodput_elastic.ElasticGoodputRecorder("job", "log", logging_enabled=True, directory=tmp_path)
    yield made
    made._log.close()


@pytest.fixture
def calculator(tmp_path):
    """Give a calculator of the records there."""
    return GoodputCalculator("job", "log", directory=tmp_path)


def payloads(directory):
    """Return all records below *directory*."""
    return [json.loads(line) for path in sorted(directory.rglob("*.jsonl")) for line in path.read_text().splitlines()]


def record(recorder, *, restart=True, end=True):
    """Record a job of five steps of 3 s, the first of 8 s, that is killed and goes on from step 2 with one of 8 s."""
    recorder.record_job_start_time(at(0))
    recorder.record_tpu_init_start_time(at(0))
    recorder.record_tpu_init_end_time(at(1))
    recorder.record_training_preparation_start_time(at(1))
    recorder.record_training_preparation_end_time(at(3))
    recorder.record_data_loading_start_time(at(3))
    recorder.record_data_loading_end_time(at(5))
    for step, seconds in enumerate([5, 13, 16, 19, 22]):
        recorder.record_step_start_time(step, at(seconds))
    if restart:
        recorder.record_job_start_time(at(30))
        for step, seconds in [(2, 35), (3, 43), (4, 46)]:
            recorder.record_step_start_time(step, at(seconds))
    if end:
        recorder.record_job_end_time(at(49 if restart else 25))
    recorder.flush()


class TestRecorder:
    def test_keys(self, recorder, tmp_path):
        """Every method writes the record that the peer's writes."""
        record(recorder, restart=False)
        recorder.record_custom_badput_event_start_time(at(25), "eval")
        recorder.record_custom_badput_event_end_time(at(26), "eval")
        recorder.record_elastic_slice_counts(1, 3, 2, at(26))
        recorder.record_elastic_wait_start_time("scale_up", at(26))
        recorder.record_elastic_wait_end_time("scale_up", at(27))
        recorder.record_elastic_reinit_start_time(at(27))
        recorder.record_elastic_reinit_end_time(at(28))
        recorder.flush()
        written = payloads(tmp_path)
        assert {key for payload in written for key in payload} == {
            *("job_name", "job_start_time", "job_end_time", "step_count", "step_start_time"),
            *(f"{what}_{end}_time" for what in WHAT for end in ("start", "end")),
            *("custom_badput_event_type", "elastic_wait_event_type", "elastic_slice_counts_timestamp"),
            *("active_slices", "total_slices", "available_slices"),
        }
        assert written[7] == {"job_name": "job", "step_count": 0, "step_start_time": at(5).timestamp()}

    def test_quiet(self, recorder, caplog):
        """Nothing is lost, and no warning is logged."""
        record(recorder)
        recorder._log.close()
        assert caplog.messages == []

    def test_now(self, recorder, tmp_path):
        """Without a time a record has the present one."""
        before = datetime.datetime.now(UTC).timestamp()
        recorder.record_job_start_time()
        recorder.flush()
        assert before <= payloads(tmp_path)[0]["job_start_time"] <= datetime.datetime.now(UTC).timestamp()

    def test_disabled(self, tmp_path):
        """A recorder that is not enabled writes nothing, and makes no file."""
        recorder = GoodputRecorder("job", "log", directory=tmp_path)
        recorder.record_job_start_time(at(0))
        recorder.flush()
        assert list(tmp_path.iterdir()) == []

    def test_checkpoint_progress(self, recorder, tmp_path):
        """The peer's method that does nothing does nothing."""
        recorder.record_checkpoint_progress(3, at(0))
        recorder.flush()
        assert payloads(tmp_path) == []

    @pytest.mark.parametrize("name", ["../job/x", "..", ".", ""])
    def test_names(self, tmp_path, name):
        """A name cannot lead out of the directory, and must not be empty."""
        recorder = GoodputRecorder(name, "../log", logging_enabled=True, directory=tmp_path / "in")
        recorder.record_job_start_time(at(0))
        recorder.flush()
        recorder._log.close()
        assert [path.parent.parent for path in tmp_path.rglob("*.jsonl")] == [tmp_path / "in"]
        assert GoodputCalculator(name, "log", directory=tmp_path / "in").get_job_goodput()[0] == 0.0

    def test_environment(self, tmp_path, monkeypatch):
        """The environment names the directory for both sides."""
        monkeypatch.setenv("TRACKSIDE_GOODPUT_DIR", str(tmp_path))
        recorder = GoodputRecorder("job", "log", logging_enabled=True)
        record(recorder, restart=False)
        recorder._log.close()
        assert GoodputCalculator("job", "log").get_job_goodput()[2] == 4


WHAT = ("tpu_init", "training_prep", "data_loading", "custom_badput_event", "elastic_wait", "elastic_reinit")


@pytest.fixture
def far_east():
    """Set the time zone of Japan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


class TestCalculator:
    def test_goodput(self, recorder, calculator):
        """Goodput is in percent, with the last productive step; the breakdown comes if it is asked for."""
        record(recorder)
        assert calculator.get_job_goodput() == (pytest.approx(100 * 15 / 49), {}, 4)

    def test_breakdown(self, recorder, calculator):
        """Badput is in percent of the same whole, by the peer's types."""
        record(recorder)
        _, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
        seconds = {kind: share * 0.49 for kind, share in badput.items() if kind is not BadputType.CUSTOM_BADPUT_EVENTS}
        assert set(badput) == set(BadputType)
        assert {kind: length for kind, length in seconds.items() if length} == pytest.approx(
            {
                BadputType.TPU_INITIALIZATION: 1.0,
                BadputType.TRAINING_PREP: 2.0,
                BadputType.DATA_LOADING_SYNC: 2.0,
                BadputType.PROGRAM_STARTUP: 10.0,
                BadputType.WASTED_PROGRESS_FROM_DISRUPTION: 6.0,
                BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION: 8.0,
                BadputType.OTHER: 5.0,
            }
        )

    def test_all_of_it(self, recorder, calculator):
        """A job that only prepares for 1.289 s does so for 100 %, where 100 × 1.289 ÷ 1.289 is a little more."""
        recorder.record_job_start_time(at(0))
        recorder.record_training_preparation_start_time(at(0))
        recorder.record_training_preparation_end_time(at(1.289))
        recorder.record_job_end_time(at(1.289))
        recorder.flush()
        _, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
        assert badput[BadputType.TRAINING_PREP] == 100.0

    def test_custom(self, recorder, calculator):
        """Custom events are listed by their type in capitals, as the peer lists them."""
        record(recorder, restart=False, end=False)
        for kind, second in [("Eval", 17), ("EVAL", 20)]:
            recorder.record_custom_badput_event_start_time(at(second), kind)
            recorder.record_custom_badput_event_end_time(at(second + 1), kind)
        recorder.record_job_end_time(at(25))
        recorder.flush()
        _, badput, _ = calculator.get_job_goodput(include_badput_breakdown=True)
        assert badput[BadputType.CUSTOM_BADPUT_EVENTS] == {"EVAL": pytest.approx(100 * 2 / 25)}

    def test_later(self, recorder, calculator):
        """A calculator that was asked before reads the records written since, and the last figures are kept."""
        record(recorder, restart=False, end=False)
        assert calculator.get_job_goodput()[2] == 3
        recorder.record_step_start_time(5, at(25))
        recorder.record_job_end_time(at(28))
        recorder.flush()
        assert calculator.get_job_goodput()[0] == pytest.approx(100 * 18 / 28)
        assert list(calculator._log.read_new()) == []

    def test_interval(self, recorder, calculator):
        """An interval has its own goodput, last step, length and disruptions."""
        record(recorder)
        share, badput, last_step, seconds, disruptions = calculator.get_job_goodput_interval(at(0), at(22))
        assert (share, last_step, seconds, disruptions) == (pytest.approx(100 * 6 / 22), 1, 22.0, 0)
        assert badput[BadputType.WASTED_PROGRESS_FROM_DISRUPTION] == pytest.approx(100 * 6 / 22)

    def test_consecutive_intervals(self, recorder, calculator):
        """Intervals that follow each other add up to the whole."""
        record(recorder)
        parts = [calculator.get_job_goodput_interval(at(start), at(start + 7)) for start in range(0, 49, 7)]
        assert sum(part[0] * part[3] / 100 for part in parts) == pytest.approx(15.0, rel=1e-9)

    def test_naive(self, recorder, calculator, far_east):
        """A time without a zone is in UTC, as the peer's documentation wants it, wherever the machine is."""
        record(recorder)
        naive = [moment.replace(tzinfo=None) for moment in (at(0), at(22))]
        assert calculator.get_job_goodput_interval(*naive) == calculator.get_job_goodput_interval(at(0), at(22))

    def test_no_job_then(self, recorder, calculator):
        """An interval without a job has no goodput."""
        record(recorder)
        with pytest.raises(ValueError, match="no time of the job"):
            calculator.get_job_goodput_interval(at(-10), at(-5))

    def test_interval_details(self, recorder, calculator):
        """An interval's details have the same names, and are empty where there was no job."""
        record(recorder)
        details = calculator.get_interval_metric_details(at(0), at(22))
        assert details["interval_goodput"] == {GoodputType.TOTAL: pytest.approx(100 * 6 / 22)}
        assert (details["interval_size"], len(details["interval_badput"])) == (22, len(BadputType))
        empty = {"interval_goodput": {}, "interval_badput": {}, "interval_size": 5}
        assert calculator.get_interval_metric_details(at(-10), at(-5)) == empty

    def test_exclusions(self, recorder, calculator):
        """An excluded second leaves both sides; the last value is the number of excluded seconds."""
        record(recorder)
        share, badput, last_step, excluded = calculator.get_job_goodput_with_exclusions(
            [(at(22), at(30)), (at(28), at(29))], include_badput_breakdown=True
        )
        assert (share, last_step, excluded) == (pytest.approx(100 * 15 / 41), 4, 8.0)
        assert badput[BadputType.INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION] == 0.0

    @pytest.mark.parametrize("interval", [(at(9), at(8)), (at(8).replace(tzinfo=None), at(9).replace(tzinfo=None))])
    def test_unsound_exclusions(self, recorder, calculator, interval, caplog):
        """Intervals that end before they begin, or are not in UTC, are left out with a warning."""
        record(recorder)
        assert calculator.get_job_goodput_with_exclusions([interval])[3] == 0.0
        assert "left out" in caplog.text

    def test_all_excluded(self, recorder, calculator):
        """If everything is excluded goodput is 0, and no error."""
        record(recorder)
        assert calculator.get_job_goodput_with_exclusions([(at(-1), at(99))], True) == (0.0, {}, 4, 49.0)

    def test_details(self, recorder, calculator):
        """Details are the last result in seconds."""
        record(recorder)
        calculator.get_job_goodput(configured_ideal_step_time=3.0)
        details = calculator.get_job_goodput_details()
        assert details["goodput_time"] == {GoodputType.TOTAL: 15.0}
        assert details["badput_time"][BadputType.PROGRAM_STARTUP] == 10.0
        assert details["max_productive_step"] == 4
        assert details["total_elapsed_time"] == 49.0
        assert details["disruption_count"] == 1
        assert details["ideal_step_time"] == 3.0
        assert details["total_excluded_time"] == 0.0

    def test_details_of_the_whole(self, recorder, calculator):
        """The result for an interval is not among them."""
        record(recorder)
        calculator.get_job_goodput()
        calculator.get_job_goodput_interval(at(0), at(22))
        assert calculator.get_job_goodput_details()["total_elapsed_time"] == 49.0

    def test_details_before(self, calculator):
        """Before the first call they are empty."""
        details = calculator.get_job_goodput_details()
        assert (details["goodput_time"], details["badput_time"], details["disruption_count"]) == ({}, {}, 0)

    def test_step_deviation(self, recorder, calculator):
        """Each step's distance from the ideal; of one that was done twice the later."""
        record(recorder)
        assert calculator.get_step_deviation(configured_ideal_step_time=4.0) == {0: 4.0, 1: 1.0, 2: 4.0, 3: 1.0}

    def test_no_steps(self, recorder, calculator):
        """Without steps there is no deviation."""
        recorder.record_job_start_time(at(0))
        recorder.record_job_end_time(at(9))
        recorder.flush()
        with pytest.raises(ValueError, match="no step times"):
            calculator.get_step_deviation()

    def test_no_record(self, calculator):
        """Without any record there is no goodput."""
        with pytest.raises(ValueError, match="no record of the job"):
            calculator.get_job_goodput()

    def test_torn(self, recorder, calculator, tmp_path):
        """A line that is being written is read when it is whole; one that is damaged is left out."""
        record(recorder, restart=False)
        (path,) = tmp_path.rglob("*.jsonl")
        whole = path.read_bytes()
        path.write_bytes(whole[:-9])
        before = calculator.get_job_goodput_interval(at(0), at(22))
        path.write_bytes(whole)
        assert before[4] == 0
        assert calculator.get_job_goodput()[0] == pytest.approx(100 * 15 / 25)

    def test_processes(self, tmp_path, calculator):
        """Each process that records has a file; a restarted one's follows the first one's."""
        for name, first, start in [("a", 3, 100), ("b", 0, 0)]:
            recorder = GoodputRecorder("job", name, logging_enabled=True, directory=tmp_path)
            recorder.record_job_start_time(at(start))
            for index in range(4):
                recorder.record_step_start_time(first + index, at(start + index))
            recorder.flush()
            recorder._log.close()
        _, _, last_step, elapsed_s, disruptions = calculator.get_job_goodput_interval(at(0), at(103))
        assert (last_step, elapsed_s, disruptions) == (5, 103.0, 1)

    def test_other_jobs(self, recorder, calculator, tmp_path):
        """A record of another job's name is not this job's."""
        record(recorder, restart=False)
        before = payloads(tmp_path)
        recorder._log.write_cloud_logging_entry({"job_name": "other", "job_start_time": 1.0})
        recorder.flush()
        assert payloads(tmp_path) == before
        assert {payload["job_name"] for payload in before} == {"job"}

    def test_threads(self, recorder, calculator):
        """Several threads may ask while records come."""
        record(recorder, restart=False, end=False)
        answers = []
        threads = [
            threading.Thread(target=lambda: answers.extend(calculator.get_step_deviation(3.0) for _ in range(10)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert answers == [{0: 5.0, 1: 0.0, 2: 0.0, 3: 0.0}] * 40

    def test_slices(self, recorder, tmp_path):
        """The elastic calculator's details have the slices' share."""
        recorder.record_job_start_time(at(0))
        recorder.record_elastic_slice_counts(1, 4, 3, at(0))
        recorder.record_job_end_time(at(9))
        recorder.flush()
        calculator = goodput_elastic.ElasticGoodputCalculator("job", "log", directory=tmp_path)
        calculator.get_job_goodput()
        details = calculator.get_job_goodput_details()
        assert (details["stepping_slice_efficiency"], details["available_slice_efficiency"]) == (0.25, 0.75)


class Sink:
    """A sink that keeps updates."""

    runs_on = RunsOn.WORKER

    def __init__(self):
        self.updates = []
        self.came = threading.Event()

    def __call__(self, update):
        """Keep *update*."""
        self.updates.append(update)
        self.came.set()


@pytest.fixture
def sink():
    """Give a sink."""
    return Sink()


@pytest.fixture
def monitor(sink, tmp_path):
    """Give a function that makes a monitor with that sink, and ends it."""
    made = []

    class Monitor(UploadingMonitor):
        def _sinks(self, directory):
            self.directory = directory
            return [sink]

    def make(**options):
        options = {"upload_interval": 3600, "monitoring_enabled": True, **options}
        made.append(Monitor("job", "log", str(tmp_path / "board"), directory=tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


class TestMonitor:
    def test_final(self, recorder, monitor, sink):
        """Stopping uploads the last figures, though the interval is not over."""
        record(recorder)
        made = monitor(include_badput_breakdown=True)
        made.start_goodput_uploader()
        made.stop_goodput_uploader()
        (update,) = sink.updates
        assert (update.goodput, update.last_step, update.badput_s["PROGRAM_STARTUP"]) == (15 / 49, 4, 10.0)

    def test_interval(self, recorder, monitor, sink):
        """The monitor uploads figures on the interval."""
        record(recorder)
        made = monitor(upload_interval=0.01)
        made.start_goodput_uploader()
        assert sink.came.wait(DEADLINE_S)
        made.stop_goodput_uploader(skip_final_flush=True)

    def test_no_breakdown(self, recorder, monitor, sink):
        """Badput is uploaded if the caller asked for it."""
        record(recorder)
        monitor().stop_goodput_uploader()
        assert sink.updates[0].badput_s == {}

    def test_never_started(self, recorder, monitor, sink):
        """Stopping a monitor that was never started uploads the figures once, as the peer does."""
        record(recorder)
        monitor().stop_goodput_uploader()
        assert len(sink.updates) == 1

    @pytest.mark.parametrize("given_to", ["constructor", "call"])
    def test_skipped(self, recorder, monitor, sink, given_to):
        """The option that skips the last upload skips it."""
        record(recorder)
        made = monitor(skip_final_flush=given_to == "constructor")
        made.start_goodput_uploader()
        made.stop_goodput_uploader(**({"skip_final_flush": True} if given_to == "call" else {}))
        assert sink.updates == []

    def test_steps(self, recorder, monitor, sink):
        """The step deviation uploader uploads each step once."""
        record(recorder, restart=False, end=False)
        made = monitor(include_step_deviation=True, configured_ideal_step_time=4.0)
        made.start_step_deviation_uploader()
        made.stop_step_deviation_uploader()
        made.stop_step_deviation_uploader()
        first, second = sink.updates
        assert first.steps == {"step": [0, 1, 2, 3], "duration_s": [8, 3, 3, 3], "deviation_s": [4, 1, 1, 1]}
        assert second.steps["step"] == []
        assert first.goodput is None

    def test_steps_unwanted(self, recorder, monitor):
        """It starts only if the monitor was made with it."""
        made = monitor()
        made.start_step_deviation_uploader()
        assert made._uploaders == {}

    def test_windows(self, recorder, monitor, sink):
        """The rolling window uploader uploads each window, which ends now or with the job."""
        record(recorder)
        made = monitor()
        made.start_rolling_window_goodput_uploader([3, 49])
        made.stop_rolling_window_goodput_uploader()
        (update,) = sink.updates
        assert update.windows["length_s"] == [3, 49]
        assert update.windows["goodput"] == [1.0, 15 / 49]

    def test_interval_uploader(self, recorder, monitor, sink):
        """The method's name in earlier releases uploads one window."""
        record(recorder)
        made = monitor()
        made.start_goodput_interval_uploader(window_size_seconds=49)
        made.stop_goodput_interval_uploader()
        (update,) = sink.updates
        assert update.windows["goodput"] == [15 / 49]

    def test_twice(self, recorder, monitor, caplog):
        """Starting twice is a warning."""
        made = monitor()
        made.start_goodput_uploader()
        made.start_goodput_uploader()
        made.stop_goodput_uploader(skip_final_flush=True)
        assert "running already" in caplog.text

    def test_goes_on(self, monitor, monkeypatch, caplog):
        """A failed upload is a warning, and the next one is tried."""
        calls, came_again = [], threading.Event()

        def fail():
            calls.append(None)
            if len(calls) > 1:
                came_again.set()
            raise OSError("no disk")

        made = monitor(upload_interval=0.01)
        monkeypatch.setattr(made, "_upload_goodput", fail)
        made.start_goodput_uploader()
        assert came_again.wait(DEADLINE_S)
        made.stop_goodput_uploader(skip_final_flush=True)
        assert "goodput uploader went wrong this time: no disk" in caplog.text

    @pytest.mark.hang_guard(60)
    def test_bounded(self, recorder, monitor, monkeypatch, caplog):
        """Stopping takes no longer than its time limit, whichever upload is stalled."""
        record(recorder)
        go_on = threading.Event()
        made = monitor(final_flush_timeout_seconds=0.05)
        monkeypatch.setattr(made, "_upload_goodput", lambda: go_on.wait(DEADLINE_S))
        made.start_goodput_uploader()
        made.stop_goodput_uploader()
        go_on.set()
        assert "was not done within 0.05 s" in caplog.text

    def test_bus(self, recorder, monitor):
        """Updates go out on trackside's bus, too."""
        record(recorder)
        got = []
        with default_bus.subscribe(got.append, to=GoodputUpdated):
            monitor().stop_goodput_uploader()
        assert [update.goodput for update in got] == [15 / 49]

    def test_disabled(self, recorder, monitor):
        """A monitor that is not enabled does nothing."""
        record(recorder)
        got = []
        with default_bus.subscribe(got.append, to=GoodputUpdated):
            made = monitor(monitoring_enabled=False)
            made.start_goodput_uploader()
            made.start_rolling_window_goodput_uploader([1])
            made.start_step_deviation_uploader()
            made.stop_goodput_uploader()
            made.stop_rolling_window_goodput_uploader()
            made.stop_step_deviation_uploader()
            made.close()
        assert got == []

    def test_default_bound(self):
        """Stopping takes 10 s at most unless the caller sets a limit, as with the peer."""
        assert monitor_module.FLUSH_S == 10.0


class TestPage:
    def test_example(self, tmp_path):
        """The page's example runs as it stands: the last productive step, and percentages that sum to 100 %."""
        page = (Path(__file__).resolve().parents[2] / "docs" / "goodput.md").read_text(encoding="utf-8")
        (example,) = re.findall(r"```python\n(from trackside.compat.*?)```", page, re.DOTALL)
        ran = subprocess.run(
            [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == "9 100\n"
