"""Values read off the machine, with a fake machine."""

from __future__ import annotations

import sys
import threading
from collections import namedtuple
from types import SimpleNamespace

import pytest

from trackside.bus import Bus
from trackside.events import MissingExtraError, SystemSamplingStarted
from trackside.handlers import Capture
from trackside.instruments import nvml, psutil, system
from trackside.instruments._gauges import MachineGauge, Share
from trackside.instruments.system import SystemSampling

DEADLINE_S = 30.0

CpuTimes = namedtuple("CpuTimes", "user system idle iowait guest")  # noqa: PYI024  as psutil's are made
OwnTimes = namedtuple("OwnTimes", "user system")  # noqa: PYI024
Memory = namedtuple("Memory", "total available")  # noqa: PYI024


class FakePsutil:
    """A machine of 100 bytes."""

    def __init__(self):
        self.times = CpuTimes(10.0, 5.0, 80.0, 5.0, 3.0)
        self.own = OwnTimes(1.0, 1.0)

    def cpu_times(self):
        """Return the machine's CPU times."""
        return self.times

    def virtual_memory(self):
        """Return its memory."""
        return Memory(100, 40)

    def Process(self):
        """Return this process."""
        return SimpleNamespace(cpu_times=lambda: self.own, memory_info=lambda: SimpleNamespace(rss=7))


class NVMLError(Exception):
    """The error that NVML raises."""


class FakeNvml:
    """A node with GPUs; *without* are the functions that this kind of GPU refuses."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2

    def __init__(self, *without):
        self.without = without
        self.asked = []

    def __getattr__(self, name):
        recorded = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByIndex": lambda index: self.asked.append(index),
            "nvmlDeviceGetHandleByUUID": lambda uuid: self.asked.append(uuid),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=25),
            "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=1 << 30),
            "nvmlDeviceGetPowerUsage": lambda _: 300_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda _: 2_000,
            "nvmlDeviceGetTemperature": lambda _, sensor: 61,
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1980, 2: 2619}[kind],
        }.get(name)
        if recorded is None:
            raise AttributeError(name)
        return self.refuse if name in self.without else recorded

    def refuse(self, *_):
        """Refuse, as NVML does for values that a GPU lacks."""
        raise NVMLError("Not Supported")


class TestShare:
    def test_absent_at_first(self):
        """The first reading has no earlier one to compare with: it is absent, not 0."""
        assert Share(lambda: 5.0, lambda: 9.0).read() is None

    def test_growth(self):
        """3 of 4 more are three quarters."""
        part, whole = iter([1.0, 4.0]), iter([10.0, 14.0])
        share = Share(lambda: next(part), lambda: next(whole))
        share.read()
        assert share.read() == 0.75

    def test_no_time_passed(self):
        """If no counter has grown there is no share."""
        share = Share(lambda: 1.0, lambda: 10.0)
        share.read()
        assert share.read() is None


class TestPsutil:
    def test_values(self):
        """
        The machine's share leaves out idle and waiting time, and counts guests once; memory is the part not available.
        """
        fake = FakePsutil()
        gauges = {gauge.name: gauge.read for gauge in psutil.gauges_of(fake)}
        gauges["system.cpu.utilization"]()
        fake.times = CpuTimes(12.0, 6.0, 86.0, 6.0, 4.0)  # 3 busy of 10
        assert gauges["system.cpu.utilization"]() == pytest.approx(0.3)
        assert gauges["system.memory.usage"]() == 60
        assert gauges["process.memory.usage"]() == 7

    def test_own_cpu(self, monkeypatch):
        """A process that used 1.5 s of CPU in a second occupied one and a half cores."""
        now_s = iter([100.0, 101.0])
        monkeypatch.setattr(psutil, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
        fake = FakePsutil()
        read = next(gauge.read for gauge in psutil.gauges_of(fake) if gauge.name == "process.cpu.utilization")
        read()
        fake.own = OwnTimes(2.0, 1.5)
        assert read() == pytest.approx(1.5)

    def test_not_installed(self, monkeypatch):
        """Without the library that is the reason."""
        monkeypatch.setitem(sys.modules, "psutil", None)
        with pytest.raises(RuntimeError, match="psutil is not installed"):
            psutil.gauges()


class TestNvml:
    def test_values(self):
        """Values are in base units: shares, bytes, watts, joules, degrees Celsius, hertz."""
        assert {gauge.name: gauge.read() for gauge in nvml.gauges_of(FakeNvml(), 0)} == {
            "hw.gpu.utilization": 0.25,
            "hw.gpu.memory.usage": 1 << 30,
            "hw.gpu.power": 300.5,
            "hw.gpu.energy": 2.0,
            "hw.gpu.temperature": 61,
            "hw.gpu.clock.sm": 1.98e9,
            "hw.gpu.clock.memory": 2.619e9,
        }

    def test_not_supported(self):
        """Values that a GPU lacks are left out."""
        fake = FakeNvml("nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo")
        assert [gauge.name for gauge in nvml.gauges_of(fake, 0)] == [
            "hw.gpu.utilization",
            "hw.gpu.memory.usage",
            "hw.gpu.energy",
            "hw.gpu.temperature",
        ]

    @pytest.mark.parametrize(
        ("local_rank", "visible", "device"),
        [
            (2, None, 2),
            (-1, None, 0),
            (1, "4,5,6", 5),
            (3, "6", 6),
            (0, "GPU-1234,GPU-5678", "GPU-1234"),
            (1, " 2 , 3 ", 3),
        ],
    )
    def test_device(self, local_rank, visible, device):
        """A rank's GPU is the one of its local rank among the visible ones, or the only visible one."""
        assert nvml.device_of(local_rank, visible) == device

    @pytest.mark.parametrize("visible", ["", "-1"])
    def test_hidden(self, visible):
        """If every GPU is hidden there is none to read."""
        with pytest.raises(RuntimeError, match="hides every GPU"):
            nvml.device_of(0, visible)

    def test_by_uuid(self):
        """A GPU that is given by its UUID is found by it."""
        fake = FakeNvml()
        nvml.gauges_of(fake, "GPU-1234")
        assert fake.asked == ["GPU-1234"]

    def test_no_driver(self, monkeypatch):
        """Without a driver NVML's own message is the reason."""
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("nvmlInit"))
        with pytest.raises(RuntimeError, match="NVML: Not Supported"):
            nvml.gauges(0, {})


