"""Kernels through a stand-in for CUPTI, by the compiled core; and through CUPTI itself, where there is a GPU."""

from __future__ import annotations

import ctypes
import os
import re
import statistics
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupti_standin import KERNEL, MEMCPY, Standin, compiled
from implementations import needs_core
from interrupting import Interruption, raising_signals
from trackside.bus import Bus
from trackside.cli import main
from trackside.events import GpuTimingUnavailable, KernelWindow, SectionWindow
from trackside.handlers import Capture, feed, replay
from trackside.handlers.models.scores import ScoreAggregator
from trackside.instruments import cupti as module
from trackside.instruments import section_windows
from trackside.instruments._section import SectionTimes
from trackside.instruments.cupti import KernelRecorder, kernel_recorder
from trackside.instruments.section_windows import Sections
from waiting import until

BUFFERS = 8


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    # Under a name of its own, so that nothing else in this process takes it for CUPTI.
    return compiled(tmp_path_factory.mktemp("lib"), "libcupti-standin.so")


@pytest.fixture
def cupti(library):
    """Give the stand-in; what it refuses in a test it does not in the next."""
    standin = Standin(library)
    yield standin
    standin.number("refuses").value = 0


@pytest.fixture
def make_recorder(cupti):
    """Make recorders over the stand-in, without a thread."""
    made = []

    def make(**settings):
        made.append(KernelRecorder((cupti.path,), **{"flush_interval_s": 0, **settings}))
        return made[-1]

    yield make
    for recorder in made:
        recorder.close()


@pytest.fixture
def recorder(make_recorder):
    return make_recorder()


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
        kernels, lost = record({"name": "gemm"}, {"name": "gemm", "grid": 9}, {"name": "add", "ns": 7})
        assert [name for name, _ in kernels] == [
            "add_blk_128_1_1_grid_4_2_1",
            "gemm_blk_128_1_1_grid_4_2_1",
            "gemm_blk_128_1_1_grid_9_2_1",
        ]
        assert lost == 0

    def test_durations(self, record):
        """Of 100, 200 and 600 ns the median is 200, the mean 300 and the deviation that of the population."""
        ((_, summary),), _ = record({"ns": 100}, {"ns": 200}, {"ns": 600})
        assert summary[:6] == (3, 3, 100, 600, 200, 300)
        assert summary.std_ns == pytest.approx(((200**2 + 100**2 + 300**2) / 3) ** 0.5)

    def test_even_number(self, record):
        """Of an even number of launches the median is the mean of the two in the middle."""
        ((_, summary),), _ = record({"ns": 400}, {"ns": 100}, {"ns": 200}, {"ns": 1000})
        assert summary.median_ns == 300

    @given(st.lists(st.integers(1, 10**6), min_size=1, max_size=300), st.integers(1, 12))
    def test_as_sections(self, library, times, repeats):
        """Any number of launches has the statistics that a section with these times has."""
        standin, recorder = Standin(library), KernelRecorder((str(library),), flush_interval_s=0)
        expected = SectionTimes("gemm", 1)
        try:
            recorder.begin()
            for ns in times * repeats:
                assert standin.launch(ns=ns)
                expected.add(ns)
                expected.fold()
            recorder.end()
            recorder.flush()
            ((_, summary),), lost = recorder.drain()
        finally:
            recorder.close()
        assert summary == pytest.approx(expected.close())
        assert lost == 0
        if len(times) * repeats <= 1024:
            assert summary.median_ns == statistics.median(times * repeats)

    def test_many_names(self, record):
        """A thousand kernels are kept apart."""
        kernels, _ = record(*({"name": f"k{number}", "ns": number + 1} for number in range(1000)))
        assert {name.split("_")[0]: summary.max_ns for name, summary in kernels} == {
            f"k{number}": number + 1 for number in range(1000)
        }

    def test_more_than_the_buffers_hold(self, record):
        """Buffers are used again: a hundred thousand launches, of which eight hold a third, are all counted."""
        ((_, summary),), lost = record({"count": 100_000})
        assert (summary.timed, lost) == (100_000, 0)

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
        assert not cupti.launch()
        recorder.begin()
        recorder.end()
        assert not cupti.launch()
        recorder.flush()
        assert recorder.drain() == ([], 0)

    def test_nested(self, cupti, recorder):
        """Sections within each other switch CUPTI on and off once."""
        recorder.begin()
        recorder.begin()
        assert cupti.number("is_enabled").value == 1
        recorder.end()
        assert cupti.number("is_enabled").value == 1
        recorder.end()
        assert cupti.number("is_enabled").value == 0

    def test_end_too_many(self, cupti, recorder):
        """An end without a beginning changes nothing."""
        recorder.end()
        recorder.begin()
        assert cupti.number("is_enabled").value == 1


