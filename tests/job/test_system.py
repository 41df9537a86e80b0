"""The machine's readings, as part of a job."""

from __future__ import annotations

import threading

import pytest

from trackside.events import MissingExtraError, SystemSamplingStarted
from trackside.handlers import replay
from trackside.instruments import system
from trackside.instruments._gauges import MachineGauge
from trackside.job import start

DEADLINE_S = 30.0


class TestSystem:
    def test_recorded(self, tmp_path, bus, monkeypatch):
        """The readings are in the job's log: the list of gauges, and the counters' last windows."""
        read = threading.Event()
        gauge = MachineGauge("machine.heat", "Cel", "for a test", lambda: (read.set(), 40.0)[1])
        monkeypatch.setattr(system.importlib.util, "find_spec", lambda name: name)
        monkeypatch.setitem(system._FINDERS, "cpu", lambda: [gauge])
        job = start(tmp_path, system=True, report=False, bus=bus)
        assert read.wait(DEADLINE_S)
        job.close(timeout_s=DEADLINE_S)
        events = list(replay(tmp_path))
        (started,) = [event for event in events if isinstance(event, SystemSamplingStarted)]
        windows = [event for event in events if getattr(event, "name", "") == "machine.heat"]
        assert started.sampled[0] == "machine.heat"
        assert windows[-1].total_sum / windows[-1].total_count == 40.0

    def test_off_unless_asked_for(self, tmp_path, bus):
        """Nothing is read unless the caller asks for it."""
        with start(tmp_path, report=False, bus=bus):
            assert "trackside-system" not in {thread.name for thread in threading.enumerate()}

    def test_nothing_installed(self, tmp_path, bus, monkeypatch):
        """Without a library for the readings they are refused, and telemetry can be turned on without."""
        monkeypatch.setattr(system.importlib.util, "find_spec", lambda _name: None)
        with pytest.raises(MissingExtraError, match=r"trackside\[psutil,nvml\]"):
            start(tmp_path, system=True, report=False, bus=bus)
        start(tmp_path, report=False, bus=bus).close()
