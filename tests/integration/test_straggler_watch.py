"""Watching three real ranks by a collective, and stopping them at one step."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.torch]

RANKS, SLOW, SLOW_FROM, STEPS = 3, 2, 20, 60
PROGRAM = Path(__file__).with_name("watched_rank.py")


def run(folder, killed_at):
    command = [sys.executable, "-W", "ignore", PROGRAM]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(RANKS), folder, str(killed_at)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(RANKS)
    ]
    try:
        return ranks, [process.communicate(timeout=100) for process in ranks]
    finally:
        for process in ranks:
            process.kill()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Let all ranks run, and return the reports that each got."""
    ranks, outcomes = run(tmp_path_factory.mktemp("stopped"), -1)
    assert [process.returncode for process in ranks] == [0] * RANKS, outcomes
    return [json.loads(out) for out, _ in outcomes]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Kill the last rank in the middle of a window, and return the reports that the others got."""
    ranks, outcomes = run(tmp_path_factory.mktemp("killed"), 13)
    assert [process.returncode for process in ranks] == [0, 0, -signal.SIGKILL], outcomes
    return [json.loads(out) for out, _ in outcomes[:SLOW]], outcomes


class TestGather:
    def test_on_rank_0_alone(self, stopped):
        """Rank 0 has the reports, the others have none."""
        assert [bool(recorded["reports"]) for recorded in stopped] == [True, False, False]

    def test_slow_rank(self, stopped):
        """The slow rank is named, with its section and the first step of the window since which it is slow."""
        assert stopped[0]["reports"][-1]["slow"] == [[SLOW, "section data", SLOW_FROM]]


class TestStop:
    def test_same_step(self, stopped):
        """All ranks stop after the same step, one at which they agree, once the slow one was found."""
        (step,) = {recorded["stopped_after"] for recorded in stopped}
        assert SLOW_FROM < step < STEPS
        assert (step + 1) % 10 == 0


class TestKilledRank:
    def test_on_time(self, killed):
        """A dead rank delays the others' reports by no more than the timeout, once."""
        recorded, _ = killed
        assert {one["waited_s"] < 30.0 for one in recorded} == {True}

    def test_named(self, killed):
        """The rank is named as silent, and the reports go on to the end."""
        recorded, _ = killed
        last = recorded[0]["reports"][-1]
        assert SLOW in last["silent"]
        assert last["window"] >= STEPS // 5 - 3

    def test_said(self, killed):
        """The log says once that windows are no longer gathered."""
        _, outcomes = killed
        assert outcomes[0][1].decode().count("cannot be gathered") == 1
