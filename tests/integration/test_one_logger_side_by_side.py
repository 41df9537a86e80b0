"""
One driver, with explicit times, run against One Logger itself and against trackside under its names.

Values that both report are equal. The differences are listed below, each with its reason; a difference that is not
listed fails, and so does one that is listed and does not occur.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import attrs
import pytest

pytestmark = pytest.mark.integration

THEIR_VERSION = "2.3.1"
DRIVER = Path(__file__).with_name("one_logger_job.py")
COMPARED = ("synchronous", "asynchronous", "customized")

RUNNING = "One Logger's extremes are those of the running average; ours, as it documents them, of single iterations"
STEP_TIME = "One Logger's iterations last from their start; ours from the end of the one before"
MOMENT = "One Logger stamps the moment of its call; trackside gives the time of the event itself"
SAVE_START = "One Logger uses the start that it is given for its timer, and not for the span"
FURTHEST = "of successes out of order One Logger takes back what is productive already"

# By the span or event and the attribute's name.
DIFFERENT = {
    (
        "one_logger_initialization",
        "one_logger_training_telemetry_version",
    ): "it is the version of the reporting library",
    **{
        ("training_metrics_update", name): STEP_TIME
        for name in (
            "avg_iteration_time_sec",
            "min_iteration_time_sec",
            "max_iteration_time_sec",
            "total_iteration_time_sec",
            "train_throughput_per_gpu",
        )
    },
    ("training_metrics_update", "train_throughput_per_gpu_max"): RUNNING,
    ("training_metrics_update", "train_throughput_per_gpu_min"): RUNNING,
    ("training_metrics_update", "interval"): "One Logger repeats its setting; ours counts, also after a resumption",
    ("training_metrics_update", "timestamp_msec"): MOMENT,
    ("validation_metrics_update", "timestamp_msec"): MOMENT,
    ("testing_metrics_update", "timestamp_msec"): MOMENT,
    ("sync_checkpoint_metrics_update", "timestamp_msec"): MOMENT,
    ("update_training_telemetry_config", "timestamp_msec"): MOMENT,
    ("checkpoint_save_sync", "start.timestamp_msec"): SAVE_START,
    ("checkpoint_save_sync", "duration_msec"): SAVE_START,
    ("checkpoint_save_async", "start.timestamp_msec"): SAVE_START,
    ("checkpoint_save_async", "duration_msec"): SAVE_START,
    ("save_checkpoint_success", "productive_train_iterations"): FURTHEST,
    ("save_checkpoint_success", "productive_train_samples"): FURTHEST,
    ("save_checkpoint_success", "productive_train_iterations_sec"): FURTHEST,
    ("error", "error_message"): "One Logger's is the same for every exception; ours names it",
    ("error", "exception_traceback"): "its frames are those of who recorded it",
}
ONLY_THEIRS = {
    ("training_metrics_update", "total_flops"): "One Logger reports 0 where their number was not given",
}
ONLY_OURS = {
    ("training_metrics_update", 0): "One Logger never reports the first iteration, even if every one is to be",
    ("training_metrics_update", 10): "One Logger never reports what is left of a window when the loop ends",
}
"""By event and its current iteration, the attributes that One Logger does not report."""


@attrs.define
class Report:
    """The records of one of the two: spans in the order of their ends, and events in theirs, by name."""

    spans: dict[str, list[dict]] = attrs.field(factory=dict)
    events: dict[str, list[dict]] = attrs.field(factory=dict)
    owners: dict[str, set[str]] = attrs.field(factory=dict)
    """By event, the names of the spans that it was reported on."""


def run(package, scenario, directory):
    """Run the driver against *package*; return its exit and its records."""
    script = directory / f"{package}_{scenario}.py"
    script.write_text(DRIVER.read_text(encoding="utf-8").replace("nv_one_logger", package), encoding="utf-8")
    written = directory / f"{package}_{scenario}.jsonl"
    command = [sys.executable, script, written, scenario]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=directory, timeout=100)
    assert written.exists(), done.stderr
    return done, read(written)


def read(path):
    """Read a file of records; times since the epoch become times since the application began."""
    report, names, open_spans, began_ms = Report(), {}, {}, None
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["type"] in {"start", "complete"}:
            started = record["start_event"]["attributes"]["timestamp_msec"]
            began_ms = started if began_ms is None else began_ms
            names[record["id"]] = record["name"]
            open_spans[record["id"]] = {"start.timestamp_msec": started}
        if record["type"] in {"stop", "complete"}:
            span = open_spans.pop(record["id"])
            span |= record.get("attributes", {})
            span["stop.timestamp_msec"] = record["stop_event"]["attributes"]["timestamp_msec"]
            report.spans.setdefault(record["name"], []).append(since(span, began_ms))
        if record["type"] in {"event", "application_error"}:
            event = record["event"]
            report.events.setdefault(event["name"], []).append(since(event["attributes"], began_ms))
            report.owners.setdefault(event["name"], set()).add(names[record["span_id"]])
    assert open_spans == {}
    return report


def since(attributes, began_ms):
    recorded = dict(attributes)
    for name in recorded:
        if name.endswith("timestamp_msec"):
            recorded[name] -= began_ms
        elif name.endswith("timestamp_sec"):
            recorded[name] -= began_ms / 1000
    return recorded


def is_same(name, theirs, ours, *, measured):
    """Return whether two values are equal: times to the millisecond, or any, if they were *measured*."""
    if name.endswith(("_sec", "_msec")):
        return measured or theirs == pytest.approx(ours, abs=2 if name.endswith("_msec") else 0.002)
    if isinstance(theirs, float) and isinstance(ours, float):
        return theirs == pytest.approx(ours, rel=1e-3)
    return theirs == ours and type(theirs) is type(ours)


def differences(theirs, ours, *, measured):
    """Yield the span or event, the attribute and the kind of difference: ``different``, ``only theirs``."""
    for kind in ("spans", "events"):
        for name, of_theirs in getattr(theirs, kind).items():
            of_ours = [recorded for recorded in getattr(ours, kind)[name] if not is_only_ours(name, recorded)]
            assert len(of_theirs) == len(of_ours), name
            for their, our in zip(of_theirs, of_ours, strict=True):
                for attribute, value in their.items():
                    if attribute not in our:
                        yield name, attribute, "only theirs"
                    elif not is_same(attribute, value, our[attribute], measured=measured):
                        yield name, attribute, "different"


def is_only_ours(name, recorded):
    return (name, recorded.get("current_iteration")) in ONLY_OURS


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Give the records of both, by scenario."""
    try:
        assert version("nv-one-logger-training-telemetry") == THEIR_VERSION
    except PackageNotFoundError:
        pytest.skip("nv-one-logger-training-telemetry is not installed in this environment")
    directory = tmp_path_factory.mktemp("one_logger")
    found = {}
    for scenario in COMPARED:
        for package in ("nv_one_logger", "trackside.compat.one_logger"):
            done, report = run(package, scenario, directory)
            assert done.returncode == 0, done.stderr
            found[scenario, package == "nv_one_logger"] = report
    return found


