"""Readings of the machine that runs the tests."""

from __future__ import annotations

import importlib.util
import time

import pytest

import trackside
from trackside.bus import Bus
from trackside.events import CounterWindow, SystemSamplingStarted
from trackside.instruments import nvml
from trackside.instruments import psutil as cpu
from trackside.instruments.system import SystemSampling

pytestmark = pytest.mark.integration
psutil = pytest.importorskip("psutil")

DEADLINE_S = 30.0


class TestReal:
    def test_in_a_job(self, tmp_path):
        """A job that asks for it has the machine in its log: memory as psutil reads it, CPU as shares."""
        with Bus() as bus:
            with trackside.start(tmp_path, system=True, report=False, bus=bus) as job:
                deadline_s = time.monotonic() + DEADLINE_S
                # A share needs two readings, two seconds apart.
                name = "system.cpu.utilization"
                while not sum(one.count for one in bus.registry.snapshots(name)) and time.monotonic() < deadline_s:
                    sum(range(100_000))
                job.close()
            windows = {event.name: event for event in trackside.replay(tmp_path, to=CounterWindow)}
            (started,) = trackside.replay(tmp_path, to=SystemSamplingStarted)
        memory = psutil.Process().memory_info().rss
        assert 0.2 * memory < windows["process.memory.usage"].values["mean"] < 5 * memory
        assert 0.0 < windows["process.cpu.utilization"].values["max"] < 64
        assert 0.0 < windows["system.cpu.utilization"].values["max"] <= 1.0
        assert 0 < windows["system.memory.usage"].values["value"] < psutil.virtual_memory().total
        assert set(started.sampled) <= set(windows)

    @pytest.mark.filterwarnings("ignore:The pynvml package:FutureWarning")  # of a package that others bring
    def test_gpu(self):
        """If there is a GPU its memory can be read."""
        try:
            gauges = {gauge.name: gauge.read() for gauge in nvml.gauges(0)}
        except RuntimeError as error:
            pytest.skip(str(error))
        assert gauges["hw.gpu.memory.usage"] > 0

    def test_cost(self):
        """A round of readings takes little time: far below the two seconds of a core between rounds."""
        gauges = cpu.gauges()
        began_s = time.process_time()
        for _ in range(20):
            for gauge in gauges:
                gauge.read()
        assert (time.process_time() - began_s) / 20 < 0.1


class TestLibraries:
    def test_either_will_do(self):
        """Sampling begins if one of its two libraries is installed."""
        assert any(map(importlib.util.find_spec, ("psutil", "pynvml")))
        with Bus() as bus:
            SystemSampling(bus).close(DEADLINE_S)
