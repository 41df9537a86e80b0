"""NVRx's names: the detector, its reports and when they are due."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.bus import default_bus
from trackside.compat.straggler import CallableId, Detector, Report, Statistic, StragglerId
from trackside.compat.straggler.interval_tracker import ReportIntervalTracker
from trackside.compat.straggler.reporting import ReportGenerator
from trackside.events import ConfigError, GpuTimingUnavailable, SectionWindow
from trackside.handlers import Capture
from trackside.instruments._section import SectionTimes


@pytest.fixture
def detector(fake_clock):
    def begin(**given):
        Detector.initialize(node_name="here", **given)
        return Detector

    yield begin
    Detector.shutdown()


@pytest.fixture
def timed(fake_clock):
    """Time some entries of a section, in ms."""

    def enter(name, *durations):
        for ms in durations:
            with Detector.detection_section(name, profile_cuda=False):
                fake_clock.advance(ms / 1000)

    return enter


class TestLife:
    def test_no_object(self):
        """No objects of the detector's class can be made."""
        with pytest.raises(RuntimeError, match="instantiated"):
            Detector()

    def test_before(self):
        """A section before the start is an error, and names the remedy."""
        with pytest.raises(RuntimeError, match="initialize"):
            Detector.detection_section("a")

    def test_report_before(self):
        """So is a report."""
        with pytest.raises(AssertionError):
            Detector.generate_report()

    def test_twice(self, detector):
        """It cannot be started twice."""
        detector()
        with pytest.raises(AssertionError):
            Detector.initialize()

    def test_shut_down_twice(self, detector, timed):
        """It can be shut down twice, and started again."""
        detector()
        Detector.shutdown()
        Detector.shutdown()
        detector()
        timed("a", 2.0)
        assert Detector.generate_report().local_section_summaries["a"][Statistic.NUM] == 1


class TestSections:
    def test_summary(self, detector, timed):
        """A report has this rank's statistics, in ms, with the one median and deviation that trackside has."""
        detector()
        timed("a", 10, 40, 20, 30)
        summary = Detector.generate_report().local_section_summaries["a"]
        assert summary == {
            Statistic.MIN: 10.0,
            Statistic.MAX: 40.0,
            Statistic.MED: 25.0,
            Statistic.AVG: 25.0,
            Statistic.STD: pytest.approx(math.sqrt(125), rel=1e-9),
            Statistic.NUM: 4.0,
        }

    def test_from_report_to_report(self, detector, timed):
        """Each report covers the sections timed since the last one."""
        detector()
        timed("a", 10)
        Detector.generate_report()
        timed("a", 20, 20)
        assert Detector.generate_report().local_section_summaries["a"][Statistic.NUM] == 2

    def test_nothing(self, detector):
        """Two reports without any section raise nothing."""
        detector()
        for _ in range(2):
            assert Detector.generate_report().local_section_summaries == {}

    def test_profiling_interval(self, detector, timed):
        """With an interval of 2, two of four entries are timed."""
        detector(profiling_interval=2)
        timed("a", 10, 20, 30, 40)
        summary = Detector.generate_report().local_section_summaries["a"]
        assert (summary[Statistic.NUM], summary[Statistic.MAX]) == (2, 30.0)

    def test_unnamed(self, detector):
        """A section without a name is called after the line that enters it."""
        detector()
        with Detector.detection_section(profile_cuda=False):
            pass
        (name,) = Detector.generate_report().local_section_summaries
        assert name.startswith("test_straggler.py:")

    def test_no_gpu(self, detector, fake_clock):
        """Without a GPU a section that wants one is timed all the same, and the report names the reason."""
        pytest.importorskip("torch")
        detector()
        with Detector.detection_section("a"):
            fake_clock.advance(5 / 1000)
        report = Detector.generate_report()
        assert report.local_section_summaries["a"][Statistic.NUM] == 1
        assert math.isnan(report.gpu_relative_perf_scores[0])
        assert report.missing[0][0].startswith("gpu: ")

    def test_events(self, detector, timed):
        """Timed sections are published too."""
        captured = Capture()
        with default_bus.subscribe(captured):
            detector()
            timed("a", 10)
            Detector.generate_report()
        assert [event.names for event in captured.of(SectionWindow)] == [["a"]]
        assert captured.of(GpuTimingUnavailable) == []


