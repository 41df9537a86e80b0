"""Kernels through CUPTI, with a fake one: it keeps launched kernels until it is flushed."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import types

import pytest

from trackside.bus import Bus
from trackside.events import GpuTimingUnavailable, KernelWindow, SectionWindow
from trackside.handlers import Capture
from trackside.instruments import cupti as module
from trackside.instruments import section_windows
from trackside.instruments.cupti import KernelRecorder, kernel_recorder
from trackside.instruments.section_windows import Sections

KERNEL, MEMCPY = 10, 1
TAKEN = 39


class FakeError(Exception):
    """An error of CUPTI's, with its number."""

    def __init__(self, status):
        super().__init__(f"error {status}")
        self.status = status


class FakeCupti:
    """Behaves as the used part of ``cupti.cupti``: records go into buffers, buffers out when flushed."""

    ActivityKind = types.SimpleNamespace(CONCURRENT_KERNEL=KERNEL)
    Result = types.SimpleNamespace(ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED=TAKEN)
    cuptiError = FakeError

    def __init__(self):
        self.subscribed = []
        self.enabled = set()
        self.buffer = None
        self.dropped = 0
        self.calls = []
        self.taken = False

    def subscribe(self, callback, userdata):
        """Accept one subscriber."""
        if self.taken or self.subscribed:
            raise FakeError(TAKEN)
        self.subscribed.append(callback)
        return 77

    def unsubscribe(self, subscriber):
        """Release it."""
        assert subscriber == 77
        self.subscribed.clear()

    def activity_register_callbacks(self, requested, completed):
        """Keep the functions that give buffers and receive them."""
        assert self.subscribed
        self.requested, self.completed = requested, completed

    def activity_enable(self, kind):
        """Record this kind."""
        self.enabled.add(kind)
        self.calls.append("enable")

    def activity_disable(self, kind):
        """Record it no more."""
        self.enabled.remove(kind)
        self.calls.append("disable")

    def launch(self, name="gemm", ns=100, *, kind=KERNEL, start=1000, block=(128, 1, 1), grid=(4, 2, 1), count=1):
        """Launch a kernel *count* times; it is recorded if that is on."""
        if KERNEL not in self.enabled:
            return
        if self.buffer is None:
            assert self.requested() == (module.BUFFER_BYTES, 0)
            self.buffer = []
        shape = dict(zip(("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z"), (*block, *grid), strict=True))
        record = types.SimpleNamespace(kind=kind, name=name, start=start, end=start and start + ns, **shape)
        self.buffer += [record] * count

    def activity_flush_all(self, flag):
        """Hand over the buffers."""
        assert flag == 0, "a forced flush may hand over what is not finished"
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            self.completed(buffer)

    def activity_get_num_dropped_records(self, context, stream, pointer):
        """Return how many records were dropped since the last call."""
        assert (context, stream) == (0, 0)
        ctypes.c_size_t.from_address(pointer).value, self.dropped = self.dropped, 0


@pytest.fixture
def cupti():
    return FakeCupti()


@pytest.fixture
def recorder(cupti):
    made = KernelRecorder(cupti, flush_interval_s=0)
    yield made
    made.close()


@pytest.fixture
def record(cupti, recorder):
    """Record the kernels that *launch* launches, and return the statistics."""

    def run(*launches):
        recorder.begin()
        for launch in launches:
            cupti.launch(**launch)
        recorder.end()
        recorder.flush()
        return recorder.drain()

    return run