class TestLosses:
    @pytest.mark.parametrize("times", [{"start": 0}, {"ns": 0}])
    def test_without_times(self, record, times):
        """A record without a start or a duration is a loss."""
        assert record(times) == ([], 1)

    def test_too_many_buffers(self, cupti, recorder):
        """While CUPTI has all buffers nothing is recorded, and each entry, as each launch, is counted as lost."""
        recorder.begin()
        taken = [cupti.take_buffer() for _ in range(BUFFERS)]
        assert all(taken)
        assert not cupti.take_buffer()
        assert cupti.launch(count=5) == 0
        recorder.end()
        assert recorder.begin() is False
        cupti.return_buffer(taken[0])
        assert recorder.begin() is True
        recorder.end()
        recorder.flush()
        assert recorder.drain() == ([], 6)
        for buffer in taken[1:]:
            cupti.return_buffer(buffer)

    def test_of_another_profiler(self, cupti, recorder):
        """A buffer that CUPTI got from another profiler is neither read nor freed."""
        theirs = ctypes.create_string_buffer(bytes([KERNEL]), 208)
        cupti.return_buffer(ctypes.addressof(theirs), 208)
        assert recorder.drain() == ([], 0)

    def test_too_many_names(self, record, monkeypatch):
        """Beyond 8,192 kernels launches are counted as lost."""
        monkeypatch.setattr(module, "MAX_NAMES_BYTES", 10**6)
        kernels, lost = record(*({"name": f"k{number}"} for number in range(8195)))
        assert (len(kernels), lost) == (8192, 3)

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
    @needs_core
    def test_no_library(self):
        """Without CUPTI that is the reason, and the next one may look for it."""
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"there is no CUPTI: .*libcupti\.so\.none"):
                KernelRecorder(("libcupti.so.none",))

    @needs_core
    def test_other_library(self):
        """A library without CUPTI's functions is none."""
        with pytest.raises(RuntimeError, match="CUPTI has no cuptiActivityRegisterCallbacks"):
            KernelRecorder(("libc.so.6",))

    def test_pure_python(self, monkeypatch):
        """Without the compiled core there is nothing to record kernels with."""
        monkeypatch.setattr(module, "native", None)
        with pytest.raises(RuntimeError, match="the compiled core, which is not in use"):
            kernel_recorder()

    def test_refused(self, cupti, make_recorder):
        """An error of CUPTI's is quoted."""
        cupti.number("refuses").value = 39
        with pytest.raises(RuntimeError, match=r"^CUPTI: no \(39\)$"):
            make_recorder()

    def test_interrupted(self, cupti, make_recorder, monkeypatch):
        """An exception of a signal handler while CUPTI is taken comes out as it is, and the next one may have CUPTI."""
        with raising_signals() as interrupt, monkeypatch.context() as patch:
            patch.setattr(module, "watch_profiler", lambda *_: interrupt())
            with pytest.raises(Interruption):
                make_recorder()
        make_recorder()

    def test_one_in_a_process(self, cupti, recorder):
        """A process has one recorder at a time."""
        with pytest.raises(RuntimeError, match="another part of this process"):
            KernelRecorder((cupti.path,))

    def test_after_another(self, cupti, make_recorder):
        """After one was closed CUPTI is free for the next, which gets nothing of it."""
        first = make_recorder()
        first.begin()
        cupti.launch()
        first.close()
        first.close()
        assert cupti.number("is_enabled").value == 0
        assert make_recorder().drain() == ([], 0)

    def test_silence(self, recorder):
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

    def test_flushed_by_a_thread(self, cupti, make_recorder):
        """A thread of the recorder takes finished kernels from CUPTI."""
        recorder = make_recorder(flush_interval_s=0.001)
        recorder.begin()
        cupti.launch()
        found = []
        until(lambda: found.extend(recorder.drain()[0]) or found)
        assert [summary.timed for _, summary in found] == [1]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_fork(self, cupti, recorder, monkeypatch):
        """A forked child leaves its parent's CUPTI alone."""
        recorder.begin()
        monkeypatch.setattr(recorder, "_pid", os.getpid() + 1)
        recorder.close()
        assert cupti.number("is_enabled").value == 1
        recorder.end()
        module._taken.release()  # a child never does this: it does not use CUPTI


class FakeProfile:
    """The part of ``torch.autograd.profiler.profile`` that prepares and ends a recording."""

    def __init__(self, cupti, activity="CUDA"):
        self.cupti = cupti
        self.kineto_activities = [types.SimpleNamespace(name=activity)]

    def _prepare_trace(self):
        self.cupti.library.taken_by_another()

    def __exit__(self, *_):
        return None