class FakeKernels:
    """A stand-in for the kernel recorder: each entry that is profiled launches the kernels that a test names."""

    def __init__(self):
        self.launches = {}
        self.times = {}
        self.open = 0

    def begin(self):
        """Record."""
        self.open += 1
        for name, ns in self.launches.items():
            self.times.setdefault(name, SectionTimes(name, 1)).add(ns)
        return True

    def end(self):
        """Record no more."""
        self.open -= 1

    def flush(self):
        """Wait for nothing."""

    def drain(self):
        """Return the statistics."""
        times, self.times = self.times, {}
        return [(name, kept.close()) for name, kept in times.items()], 0

    def close(self):
        """Do nothing."""


class TestKernels:
    @pytest.fixture
    def kernels(self, monkeypatch):
        """Give a GPU whose kernels a test sets."""
        fake = FakeKernels()
        monkeypatch.setattr("trackside.compat.straggler._detector.kernel_recorder", lambda: fake)
        return fake

    def test_summaries(self, detector, fake_clock, kernels):
        """A report has the kernels of its sections, in microseconds, and leaves NCCL's out."""
        detector()
        kernels.launches = {"gemm_blk_1_1_1_grid_1_1_1": 2_000, "ncclDevKernel_AllReduce": 9_000}
        for _ in range(3):
            with Detector.detection_section("step"):
                fake_clock.advance(1 / 1000)
        summaries = Detector.generate_report().local_kernel_summaries
        assert summaries["gemm_blk_1_1_1_grid_1_1_1"][Statistic.MED] == 2.0
        assert summaries["gemm_blk_1_1_1_grid_1_1_1"][Statistic.NUM] == 3
        assert list(summaries) == ["gemm_blk_1_1_1_grid_1_1_1"]

    def test_scores(self, detector, fake_clock, kernels):
        """A GPU that takes twice as long as before has half the individual score; alone its relative one is 1."""
        detector()
        scores = []
        for ns in (1_000, 2_000):
            kernels.launches = {"gemm": ns}
            with Detector.detection_section("step"):
                fake_clock.advance(1 / 1000)
            report = Detector.generate_report()
            scores.append((report.gpu_individual_perf_scores[0], report.gpu_relative_perf_scores[0]))
        assert scores == [(1.0, 1.0), (0.5, 1.0)]

    def test_without_cuda(self, detector, timed, kernels):
        """A section that is not to profile CUDA records no kernel."""
        detector()
        kernels.launches = {"gemm": 1_000}
        timed("step", 1, 1)
        assert Detector.generate_report().local_kernel_summaries == {}

    def test_wrapped(self, detector, kernels):
        """Callables are profiled too, each call from its beginning to its end."""
        detector()
        kernels.launches = {"gemm": 1_000}
        made = Counted()
        Detector.wrap_callables([CallableId(made, "work")])
        made.work()
        assert Detector.generate_report().local_kernel_summaries["gemm"][Statistic.NUM] == 1
        assert kernels.open == 0


class Counted:
    """A class with a method."""

    def work(self):
        """Do nothing."""


class TestScores:
    def test_individual(self, detector, timed):
        """A section that takes twice its best time scores a half by this rank's own past."""
        detector()
        timed("a", 10)
        Detector.generate_report()
        timed("a", 20)
        report = Detector.generate_report()
        assert report.section_individual_perf_scores == {"a": {0: 0.5}}
        assert report.section_relative_perf_scores == {"a": {0: 1.0}}
        assert report.identify_stragglers()["straggler_sections_individual"] == {"a": {StragglerId(0, "here")}}

    @pytest.mark.parametrize(
        ("asked", "there"),
        [
            ("all", (True, True)),
            (["relative_perf_scores"], (True, False)),
            (["individual_perf_scores"], (False, True)),
            ("individual_perf_scores", (False, True)),
            (["relative_perf_scores", "individual_perf_scores"], (True, True)),
            ([], (False, False)),
        ],
    )
    @pytest.mark.parametrize("gather", [True, False])
    def test_kinds(self, detector, timed, asked, there, gather):
        """The requested scores are in the report, and the tables of the others are empty."""
        detector(scores_to_compute=asked, gather_on_rank0=gather)
        timed("a", 10)
        report = Detector.generate_report()
        assert (bool(report.section_relative_perf_scores), bool(report.section_individual_perf_scores)) == there
        assert (bool(report.gpu_relative_perf_scores), bool(report.gpu_individual_perf_scores)) == there
        assert set(report.identify_stragglers()) == {
            "straggler_gpus_relative",
            "straggler_gpus_individual",
            "straggler_sections_relative",
            "straggler_sections_individual",
        }

    @pytest.mark.parametrize(("gather", "expected"), [(True, ["a", "b"]), (False, ["b"])])
    def test_sections_of_earlier_windows(self, detector, timed, gather, expected):
        """A gathered report has every section ever seen, another only those of the window."""
        detector(gather_on_rank0=gather)
        timed("a", 10)
        Detector.generate_report()
        timed("b", 10)
        report = Detector.generate_report()
        assert list(report.section_relative_perf_scores) == expected
        assert math.isnan(report.section_relative_perf_scores.get("a", {0: math.nan})[0])

    def test_missing_is_no_straggler(self):
        """A score that is missing is below no threshold."""
        report = Report({0: math.nan}, {}, {}, {}, {0: "here"}, {}, {}, 0.0, True)
        assert report.identify_stragglers(gpu_rel_threshold=9)["straggler_gpus_relative"] == set()