class TestStatistics:
    def test_by_name_and_shape(self, record):
        """A kernel's name and launch shape make its key; another shape is another kernel."""
        kernels, lost = record({"name": "gemm"}, {"name": "gemm", "grid": (9, 1, 1)}, {"name": "add", "ns": 7})
        assert [name for name, _ in kernels] == [
            "add_blk_128_1_1_grid_4_2_1",
            "gemm_blk_128_1_1_grid_4_2_1",
            "gemm_blk_128_1_1_grid_9_1_1",
        ]
        assert lost == 0

    def test_durations(self, record):
        """Of 100, 200 and 600 ns the median is 200, the mean 300 and the deviation that of the population."""
        ((_, summary),), _ = record({"ns": 100}, {"ns": 200}, {"ns": 600})
        assert (summary.timed, summary.min_ns, summary.max_ns, summary.median_ns, summary.mean_ns) == (
            3,
            100,
            600,
            200,
            300,
        )
        assert summary.std_ns == pytest.approx(((200**2 + 100**2 + 300**2) / 3) ** 0.5)

    def test_more_than_a_chunk(self, record):
        """Any number of launches are all counted."""
        ((_, summary),), lost = record({"count": 5000})
        assert (summary.timed, lost) == (5000, 0)

    def test_other_activities(self, record):
        """Other records of CUPTI are not kernels."""
        assert record({"kind": MEMCPY}) == ([], 0)

    def test_each_window_anew(self, record):
        """A window's kernels are not in the next one."""
        record({"count": 3})
        ((_, summary),), _ = record({})
        assert summary.timed == 1


class TestRecording:
    def test_only_within(self, cupti, recorder):
        """Kernels outside of the sections are not recorded."""
        cupti.launch()
        recorder.begin()
        recorder.end()
        cupti.launch()
        recorder.flush()
        assert recorder.drain() == ([], 0)

    def test_nested(self, cupti, recorder):
        """Sections within each other switch CUPTI on and off once."""
        recorder.begin()
        recorder.begin()
        recorder.end()
        assert cupti.enabled == {KERNEL}
        recorder.end()
        assert cupti.calls == ["enable", "disable"]

    def test_end_too_many(self, cupti, recorder):
        """An end without a beginning changes nothing."""
        recorder.end()
        recorder.begin()
        assert cupti.enabled == {KERNEL}


class TestLosses:
    def test_without_times(self, record):
        """A record without a start is a loss, not a duration."""
        assert record({"start": 0}) == ([], 1)

    def test_dropped_by_cupti(self, cupti, recorder):
        """Kernels that CUPTI reports as dropped are counted, once."""
        cupti.dropped = 5
        recorder.flush()
        recorder.flush()
        assert recorder.drain() == ([], 5)

    def test_too_many_buffers(self, cupti, recorder):
        """While CUPTI holds the maximum of buffers, no further kernel is recorded, and each is counted as lost."""
        for _ in range(module.MAX_BUFFERS):
            cupti.requested()
        assert recorder.begin() is False
        assert cupti.enabled == set()
        cupti.completed([])
        assert recorder.begin() is True
        assert recorder.drain()[1] == 1

    def test_too_many_names(self, record, monkeypatch):
        """Beyond the maximum of names, launches are counted as lost."""
        monkeypatch.setattr(module, "MAX_KERNELS", 2)
        kernels, lost = record(*({"name": f"k{number}"} for number in range(5)))
        assert (len(kernels), lost) == (2, 3)

    def test_more_than_a_row_holds(self, record, monkeypatch):
        """Of more kernels than an event can hold, those that took the longest are in it."""
        monkeypatch.setattr(module, "MAX_NAMES_BYTES", 60)
        kernels, lost = record({"name": "a", "ns": 1, "count": 4}, {"name": "b", "ns": 9}, {"name": "c", "ns": 8})
        assert ([name[0] for name, _ in kernels], lost) == (["b", "c"], 4)

    def test_long_names(self, record):
        """Long names are cut, and still distinct."""
        kernels, _ = record({"name": "x" * 4000}, {"name": "x" * 4001})
        assert len({name for name, _ in kernels}) == 2
        assert max(len(name) for name, _ in kernels) < 300