@pytest.fixture(scope="module")
def found(reports):
    """Give all differences, over all scenarios."""
    return {
        difference
        for scenario in COMPARED
        for difference in differences(
            reports[scenario, True], reports[scenario, False], measured=scenario == "customized"
        )
    }


class TestSideBySide:
    def test_what_both_report_is_equal(self, found):
        """
        Every attribute that both report is equal, unless the list gives a reason; and the list has no other entry.
        """
        assert {(name, attribute) for name, attribute, kind in found if kind == "different"} == set(DIFFERENT)

    def test_everything_of_theirs_is_reported(self, found):
        """Every attribute that One Logger reports is reported, unless the list gives a reason."""
        assert {(name, attribute) for name, attribute, kind in found if kind == "only theirs"} == set(ONLY_THEIRS)

    @pytest.mark.parametrize("scenario", COMPARED)
    def test_owners(self, reports, scenario):
        """Events belong to the spans that One Logger puts them on."""
        theirs, ours = reports[scenario, True], reports[scenario, False]
        assert {name: ours.owners[name] for name in theirs.owners} == theirs.owners

    @pytest.mark.parametrize("scenario", COMPARED)
    def test_nothing_else(self, reports, scenario):
        """There are no spans or events that One Logger does not report, except those in the list."""
        theirs, ours = reports[scenario, True], reports[scenario, False]
        assert (set(ours.spans), set(ours.events)) == (set(theirs.spans), set(theirs.events))

    def test_only_ours(self, reports):
        """Attributes that only trackside reports do occur."""
        ours = {
            (name, recorded.get("current_iteration"))
            for scenario in COMPARED
            for name, events in reports[scenario, False].events.items()
            for recorded in events
        }
        assert set(ONLY_OURS) <= ours


class TestDefectsThatAreNotCopied:
    def test_failed_iterations(self, reports, tmp_path):
        """One Logger counts an iteration that raised as completed; trackside does not."""
        _, theirs = run("nv_one_logger", "failing", tmp_path)
        _, ours = run("trackside.compat.one_logger", "failing", tmp_path)
        (their,), (our,) = (report.events["training_metrics_update"] for report in (theirs, ours))
        assert (their["num_iterations"], our["num_iterations"], our["num_failed_iterations"]) == (3, 2, 1)

    def test_late_success(self, reports, tmp_path):
        """A save that succeeds after the application ended crashes the job under One Logger."""
        theirs, _ = run("nv_one_logger", "late", tmp_path)
        ours, report = run("trackside.compat.one_logger", "late", tmp_path)
        assert "OneLoggerError" in theirs.stderr
        assert (ours.returncode, report.events["save_checkpoint_success"][0]["current_iteration"]) == (0, 1)