class TestTorchProfiler:
    @pytest.fixture
    def profile(self, cupti, monkeypatch):
        """Give the class that stands in for torch's, where torch would have it."""
        made = type("profile", (FakeProfile,), {"_prepare_trace": FakeProfile._prepare_trace})
        monkeypatch.setitem(sys.modules, "torch.autograd.profiler", types.SimpleNamespace(profile=made))
        return made

    def test_takes_turns(self, cupti, profile, make_recorder):
        """Torch's profiler gets CUPTI while it records; before and after that kernels are recorded, each once."""
        recorder = make_recorder()
        recorder.begin()
        cupti.launch("before", count=2)
        one = profile(cupti)
        one._prepare_trace()
        assert cupti.number("is_enabled").value == 0
        recorder.end()  # of a section that was open
        assert recorder.begin() is False
        flushes = cupti.number("flushes").value
        recorder.flush()
        assert cupti.number("flushes").value == flushes
        one.__exit__(None, None, None)
        assert recorder.begin() is True
        cupti.launch("after", count=3)
        recorder.end()
        recorder.flush()
        kernels, lost = recorder.drain()
        assert {name.split("_")[0]: summary.timed for name, summary in kernels} == {"before": 2, "after": 3}
        assert lost == 1

    def test_without_the_gpu(self, cupti, profile, make_recorder):
        """A profiler that records the CPU alone changes nothing."""
        recorder = make_recorder()
        before = cupti.number("registrations").value
        one = profile(cupti, "CPU")
        one._prepare_trace()
        assert recorder.begin() is True
        one.__exit__(None, None, None)
        assert cupti.number("registrations").value == before
        recorder.end()

    def test_cannot_be_taken_back(self, cupti, profile, make_recorder):
        """If CUPTI cannot be had again the program does not notice, and what is missed is counted."""
        recorder = make_recorder()
        one = profile(cupti)
        one._prepare_trace()
        cupti.number("refuses").value = 39
        one.__exit__(None, None, None)
        assert recorder.begin() is False
        assert recorder.drain() == ([], 1)

    def test_as_it_was(self, profile, make_recorder):
        """After the recorder was closed torch's profiler is as it was."""
        before = profile._prepare_trace, profile.__exit__
        recorder = make_recorder()
        assert profile._prepare_trace is not before[0]
        recorder.close()
        assert (profile._prepare_trace, profile.__exit__) == before


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
def make_sections(published, make_recorder, monkeypatch):
    """Make sections over the stand-in, and a fake timer unless the test wants none."""
    made = []

    def make(*, timer=FakeTimer):
        bus = Bus(strict=True)
        bus.subscribe(published)
        monkeypatch.setattr(section_windows, "cuda_event_timer", timer)
        sections = Sections(bus, find_kernels=make_recorder)
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

    def test_refused(self, make_sections, cupti, published):
        """If CUPTI cannot be had the sections' stretches are timed instead, and one event says so."""
        cupti.number("refuses").value = 39
        sections = make_sections()
        for step in range(2):
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        (event,) = published.of(GpuTimingUnavailable)
        assert (event.reason, bool(event.instead)) == ("CUPTI: no (39)", True)
        assert [window.names for window in published.of(KernelWindow)] == [["forward"]] * 2

    def test_neither(self, make_sections, cupti, published):
        """If neither is available one event gives both reasons, and the sections are timed without."""
        cupti.number("refuses").value = 39
        sections = make_sections(timer=no_timer)
        for step in range(2):
            with sections.section("forward", gpu=True):
                pass
            sections.step_ended(step)
        (event,) = published.of(GpuTimingUnavailable)
        assert (event.reason, event.instead) == ("CUPTI: no (39); torch finds no CUDA device", "")
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
        assert cupti.number("is_enabled").value == 0

    def test_own_time_is_left_out(self, make_sections, published, ticking, monkeypatch):
        """The time for switching CUPTI on and off is not counted in the section."""
        begin, end = KernelRecorder.begin, KernelRecorder.end
        monkeypatch.setattr(KernelRecorder, "begin", lambda self: (ticking.advance(500e-9), begin(self))[1])
        monkeypatch.setattr(KernelRecorder, "end", lambda self: (ticking.advance(500e-9), end(self))[1])
        sections = make_sections()
        with sections.section("forward", gpu=True):
            ticking.now_ns += 7
        sections.step_ended(0)
        assert published.of(SectionWindow)[0].max_ns == [7.0]


RANKS = 16