class TestLife:
    def test_taken(self, cupti):
        """If another profiler has subscribed, that is the reason, and its callbacks stay."""
        cupti.taken = True
        with pytest.raises(RuntimeError, match="another profiler has taken CUPTI"):
            KernelRecorder(cupti)
        assert not hasattr(cupti, "completed")

    def test_other_error(self, cupti, monkeypatch):
        """Any other error of CUPTI's is quoted."""
        monkeypatch.setattr(cupti, "activity_register_callbacks", lambda *_: (_ for _ in ()).throw(FakeError(15)))
        with pytest.raises(RuntimeError, match="CUPTI: error 15"):
            KernelRecorder(cupti)

    def test_one_in_a_process(self, recorder):
        """A process has one recorder at a time."""
        with pytest.raises(RuntimeError, match="another part of this process"):
            KernelRecorder(FakeCupti())

    def test_after_another(self, cupti, recorder):
        """When one is closed CUPTI is free for the next."""
        recorder.begin()
        recorder.close()
        recorder.close()
        assert (cupti.enabled, cupti.subscribed) == (set(), [])
        KernelRecorder(cupti, flush_interval_s=0).close()

    def test_silence(self, cupti, recorder):
        """Sections that are recorded window after window without a kernel mean that CUPTI stopped working."""
        for _ in range(module.QUIET_WINDOWS - 1):
            recorder.begin()
            recorder.end()
            recorder.drain()
        recorder.drain()  # a window without sections proves nothing
        recorder.begin()
        recorder.end()
        with pytest.raises(RuntimeError, match="recorded no kernel in 3 windows"):
            recorder.drain()

    def test_flushed_by_a_thread(self, cupti):
        """A thread of the recorder flushes finished kernels from CUPTI."""
        recorder = KernelRecorder(cupti, flush_interval_s=0.001)
        try:
            recorder.begin()
            cupti.launch()
            for _ in range(3000):
                found = recorder.drain()[0]
                if found:
                    break
                threading.Event().wait(0.01)
            assert [summary.timed for _, summary in found] == [1]
        finally:
            recorder.close()

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_fork(self, cupti, recorder, monkeypatch):
        """A forked child leaves its parent's CUPTI alone."""
        monkeypatch.setattr(recorder, "_pid", os.getpid() + 1)
        recorder.close()
        module._taken.release()  # a child never does this: it does not use CUPTI
        assert cupti.subscribed

    def test_not_installed(self, monkeypatch):
        """Without the library that is the reason."""
        monkeypatch.setitem(sys.modules, "cupti", None)
        with pytest.raises(RuntimeError, match="cupti-python"):
            kernel_recorder()


class FakeTimer:
    """A timer of stretches of the stream: each takes 5 ns."""

    def begin(self):
        """Mark a beginning."""
        return ["mark"]

    def end(self, mark):
        """Mark an end."""

    def elapsed_ns(self, mark):
        """Return the duration."""
        return 5


@pytest.fixture
def published():
    return Capture()


@pytest.fixture
def make_sections(published, cupti, monkeypatch):
    """Make sections over the fake CUPTI, and a fake timer unless the test wants none."""
    made = []

    def make(*, timer=FakeTimer):
        bus = Bus(strict=True)
        bus.subscribe(published)
        monkeypatch.setattr(section_windows, "cuda_event_timer", timer)
        sections = Sections(bus, find_kernels=lambda: KernelRecorder(cupti, flush_interval_s=0))
        sections.configure(window_steps=1)
        made.append((sections, bus))
        return sections

    yield make
    for sections, bus in made:
        sections.close()
        bus.close()


def no_timer():
    raise RuntimeError("torch finds no CUDA device")


