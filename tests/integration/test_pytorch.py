"""Plain PyTorch, recorded by one line, under torchrun: two ranks, and one that dies and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import trackside
from trackside.events import IterationEnded

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.hang_guard(300)]

JOB = Path(__file__).with_name("plain_job.py")
RESUMED = 6
DIES_AFTER = 7


def run(directory, ranks, *arguments):
    """Run the job and return its directory."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [*torchrun, "--max-restarts=2", JOB, directory, *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    return directory / "runs"


def iterations_in(directory):
    return [event for event in trackside.replay(directory) if isinstance(event, IterationEnded)]


@pytest.fixture(scope="module")
def iterations(tmp_path_factory):
    """Return the iterations of two ranks that train together."""
    return iterations_in(run(tmp_path_factory.mktemp("ranks"), 2))


class TestDistributed:
    def test_steps(self, iterations):
        """Each rank records its twelve steps."""
        steps = [[event.step for event in iterations if event.source.rank == rank] for rank in (0, 1)]
        assert steps == [list(range(12))] * 2

    def test_one_run(self, iterations):
        """Two ranks are two sources of one run."""
        sources = {event.source for event in iterations}
        assert (len(sources), len({source.run_id for source in sources})) == (2, 1)

    def test_samples(self, iterations):
        """An iteration's samples are those of both ranks."""
        assert {event.samples for event in iterations} == {16}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """
    Return the directory of the job, after it died once and was restarted.

    Of one rank: with two, gloo sometimes does not connect after a restart, with or without telemetry.
    """
    return run(tmp_path_factory.mktemp("restarted"), 1, DIES_AFTER)


class TestRestart:
    def test_steps(self, directory):
        """The first attempt records its steps up to its death, the second those from the checkpoint on."""
        iterations = iterations_in(directory)
        steps = [[event.step for event in iterations if event.source.attempt == attempt] for attempt in (0, 1)]
        assert steps == [list(range(DIES_AFTER + 1)), list(range(RESUMED, 12))]


@pytest.fixture(scope="module")
def recorded(directory):
    """Return the goodput that the command prints of the job that was restarted."""
    command = [Path(sys.executable).with_name("trackside"), "goodput", "--json", directory]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


class TestGoodput:
    def test_attempts(self, recorded):
        """There were two attempts and one disruption, and the last step is the last one."""
        assert (recorded["attempts"], recorded["disruptions"], recorded["last_step"]) == (2, 1, 11)

    def test_wasted(self, recorded, directory):
        """Steps 6 and 7 are wasted, after the checkpoint that the second attempt resumed from, within one step."""
        wasted = [
            event.duration_ns / 1e9
            for event in iterations_in(directory)
            if event.source.attempt == 0 and event.step >= RESUMED
        ]
        assert len(wasted) == 2
        assert recorded["badput_s"]["WASTED_PROGRESS_FROM_DISRUPTION"] == pytest.approx(sum(wasted), abs=max(wasted))

    def test_recovery(self, recorded):
        """The time from the first attempt's end to the second's start is in a bucket, and no time is left over."""
        assert recorded["badput_s"]["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"] > 0
        badput = {key: value for key, value in recorded["badput_s"].items() if key != "CUSTOM_BADPUT_EVENTS"}
        custom = sum(recorded["badput_s"]["CUSTOM_BADPUT_EVENTS"].values())
        assert recorded["productive_s"] + sum(badput.values()) + custom == pytest.approx(
            recorded["elapsed_s"], rel=1e-9
        )
