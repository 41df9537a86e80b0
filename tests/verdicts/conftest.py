"""The test bed, for the tests of the verdict."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("verdict_real", Path(__file__).with_name("real.py"))
real = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(real)


def pytest_generate_tests(metafunc):
    if "simulated" in metafunc.fixturenames:
        metafunc.parametrize("simulated", real.bed.JOBS)
    if "in_ci" in metafunc.fixturenames:
        metafunc.parametrize("in_ci", real.IN_CI)
    if "recorded" in metafunc.fixturenames:
        metafunc.parametrize("recorded", real.REAL)


@pytest.fixture(scope="session")
def test_bed():
    """Give the module of the simulated jobs."""
    return real.bed


@pytest.fixture(scope="session")
def real_jobs():
    """Give the module of the real jobs."""
    return real