class Model:
    def forward(self):
        """Do nothing."""


class TestWrapping:
    def test_counts(self, detector):
        """Wrapped functions are timed under their names until they are restored."""
        detector()
        model = Model()
        Detector.wrap_callables([CallableId(model, "forward")], profile_cuda=False)
        model.forward()
        model.forward()
        assert Detector.generate_report().local_section_summaries["Model.forward"][Statistic.NUM] == 2
        Detector.restore_original_callables()
        model.forward()
        assert Detector.generate_report().local_section_summaries == {}

    def test_wrapped_in_two_goes(self, detector):
        """Callables that were wrapped in several calls are all restored."""
        detector()
        first, second = Model(), Model()
        for model in (first, second):
            Detector.wrap_callables([CallableId(model, "forward")], profile_cuda=False)
        Detector.shutdown()
        assert (vars(first), vars(second)) == ({}, {})

    def test_other_arguments(self):
        """The arguments that the peer accepts and does not use are accepted here too."""
        assert str(CallableId(Model(), "forward", arg_filter_fn=print, extra_args_fn=None, ignored_args=())) == (
            "Model.forward"
        )


class TestStatistic:
    def test_text(self):
        """A statistic is printed as its name."""
        assert (str(Statistic.MED), repr(Statistic.MED)) == ("MED", "Statistic.MED")


class TestInterval:
    @pytest.fixture
    def run(self, fake_clock):
        """Count iterations that take the given seconds each; return at which a report was due."""

        def count(interval_s, *steps_s, profiling_interval=1):
            tracker = ReportIntervalTracker(interval_s, profiling_interval=profiling_interval)
            due = []
            for number, step_s in enumerate(steps_s, start=1):
                fake_clock.advance(step_s)
                tracker.iter_increase()
                if tracker.is_interval_elapsed():
                    due.append(number)
            return due, tracker.iter_interval

        return count

    def test_by_the_median(self, run):
        """Eight slow steps of sixteen do not matter, as with the peer: half a second at 1/64 s a step are 32 steps."""
        due, iterations = run(0.5, *[0.25] * 9, *[1 / 64] * 60)
        assert iterations == 32
        assert due == [32, 64]

    def test_none_at_first(self, run):
        """No report is due in the first sixteen iterations, whatever the interval."""
        assert run(0.0, *[1.0] * 20)[0] == [17, 18, 19, 20]

    def test_not_more_often_than_profiled(self, run):
        """Reports are no more frequent than the profiling."""
        assert run(0.0, *[1.0] * 20, profiling_interval=1000)[1] == 1000

    def test_in_the_detector(self, detector, timed):
        """The detector's own report comes with the seventeenth iteration if it is due at once."""
        detector(report_time_interval=0.0)
        got = []
        for _ in range(18):
            timed("a", 1)
            got.append(Detector.generate_report_if_interval_elapsed() is not None)
            assert Detector.is_interval_elapsed() is got[-1]
        assert got == [False] * 16 + [True] * 2


def took(*values):
    """Return the summary of durations."""
    return {
        Statistic.MIN: min(values),
        Statistic.MAX: max(values),
        Statistic.MED: statistics.median(values),
        Statistic.AVG: statistics.fmean(values),
        Statistic.STD: statistics.stdev(values) if len(values) > 1 else float("nan"),
        Statistic.NUM: len(values),
    }


