"""GPU times, with a GPU that a test advances."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from interrupting import Interruption, raising_signals
from trackside.bus import Bus
from trackside.events import GpuTimingUnavailable, KernelWindow, SectionWindow
from trackside.handlers import Capture
from trackside.instruments import _gpu_sections as module
from trackside.instruments import section_windows
from trackside.instruments.section_windows import Sections
from trackside.instruments.torch import cuda_event_timer


class FakeGpu:
    """A GPU that works off its queue when the test says so; each stretch takes 100 ns more than the last."""

    def __init__(self):
        self.marks = []
        self.done = 0
        self.capturing = False
        self.broken = None

    def begin(self):
        """Mark a beginning."""
        if self.broken:
            raise self.broken
        return None if self.capturing else [len(self.marks)]

    def end(self, mark):
        """Mark an end."""
        self.marks.append(mark)
        mark.append(len(self.marks))

    def elapsed_ns(self, mark):
        """Return the duration, if it is over."""
        return mark[1] * 100 if mark[1] <= self.done else None


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def published():
    return Capture()


@pytest.fixture
def sections(gpu, published, ticking, monkeypatch):
    bus = Bus(strict=True)
    bus.subscribe(published)
    monkeypatch.setattr(section_windows, "cuda_event_timer", lambda: gpu)
    made = Sections(bus)
    made.configure(window_steps=1)
    yield made
    made.close()
    bus.close()


class TestTimes:
    def test_finished(self, sections, gpu, published):
        """Stretches that the GPU has finished at the end of the window are in it, under the section's name."""
        gpu.done = 2
        for _ in range(2):
            with sections.section("forward", gpu=True):
                pass
        sections.step_ended(0)
        (event,) = published.of(KernelWindow)
        assert (event.names, event.counts, event.min_ns, event.max_ns, event.window) == (
            ["forward"],
            [2],
            [100.0],
            [200.0],
            0,
        )

    def test_not_yet_finished(self, sections, gpu, published):
        """Unfinished stretches come in a later window, and nothing waits for them."""
        for step in range(3):
            with sections.section("forward", gpu=True):
                pass
            gpu.done = step
            sections.step_ended(step)
        assert [(event.window, event.counts, event.max_ns) for event in published.of(KernelWindow)] == [
            (1, [1], [100.0]),
            (2, [1], [200.0]),
        ]

    def test_before_the_sections(self, sections, gpu, published):
        """The kernels' window comes before the sections', which makes the rank complete."""
        gpu.done = 1
        with sections.section("forward", gpu=True):
            pass
        sections.step_ended(0)
        assert [type(event) for event in published] == [KernelWindow, SectionWindow]

    def test_same_entries(self, sections, gpu, published):
        """Entries that a profiling interval skips are not timed on the GPU either."""
        sections.configure(profiling_interval=2, window_steps=4)
        gpu.done = 9
        for step in range(4):
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        assert [event.counts for event in published.of(KernelWindow)] == [[2]]

    def test_exception(self, sections, gpu, published):
        """A block that raises leaves no GPU time."""
        gpu.done = 9
        with pytest.raises(KeyError), sections.section("forward", gpu=True):
            raise KeyError
        sections.step_ended(0)
        assert published.of(KernelWindow) == []

    def test_nested(self, sections, gpu, published):
        """Sections with GPU times may be nested."""
        gpu.done = 9
        one = sections.section("forward", gpu=True)
        with one, one:
            pass
        sections.step_ended(0)
        assert [event.counts for event in published.of(KernelWindow)] == [[2]]

    def test_decorator(self, sections, gpu, published):
        """As a decorator it times the GPU in each call."""
        gpu.done = 9
        work = sections.section("forward", gpu=True)(lambda: 7)
        assert (work(), work()) == (7, 7)
        sections.step_ended(0)
        assert [event.counts for event in published.of(KernelWindow)] == [[2]]

    def test_capture(self, sections, gpu, published):
        """While a graph is captured the GPU is not timed, and the section is."""
        gpu.capturing = True
        with sections.section("forward", gpu=True):
            pass
        sections.step_ended(0)
        assert [type(event) for event in published] == [SectionWindow]

    def test_too_many(self, sections, gpu, published, monkeypatch):
        """The number of stretches that a hung GPU does not finish is bounded, and counted."""
        monkeypatch.setattr(module, "MAX_PENDING", 3)
        for _ in range(5):
            with sections.section("forward", gpu=True):
                pass
        sections.step_ended(0)
        assert [(event.names, event.dropped) for event in published.of(KernelWindow)] == [([], 2)]


