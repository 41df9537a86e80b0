"""The test bed, for the tests of the verdict."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def load_bed():
    """Return the module of the test bed."""
    spec = importlib.util.spec_from_file_location("verdict_bed", Path(__file__).with_name("bed.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bed = load_bed()


def pytest_generate_tests(metafunc):
    if "simulated" in metafunc.fixturenames:
        metafunc.parametrize("simulated", bed.JOBS)
    if "real" in metafunc.fixturenames:
        metafunc.parametrize("real", bed.REAL)


@pytest.fixture(scope="session")
def test_bed():
    """Give the module of the test bed."""
    return bed