class TestReportGenerator:
    def test_individual(self):
        """A rank that takes twice as long as before has half the score, by kernels and by sections."""
        generator = ReportGenerator(["individual_perf_scores"])
        first = generator.generate_report({"s": took(2.0, 4.0)}, {"k": took(3.0)})
        second = generator.generate_report({"s": took(6.0)}, {"k": took(12.0)})
        assert (first.gpu_individual_perf_scores, first.section_individual_perf_scores) == ({0: 1.0}, {"s": {0: 1.0}})
        assert second.gpu_individual_perf_scores == pytest.approx({0: 0.25})
        assert second.section_individual_perf_scores["s"] == pytest.approx({0: 0.5})

    def test_weights(self):
        """A kernel counts by its share of the time."""
        generator = ReportGenerator("individual_perf_scores")
        generator.generate_report({}, {"a": took(1.0), "b": took(3.0)})
        report = generator.generate_report({}, {"a": took(2.0), "b": took(3.0)})
        # a: 2 us at a half, b: 3 us at one.
        assert report.gpu_individual_perf_scores == pytest.approx({0: (2 * 0.5 + 3 * 1.0) / 5})

    def test_summaries(self):
        """The given values are in the report, in its units."""
        report = ReportGenerator("relative_perf_scores").generate_report({"s": took(2.0, 4.0)}, {"k": took(3.0)})
        assert report.local_section_summaries["s"][Statistic.MED] == pytest.approx(3.0)
        assert report.local_kernel_summaries["k"][Statistic.MAX] == pytest.approx(3.0)

    def test_numbers(self):
        """Names are numbered in the order of their first use, kernels and sections separately."""
        generator = ReportGenerator(["relative_perf_scores"])
        generator.generate_report({"s0": took(1.0)}, {"k0": took(1.0), "k1": took(1.0)})
        generator.generate_report({"s1": took(1.0), "s0": took(1.0)}, {"k2": took(1.0), "ncclDevKernel": took(1.0)})
        mapper = generator.name_mapper
        assert [mapper.get_kernel_id(f"k{number}") for number in range(3)] == [0, 1, 2]
        assert (mapper.kernel_counter, mapper.section_counter) == (3, 2)
        assert (mapper.get_section_name(1), mapper.get_kernel_name(2)) == ("s1", "k2")
        assert (mapper.section_name_to_id, mapper.id_to_section_name) == ({"s0": 0, "s1": 1}, {0: "s0", 1: "s1"})
        assert (mapper.kernel_name_to_id["k1"], mapper.id_to_kernel_name[1]) == (1, "k1")
        with pytest.raises(KeyError):
            mapper.get_kernel_name(3)

    def test_no_numbers(self):
        """Without an exchange between ranks no name is numbered, as with the peer."""
        generator = ReportGenerator(["individual_perf_scores"], gather_on_rank0=False)
        generator.generate_report({"s": took(1.0)}, {"k": took(1.0)})
        with pytest.raises(KeyError):
            generator.name_mapper.get_kernel_id("k")

    def test_group(self):
        """A group of ranks is refused by name."""
        with pytest.raises(ConfigError, match="pg"):
            ReportGenerator("relative_perf_scores", pg=object())


@pytest.mark.torch
@pytest.mark.hang_guard(700)
class TestRanks:
    @pytest.mark.parametrize("gather", [True, False])
    def test_two_ranks(self, tmp_path, gather):
        """Of two ranks the slow one is found: by rank 0 for all, or by each for itself."""
        program = Path(__file__).parent / "straggler_rank.py"
        how = "gather" if gather else "local"
        ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", program, str(rank), "2", str(tmp_path / "store"), how],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        try:
            outcomes = [process.communicate(timeout=600) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        assert [process.returncode for process in ranks] == [0, 0], outcomes
        sent = [json.loads(out) for out, _ in outcomes]
        if gather:
            assert sent == [{"ranks": [0, 1], "slow": [[1, "node1"]], "nodes": {"0": "node0", "1": "node1"}}, None]
        else:
            assert sent == [
                {"ranks": [0], "slow": [], "nodes": {"0": "node0"}},
                {"ranks": [1], "slow": [[1, "node1"]], "nodes": {"1": "node1"}},
            ]
