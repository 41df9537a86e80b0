"""A job instrumented with One Logger, as it stands, run with its imports changed; figures worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[1] / "integration" / "one_logger_job.py"
SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Give a function that runs a scenario once and returns its events: name and attributes."""
    directory = tmp_path_factory.mktemp("job")
    text = DRIVER.read_text(encoding="utf-8").replace("nv_one_logger", "trackside.compat.one_logger")
    (directory / "job.py").write_text(text, encoding="utf-8")
    known = {}

    def run(scenario):
        if scenario not in known:
            written = directory / f"{scenario}.jsonl"
            environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
            command = [sys.executable, directory / "job.py", written, scenario]
            subprocess.run(command, check=True, cwd=directory, env=environment, timeout=100)
            records = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
            known[scenario] = [record["event"] for record in records if "event" in record]
        return known[scenario]

    return run


def sent(events, name):
    return [event["attributes"] for event in events if event["name"] == name]


def figures(attributes, *names):
    return tuple(attributes[name] for name in names)


ITERATION_TIMES = [f"{name}_iteration_time_sec" for name in ("avg", "min", "max", "total")]


class TestSynchronous:
    """
    Ten iterations of 0.5, 0.25, 1.5, 0.75, 1 and 0.5, 0.5, 2, 0.25, 1 s, reported every five.

    Each but the first begins 0.25 s after the one before, the sixth 1.25 s, and that time belongs to its step too.
    """

    def test_times(self, events):
        """Times are about the whole job."""
        first, second = sent(events("synchronous"), "training_metrics_update")
        assert figures(first, *ITERATION_TIMES) == (1.0, 0.5, 1.75, 5.0)
        assert figures(second, *ITERATION_TIMES) == (1.15, 0.5, 2.25, 11.5)

    def test_window(self, events):
        """Figures of the window have a name that says so."""
        _, second = sent(events("synchronous"), "training_metrics_update")
        assert figures(second, *(f"window_{name}" for name in ITERATION_TIMES)) == (1.3, 0.5, 2.25, 6.5)

    def test_throughput(self, events):
        """An iteration is 32 samples of 10¹⁰ operations on four ranks; the fastest takes 0.5 s, the slowest 1.75 s."""
        first, _ = sent(events("synchronous"), "training_metrics_update")
        names = [f"train_throughput_per_gpu{end}" for end in ("", "_max", "_min")]
        # 0.32 · 10¹² operations on 4 ranks: over 1 s, which is the mean, over 0.5 and over 1.75 s.
        assert figures(first, *names) == pytest.approx((0.32 / 1.0 / 4, 0.32 / 0.5 / 4, 0.32 / 1.75 / 4))

    def test_tokens(self, events):
        """Each sample has 128 tokens."""
        first, _ = sent(events("synchronous"), "training_metrics_update")
        assert figures(first, "train_tokens", "avg_tokens_per_second") == (20_480, 4_096.0)

    def test_productive(self, events):
        """At the second success all iterations are saved: the failed save between saved none."""
        _, second = sent(events("synchronous"), "save_checkpoint_success")
        names = [
            "train_iterations",
            "train_samples",
            "train_iterations_sec",
            "validation_iterations_sec",
            "train_tflops",
        ]
        assert figures(second, *(f"productive_{name}" for name in names)) == (10, 320, 11.5, 1.75, 3.2)
        assert figures(second, "save_checkpoint_success_count", "save_checkpoint_failure_count") == (2, 1)

    def test_saves(self, events):
        """Saves blocked training for 2.25, 0.25 and 3.25 s."""
        updates = sent(events("synchronous"), "sync_checkpoint_metrics_update")
        names = [f"save_checkpoint_sync_time_{name}_sec" for name in ("total", "min", "max")]
        assert figures(updates[-1], *names) == (5.75, 0.25, 3.25)

    def test_metadata(self, events):
        """Additional values are kept as texts."""
        (job,) = sent(events("synchronous"), "one_logger_initialization")
        (training,) = sent(events("synchronous"), "update_training_telemetry_config")
        metadata = (job["custom_metadata"], training["custom_metadata"])
        assert metadata == (["model:tiny", "layers:3"], ["optimizer:adam"])


class TestAsynchronous:
    """From iteration 3 on: 0.5, 1, 0.25, 0.75 s, a save, 2 s, a save, 2 s; the second succeeds first."""

    def test_order(self, events):
        """Productive iterations are those in the furthest checkpoint: eight, and then still eight."""
        updates = sent(events("asynchronous"), "save_checkpoint_success")
        names = ["current_iteration", "productive_train_iterations", "productive_train_iterations_sec"]
        assert [figures(update, *names) for update in updates] == [(8, 8, 5.75), (7, 8, 5.75)]

    def test_interval(self, events):
        """The first update comes at the fifth iteration, two after the start; the last is the rest of a window."""
        updates = sent(events("asynchronous"), "training_metrics_update")
        names = ["current_iteration", "num_iterations", "interval"]
        assert [figures(update, *names) for update in updates] == [(4, 2, 2), (9, 7, 5), (10, 8, 1)]

    def test_tags(self, events):
        """Several tags are a list."""
        (training,) = sent(events("asynchronous"), "update_training_telemetry_config")
        assert training["perf_tag"] == ["one", "two"]


class TestCustomized:
    def test_the_first_iteration(self, events):
        """If every iteration is to be reported, the first one is too."""
        updates = sent(events("customized"), "training_metrics_update")
        assert [update["num_iterations"] for update in updates] == [1, 2, 3]

    def test_what_a_job_tells(self, events):
        """Events and errors of its own are there."""
        (half_way,) = sent(events("customized"), "half way")
        (error,) = sent(events("customized"), "error")
        assert (half_way["share"], error["exception_message"]) == (0.5, "no such layer")