class TestUnavailable:
    def test_said_once(self, published, ticking, monkeypatch):
        """If there is no GPU one event gives the reason, and sections are timed without."""

        def nothing():
            raise RuntimeError("there is no GPU here")

        bus = Bus(strict=True)
        bus.subscribe(published)
        monkeypatch.setattr(section_windows, "cuda_event_timer", nothing)
        sections = Sections(bus)
        sections.configure(window_steps=1)
        for step in range(2):
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        bus.close()
        assert [event.reason for event in published.of(GpuTimingUnavailable)] == ["there is no GPU here"]
        assert [event.counts for event in published.of(SectionWindow)] == [[1], [1]]
        assert published.of(KernelWindow) == []

    def test_breaks_later(self, sections, gpu, published):
        """A GPU that fails later is turned off with its reason; training goes on."""
        gpu.done = 9
        for step in range(3):
            if step == 1:
                gpu.broken = RuntimeError("device lost")
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        assert [event.reason for event in published.of(GpuTimingUnavailable)] == ["device lost"]
        assert len(published.of(SectionWindow)) == 3

    @pytest.mark.parametrize("method", ["begin", "end", "elapsed_ns"])
    def test_interrupted(self, sections, gpu, published, monkeypatch, *, method):
        """An exception of the program's signal handler in a GPU's call comes out, and the GPU is timed afterwards."""
        section = sections.section("forward", gpu=True)

        def train(step):
            with section:
                pass
            sections.step_ended(step)

        with raising_signals() as interrupt, monkeypatch.context() as patched:
            patched.setattr(gpu, method, lambda *_: interrupt())
            with pytest.raises(Interruption):
                train(0)
        gpu.done = 9
        train(1)
        assert published.of(GpuTimingUnavailable) == []
        assert published.of(KernelWindow)[-1].names == ["forward"]

    @pytest.mark.torch
    def test_no_device(self):
        """Without a CUDA device torch's timer raises an error that says so."""
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device here")
        with pytest.raises(RuntimeError, match="no CUDA device"):
            cuda_event_timer()


class TestFork:
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_events_of_the_parent(self):
        """A forked child destroys no event of its parent's, which would end it, not even at its own end."""
        script = """
            import os, sys
            import trackside
            from trackside.instruments import section, section_windows
            from trackside.instruments._gpu_sections import GpuSections
            from trackside.instruments.torch import CudaEventTimer

            class Event:
                def __init__(self, enable_timing):
                    self.pid = os.getpid()
                def record(self):
                    pass
                def query(self):
                    return False
                def __del__(self):
                    if os.getpid() != self.pid:
                        os.abort()

            class Cuda:
                Event = Event
                is_current_stream_capturing = staticmethod(lambda: False)

            trackside.subscribe(lambda _: None)
            section_windows._sections._gpu = GpuSections(section_windows.default_bus, lambda: CudaEventTimer(Cuda))
            with section("forward", gpu=True):
                pass
            with section("fork", gpu=True):
                child = os.fork()
            if not child:
                sys.exit(7)
            print(os.waitpid(child, 0)[1])
        """
        command = [sys.executable, "-c", textwrap.dedent(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        assert os.waitstatus_to_exitcode(int(done.stdout)) == 7


@pytest.mark.gpu
class TestCudaEvents:
    def test_long_and_short(self):
        """On a real device, ten times the work takes several times as long, and no call waits for the GPU."""
        import torch

        timer = cuda_event_timer()
        work = torch.randn(4096, 4096, device="cuda")
        torch.cuda.synchronize()
        marks = []
        for repeats in (5, 5, 50):
            mark = timer.begin()
            for _ in range(repeats):
                work @ work
            timer.end(mark)
            marks.append(mark)
        assert timer.elapsed_ns(marks[-1]) is None
        torch.cuda.synchronize()
        _, short_ns, long_ns = (timer.elapsed_ns(mark) for mark in marks)
        assert 3 < long_ns / short_ns < 30

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_in_a_forked_child(self):
        """A child that was forked beside events on the GPU ends as any other, and so do loaders' workers."""
        script = """
            import os, sys, torch, trackside
            from trackside.instruments import section, training_iteration
            trackside.subscribe(print)
            factor = torch.randn(512, 512, device="cuda")
            for step in range(3):
                with training_iteration(step), section("forward", gpu=True):
                    factor @ factor
            data = torch.utils.data.TensorDataset(torch.randn(64, 2))
            print(sum(1 for _ in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2)), file=sys.stderr)
            child = os.fork()
            if not child:
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
        """
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)]
        for pure in ("0", "1"):  # with kernels, and with events
            environment = {**os.environ, "TRACKSIDE_PURE_PYTHON": pure}
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
            assert (done.returncode, done.stderr.split()) == (0, ["8", "7"])
