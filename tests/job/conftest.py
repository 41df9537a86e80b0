"""Fixtures: a bus of its own for each test, and jobs on it."""

from __future__ import annotations

import pytest

from trackside import start


@pytest.fixture
def run(bus, tmp_path):
    """
    Give a function that starts a job on that bus, quietly unless the test says otherwise, and close it after the test.
    """
    jobs = []

    def begin(**options):
        job = start(tmp_path / "runs", bus=bus, **{"report": False, **options})
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.close()