def gauge(name, read):
    return MachineGauge(name, "1", "for a test", read)


class Readings:
    """A gauge's readings; it lets the test wait for one."""

    def __init__(self, *values):
        self.values = iter(values)
        self.done = threading.Event()

    def __call__(self):
        """Return the next value, and the last one's error or value for ever."""
        value = next(self.values, None)
        if value is None:
            self.done.set()
            return None
        if isinstance(value, Exception):
            raise value
        return value


@pytest.fixture
def finders(monkeypatch):
    """Give the functions that find gauges, none so far; the libraries that they need count as installed."""
    monkeypatch.setattr(system.importlib.util, "find_spec", lambda _name: True)
    monkeypatch.setattr(system, "_FINDERS", {})
    return system._FINDERS


@pytest.fixture
def sample(finders):
    """Sample gauges until each was read to its end; return the bus's counters and the events."""

    def run(*gauges, absent=()):
        def refuse(reason):
            raise RuntimeError(reason)

        finders["cpu"] = lambda: gauges
        finders.update({what: lambda why=why: refuse(why) for what, why in dict(absent).items()})
        published = Capture()
        with Bus() as bus:
            bus.subscribe(published)
            with SystemSampling(bus, sampling_interval_s=0.001):
                for one in gauges:
                    assert one.read.done.wait(DEADLINE_S)
            return {found.name: found for found in bus.registry.snapshots()}, published

    return run


class TestSampling:
    def test_counters(self, sample):
        """Readings go into counters of the gauges' names; one that returns None now is not counted."""
        counters, _ = sample(gauge("a", Readings(1.0, 2.0)), gauge("b", Readings(5.0)))
        assert {name: (found.count, found.sum) for name, found in counters.items()} == {"a": (2, 3.0), "b": (1, 5.0)}

    def test_absent_is_never_zero(self, sample):
        """A gauge that never returns a value has a counter without values."""
        counters, _ = sample(gauge("a", Readings()))
        assert (counters["a"].count, counters["a"].invalid) == (0, 0)

    def test_said_once(self, sample):
        """One event lists the gauges, and the reasons why others are missing."""
        _, published = sample(gauge("a", Readings(1.0)), absent={"gpu": "no driver"})
        (event,) = published.of(SystemSamplingStarted)
        assert (event.sampled, event.absent) == (["a"], {"gpu": "no driver"})

    def test_failing(self, sample, monkeypatch):
        """A reading that fails is left out, and the others go on."""
        counters, _ = sample(gauge("a", Readings(OSError(), 4.0)), gauge("b", Readings(1.0, 1.0)))
        assert (counters["a"].count, counters["b"].count) == (1, 2)

    def test_failing_for_good(self, finders):
        """A reading that fails five times in a row is no longer tried."""
        reads = []

        def broken():
            reads.append(1)
            raise OSError

        other = Readings(*[1.0] * 50)
        finders["cpu"] = lambda: [gauge("a", broken), gauge("b", other)]
        with Bus() as bus, SystemSampling(bus, sampling_interval_s=0.001):
            assert other.done.wait(DEADLINE_S)
        assert len(reads) == system.MAX_FAILURES

    def test_hanging(self, finders):
        """A reading that hangs does not keep the bus from closing."""
        release, reading = threading.Event(), threading.Event()

        def hang():
            reading.set()
            release.wait(DEADLINE_S)

        with Bus() as bus:
            finders["gpu"] = lambda: [gauge("a", hang)]
            sampling = SystemSampling(bus)
            assert reading.wait(DEADLINE_S)
            assert sampling.close(0.01) is False
            release.set()
            assert sampling.close(DEADLINE_S) is True

    def test_nothing_installed(self, monkeypatch):
        """If no library can read anything one line says what to install."""
        monkeypatch.setattr(system.importlib.util, "find_spec", lambda _name: None)
        with pytest.raises(MissingExtraError, match=r"trackside\[psutil,nvml\]"):
            SystemSampling()
