"""A real job of three processes, one of which is killed or stopped in the middle of a window."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.events import StragglerReport
from trackside.handlers import replay
from trackside.handlers.models.scores import Missing, ScoreAggregator

pytestmark = pytest.mark.once

STRUCK_AT = 17


@pytest.fixture(scope="module", params=["SIGKILL", "SIGSTOP"])
def job(request, tmp_path_factory):
    """
    Run the job; return the model that read its logs while the rank was killed or stopped, and the published reports.
    """
    folder = tmp_path_factory.mktemp("job")
    command = [sys.executable, Path(__file__).parent / "sectioned_rank.py"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "3", folder, str(STRUCK_AT if rank == 1 else -1), request.param],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        recorded = [ranks[rank].communicate(timeout=100)[1] for rank in (0, 2)]
        assert [ranks[0].returncode, ranks[2].returncode] == [0, 0], recorded
        published = []
        aggregator = ScoreAggregator(publish=published.append)
        for event in replay(folder):
            aggregator(event)
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert ranks[1].returncode == -signal.SIGKILL
    return aggregator, published


class TestStruckRank:
    def test_windows_of_the_others(self, job):
        """Every window of the others is reported, up to the last."""
        reports = job[0].result().windows
        assert [(report.first_step, report.last_step) for report in reports] == [
            (first, first + 4) for first in range(0, 30, 5)
        ]

    def test_on_time(self, job):
        """The windows that the struck rank is missing from are published while the others go on."""
        _, published = job
        windows = {event.window for event in published if isinstance(event, StragglerReport)}
        assert windows >= {0, 1, 2, 3, 4}

    def test_is_named(self, job):
        """The rank is named as silent from the window in which it was struck on, and in none before."""
        reports = job[0].result().windows
        silent = [report.window for report in reports if Missing(1, "all", "rank silent") in report.missing]
        assert silent == [3, 4, 5]

    def test_others_are_scored(self, job):
        """The slow rank is found beside it, by its section, in every window."""
        reports = job[0].result().windows
        slow = [
            {
                (one.rank, name)
                for name, ids in report.identify_stragglers()["straggler_sections_relative"].items()
                for one in ids
            }
            for report in reports
        ]
        assert [(2, "data") in found for found in slow] == [True] * 6
