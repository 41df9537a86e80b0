"""Fixtures: a bus of its own for each test, and jobs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from trackside import start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trackside.bus import Bus
    from trackside.job import Job


@pytest.fixture
def run(bus: Bus, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """
    Give a function that starts a job on that bus, quietly unless the test says otherwise, and close it after the test.
    """
    jobs: list[Job] = []

    def begin(**options: Any) -> Job:
        job = start(tmp_path / "runs", bus=bus, **{"report": False, **options})
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.close()
