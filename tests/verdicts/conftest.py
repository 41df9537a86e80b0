"""The test bed, for the tests of the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scripts

real = scripts.load(Path(__file__).with_name("real.py"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "simulated" in metafunc.fixturenames:
        metafunc.parametrize("simulated", real.bed.JOBS)
    if "in_ci" in metafunc.fixturenames:
        metafunc.parametrize("in_ci", real.IN_CI)
    if "recorded" in metafunc.fixturenames:
        metafunc.parametrize("recorded", real.REAL)


@pytest.fixture(scope="session")
def test_bed() -> Any:
    """Give the module of the simulated jobs."""
    return real.bed


@pytest.fixture(scope="session")
def real_jobs() -> Any:
    """Give the module of the real jobs."""
    return real