class TestWholeWay:
    @pytest.mark.integration
    def test_from_records_to_a_report(self, tmp_path, capsys):
        """Records that CUPTI makes on 16 ranks become GPU scores in the report; rank 5 is the slow one."""
        library = compiled(tmp_path, "libcupti.so.13")

        def start(rank):
            command = [
                sys.executable,
                Path(__file__).parents[1] / "support" / "cupti_rank.py",
                library,
                tmp_path / "run",
                rank,
            ]
            of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "TORCHELASTIC_RUN_ID": "sixteen"}
            environment = {**os.environ, **{name: str(value) for name, value in of_rank.items()}}
            return subprocess.Popen(list(map(str, command)), env=environment)

        for first in range(0, RANKS, 2):
            pair = [start(rank) for rank in (first, first + 1)]
            assert [process.wait(60) for process in pair] == [0, 0]

        (aggregator,) = feed(replay(tmp_path / "run"), ScoreAggregator())
        (window,) = aggregator.result().windows
        assert window.ranks == list(range(RANKS))
        # Of 60 products of 200 µs and 20 copies of 50 µs: (0.5 * 60 * 200 + 20 * 50) / (60 * 200 + 20 * 50)
        assert window.relative.gpu == pytest.approx([7 / 13 if rank == 5 else 1.0 for rank in range(RANKS)])
        assert [rank for rank, score in zip(window.ranks, window.relative.gpu, strict=True) if score < 0.75] == [5]
        assert main(["report", str(tmp_path / "run")]) == 0
        printed = capsys.readouterr().out
        assert "16 ranks on 1 host" in printed
        assert re.search(r"^ +5  \S+ +0\.54 ", printed, re.MULTILINE), printed


@pytest.mark.gpu
class TestRealKernels:
    @pytest.fixture
    def recorder(self):
        """Give a recorder over CUPTI itself."""
        try:
            made = KernelRecorder(flush_interval_s=0)
        except RuntimeError as error:
            pytest.skip(str(error))
        yield made
        made.close()

    @pytest.fixture
    def work(self):
        """Give a function that multiplies matrices, once."""
        import torch

        factor = torch.randn(8192, 8192, device="cuda")
        _ = factor @ factor
        torch.cuda.synchronize()
        return lambda: factor @ factor

    @staticmethod
    def recorded(recorder, run, times):
        """Return the kernels of *times* runs, and how many were lost."""
        import torch

        assert recorder.begin()
        for _ in range(times):
            run()
        recorder.end()
        torch.cuda.synchronize()
        recorder.flush()
        return recorder.drain()

    def test_beside_cuda_events(self, recorder, work):
        """The kernels of a product take as long as CUDA events around it measure, within a twentieth."""
        import torch

        from trackside.instruments.torch import cuda_event_timer

        timer = cuda_event_timer()
        recorder.begin()
        mark = timer.begin()
        for _ in range(10):
            work()
        timer.end(mark)
        recorder.end()
        torch.cuda.synchronize()
        recorder.flush()
        kernels, lost = recorder.drain()
        assert lost == 0
        in_kernels_ns = sum(summary.mean_ns * summary.timed for _, summary in kernels)
        assert in_kernels_ns == pytest.approx(timer.elapsed_ns(mark), rel=0.05)

    @pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
    def test_beside_torch_profiler(self, recorder):
        """Of a training step as many kernels are recorded as torch's profiler sees, before it recorded and after."""
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU(), torch.nn.Linear(512, 512)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        batch = torch.randn(256, 512, device="cuda")

        def step():
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        for _ in range(3):
            step()
        before, lost = self.recorded(recorder, step, 20)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(20):
                step()
            torch.cuda.synchronize()
            assert not recorder.begin()
        theirs = sum(
            event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Mem", "Activity"))
            for event in profiler.events()
        )
        after, lost_after = self.recorded(recorder, step, 20)
        assert (lost, lost_after) == (0, 1)
        for ours in (before, after):
            assert sum(summary.timed for _, summary in ours) == theirs > 100

    def test_graph(self, recorder):
        """Each kernel of a CUDA graph is recorded at each replay."""
        import torch

        factor = torch.randn(2048, 2048, device="cuda")  # a small product takes two kernels
        product = torch.empty_like(factor)
        torch.mm(factor, factor, out=product)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.mm(factor, factor, out=product)
            product.add_(1.0)
            product.mul_(2.0)
        kernels, lost = self.recorded(recorder, graph.replay, 5)
        assert ([summary.timed for _, summary in kernels], lost) == ([5, 5, 5], 0)

    def test_more_than_the_buffers_hold(self, recorder):
        """A hundred thousand launches at once are all recorded, or counted as lost."""
        import torch

        cell = torch.zeros(16, device="cuda")
        cell.add_(1)
        ((_, summary),), lost = self.recorded(recorder, lambda: cell.add_(1), 100_000)
        assert summary.timed + lost == 100_000
        assert summary.timed > 50_000
