"""The soak for a few seconds; ``make soak`` runs it for an hour."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from trackside.bus import Bus
from trackside.handlers import EventLog

RUN = Path(__file__).with_name("run.py")


@pytest.fixture(scope="module")
def run():
    """Give the tool as a module."""
    spec = importlib.util.spec_from_file_location("soak_run", RUN)
    module = sys.modules["soak_run"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["soak_run"]


class Ran:
    """A process that was sampled for ten minutes; its memory grew by *growth_mib*."""

    name = "job"

    def __init__(self, run, growth_mib):
        self.samples = [
            run.Sample(at_s, 100 * run.MIB + at_s * growth_mib * run.MIB // 600, 9, 3) for at_s in range(600)
        ]


class TestGrowth:
    def test_none(self, run):
        """Ten MiB in ten minutes are within the limit."""
        assert run._growth(Ran(run, 10)) == []

    def test_found(self, run):
        """Fifty MiB are more than the limit of sixteen, and named."""
        (wrong,) = run._growth(Ran(run, 50))
        assert wrong.startswith("job: memory_bytes grew from ")

    def test_too_short(self, run):
        """A run that ended before the processes were warm reports that it has no result."""
        ran = Ran(run, 0)
        del ran.samples[100:]
        assert run._growth(ran) == ["job: too short a run to say whether anything grows"]


def test_itself(run):
    """This process has memory, descriptors and a thread; one that has ended has none."""
    found = run.sample(run.os.getpid(), 1.0)
    assert found.memory_bytes > run.MIB
    assert found.descriptors >= 3
    assert found.threads >= 1
    assert run.sample(2**22 + 1, 1.0) is None


class TestRecorded:
    def test_dropped_before_a_number(self, run, tmp_path):
        """Steps that the queue dropped are counted by the log in events of their own; one more is a fault."""
        bus = Bus(queue_limit=64)
        bus.subscribe(EventLog(tmp_path))
        for number in range(2000):
            bus.log(run.StepTaken(number=number))
        assert bus.close(20)
        assert run._recorded(tmp_path, 2000) == []
        (fault,) = run._recorded(tmp_path, 2001)
        assert "steps are missing" in fault