class TestSections:
    def test_kernels(self, make_sections, cupti, published):
        """The kernels that are launched in a section with GPU times make the window's `KernelWindow`."""
        sections = make_sections()
        with sections.section("forward", gpu=True):
            cupti.launch(count=3)
        with sections.section("other"):
            cupti.launch("not asked for")
        sections.flush_gpu()
        sections.step_ended(0)
        (event,) = published.of(KernelWindow)
        assert (event.names, event.counts, event.window) == (["gemm_blk_128_1_1_grid_4_2_1"], [3], 0)
        assert published.of(GpuTimingUnavailable) == []

    def test_skipped_entries(self, make_sections, cupti, published):
        """An entry that a profiling interval skips is not recorded on the GPU either."""
        sections = make_sections()
        sections.configure(profiling_interval=2, window_steps=4)
        for step in range(4):
            with sections.section("forward", gpu=True):
                cupti.launch()
            if step == 3:
                sections.flush_gpu()
            sections.step_ended(step)
        assert [event.counts for event in published.of(KernelWindow)] == [[2]]

    def test_graph_replayed(self, make_sections, cupti, published):
        """Replays of a CUDA graph are launches like any other: CUPTI records them one by one."""
        sections = make_sections()
        for _ in range(4):
            with sections.section("replay", gpu=True):
                cupti.launch(count=5)
        sections.flush_gpu()
        sections.step_ended(0)
        assert [event.counts for event in published.of(KernelWindow)] == [[20]]

    def test_taken(self, make_sections, cupti, published):
        """If CUPTI is in use by others, the sections' stretches are timed instead, and one event says so."""
        cupti.taken = True
        sections = make_sections()
        for step in range(2):
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        (event,) = published.of(GpuTimingUnavailable)
        assert (event.reason, bool(event.instead)) == ("another profiler has taken CUPTI", True)
        assert [window.names for window in published.of(KernelWindow)] == [["forward"]] * 2

    def test_neither(self, make_sections, cupti, published):
        """If neither is available one event gives both reasons, and the sections are timed without."""
        cupti.taken = True
        sections = make_sections(timer=no_timer)
        for step in range(2):
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        (event,) = published.of(GpuTimingUnavailable)
        assert event.reason == "another profiler has taken CUPTI; torch finds no CUDA device"
        assert event.instead == ""
        assert [window.counts for window in published.of(SectionWindow)] == [[1], [1]]

    def test_lost_later(self, make_sections, cupti, published):
        """If CUPTI stops working while training, the stretches are timed from then on."""
        sections = make_sections()
        for step in range(5):
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        (event,) = published.of(GpuTimingUnavailable)
        assert event.reason.startswith("CUPTI recorded no kernel")
        assert [window.window for window in published.of(KernelWindow)] == [3, 4]
        assert cupti.subscribed == []

    def test_own_time_is_left_out(self, make_sections, cupti, published, ticking, monkeypatch):
        """The time for switching CUPTI on and off is not counted in the section."""
        enable, disable = cupti.activity_enable, cupti.activity_disable
        monkeypatch.setattr(cupti, "activity_enable", lambda kind: (ticking.advance(500e-9), enable(kind)))
        monkeypatch.setattr(cupti, "activity_disable", lambda kind: (ticking.advance(500e-9), disable(kind)))
        sections = make_sections()
        with sections.section("forward", gpu=True):
            ticking.now_ns += 7
        sections.step_ended(0)
        assert published.of(SectionWindow)[0].max_ns == [7.0]


@pytest.mark.gpu
class TestRealKernels:
    def test_beside_cuda_events(self, published):
        """
        On a real device the kernels of a product take as long as CUDA events around it measure, within a twentieth.
        """
        import torch

        from trackside.instruments.torch import cuda_event_timer

        try:
            recorder = kernel_recorder()
        except RuntimeError as error:
            pytest.skip(str(error))
        try:
            work = torch.randn(8192, 8192, device="cuda")
            work @ work
            torch.cuda.synchronize()
            timer = cuda_event_timer()
            recorder.begin()
            mark = timer.begin()
            for _ in range(10):
                work @ work
            timer.end(mark)
            recorder.end()
            torch.cuda.synchronize()
            recorder.flush()
            kernels, lost = recorder.drain()
            in_kernels_ns = sum(summary.mean_ns * summary.timed for _, summary in kernels)
            assert lost == 0
            assert in_kernels_ns == pytest.approx(timer.elapsed_ns(mark), rel=0.05)
        finally:
            recorder.close()
