"""``trackside scores``."""

from __future__ import annotations

import json
import time

import pytest

from trackside.bus import Bus
from trackside.events import GpuTimingUnavailable, Source
from trackside.handlers import EventLog
from trackside.testing import FakeClock
from windows import kernel_window, section_window

pytestmark = pytest.mark.once

START_NS = 1_700_000_000 * 10**9
WINDOW_NS = 100 * 50_000_000
NO_STRAGGLER = [
    "stragglers",
    "  none: no score is low in 2 windows in a row, or each time, and costs 1 ms and 8 % of a step",
    "  trackside report also compares what is outside of these sections",
    "",
]


@pytest.fixture
def runs(tmp_path):
    """
    Record four windows of three ranks in two stages; rank 1 loads its data at half speed from the second on.

    Steps take 50 ms. Rank 2 stops before the last window. No rank has a GPU.
    """
    for rank in range(3):
        source = Source(id=f"{rank:016x}", run_id="run-1", rank=rank, world_size=3, host=f"node-{rank // 2}")
        with FakeClock(START_NS).installed(), Bus(source=source) as bus:
            bus.subscribe(EventLog(tmp_path / "runs"))
            bus.log(GpuTimingUnavailable(reason="no CUDA device"))
            for window in range(3 if rank == 2 else 4):
                times = {"data": 20e6 if rank == 1 and window else 10e6, "forward": 30e6}
                start_ns, stage = START_NS + window * WINDOW_NS, {"stage": "01"[rank == 1]}
                bounds = {"start_ns": start_ns, "at_ns": start_ns + WINDOW_NS}
                bus.log(section_window(times, window=window, steps=100, groups=stage, min_ns=[5e6, 5e6], **bounds))
    return tmp_path / "runs"


class TestText:
    def test_latest(self, command, runs):
        """The latest closed window names each straggler, its slow section, since when it is slow and the cost."""
        outcome = command("scores", runs)

        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.lines == [
            "run run-1: window 2, steps 200 to 299, attempt 0, 3 of 3 rank(s)",
            "",
            "stragglers",
            (
                "  rank 1 on node-0: section data, relative score 0.500, low since window 1, which began at step 100; "
                "10 ms lost per step"
            ),
            (
                "  rank 1 on node-0: section data, individual score 0.501, low since window 1, which began at step 100;"
                " 9.98 ms lost per step"
            ),
            "",
            "relative scores, the lowest first: the fastest rank's time over the rank's own",
            "    rank  node                          data           forward",
            "       1  node-0                       0.500             1.000",
            "       0  node-0                       1.000             1.000",
            "       2  node-1                       1.000             1.000",
            "",
            "individual scores, the lowest first: the rank's shortest time so far over the rank's own",
            "    rank  node                          data           forward",
            "       1  node-0                       0.501             1.000",
            "       0  node-0                       1.000             1.000",
            "       2  node-1                       1.000             1.000",
            "",
            "missing",
            "  gpu: off: no CUDA device, rank(s) 0-2",
            "",
        ]

    def test_one_window(self, command, runs):
        """--window shows any window, also one without stragglers, as the first in which a rank is slow."""
        for window, steps in enumerate(("0 to 99", "100 to 199")):
            lines = command("scores", runs, "--window", str(window)).lines
            assert lines[0] == f"run run-1: window {window}, steps {steps}, attempt 0, 3 of 3 rank(s)"
            assert lines[2:6] == NO_STRAGGLER

    def test_short_rest(self, command, tmp_path):
        """A last window of two steps, after one of a hundred, is shown only when it is asked for."""
        with FakeClock(START_NS).installed(), Bus(source=Source(id="0" * 16, run_id="r")) as bus:
            bus.subscribe(EventLog(tmp_path))
            bus.log(section_window({"data": 1e6}, steps=100, at_ns=START_NS))
            bus.log(section_window({"data": 1e6}, window=1, steps=100, last_step=101, at_ns=START_NS))
        assert command("scores", tmp_path).lines[0].startswith("run r: window 0, steps 0 to 99,")
        assert command("scores", tmp_path, "--window", "1").lines[0].startswith("run r: window 1, steps 100 to 101,")

    def test_no_gpu(self, command, tmp_path):
        """On machines without GPUs nothing is said to be missing of them."""
        with Bus(source=Source(id="0" * 16, run_id="r")) as bus:
            bus.subscribe(EventLog(tmp_path))
            bus.log(section_window({"data": 1e6}, at_ns=time.time_ns()))
        assert "missing" not in command("scores", tmp_path).lines

    def test_open_window(self, command, runs):
        """A window that lacks some ranks says so, and names them."""
        lines = command("scores", runs, "--window", "3").lines
        assert lines[0] == "run run-1: window 3, steps 300 to 399, attempt 0, 2 of 3 rank(s), still open"
        assert "  all: rank silent, rank(s) 2" in lines

    @pytest.mark.parametrize("options", [[], ["--json"]])
    def test_unknown_group(self, command, runs, options):
        """A key that no window has is one line with the keys that there are, and exit code 2."""
        outcome = command("scores", runs, "--group", "stagge", *options)

        assert outcome.code == 2
        assert outcome.err == "trackside scores: --group: got 'stagge'; there is stage: all ranks were compared\n"

    def test_group(self, command, runs):
        """A rank alone in its group can be slow only by comparison with its own past."""
        lines = command("scores", runs, "--group", "stage").lines
        assert [line.split(",")[1].split()[0] for line in lines[3:5] if line] == ["individual"]


class TestWaiting:
    def test_is_not_slow(self, command, tmp_path):
        """
        A rank that is long in an exchange only waits in it, and is no straggler, though no section says so.

        Rank 1 computes for 30 ms and rank 0 for 5; both leave the exchange after 31 ms.
        """
        for rank, (forward_ns, exchange_ns) in enumerate(((5e6, 26e6), (30e6, 1e6))):
            source = Source(id=f"{rank:016x}", run_id="run-1", rank=rank, world_size=2, host="node-1")
            with FakeClock(START_NS).installed(), Bus(source=source) as bus:
                bus.subscribe(EventLog(tmp_path / "runs"))
                for window in range(2):
                    times = {"all_reduce": exchange_ns, "forward": forward_ns}
                    bounds = {"start_ns": START_NS, "at_ns": START_NS + 20 * 31_000_000}
                    bus.log(section_window(times, window=window, steps=20, **bounds))
        # 1/26 and 5/30 of the fastest.
        assert command("scores", tmp_path).lines[1:9] == [
            "",
            "stragglers",
            (
                "  rank 1 on node-1: section forward, relative score 0.167, low since window 0, which began at step 0; "
                "25 ms lost per step"
            ),
            "",
            "not slow, but waiting for others",
            "  rank 0 on node-1: section all_reduce, relative score 0.038",
            "",
            "relative scores, the lowest first: the fastest rank's time over the rank's own",
        ]

    def test_least_and_most(self, command, tmp_path):
        """The rank that waits least is the one that the others wait for."""
        for rank, wait_ns in enumerate((4e6, 1e6)):
            source = Source(id=f"{rank:016x}", run_id="run-1", rank=rank, world_size=2)
            with FakeClock(START_NS).installed(), Bus(source=source) as bus:
                bus.subscribe(EventLog(tmp_path / "runs"))
                bus.log(section_window({"barrier": wait_ns}, steps=2, count=4, waits=["barrier"], at_ns=START_NS))
        assert (
            "waiting for others: least rank 1, 2 ms per step; most rank 0, 8 ms per step"
            in command("scores", tmp_path).lines
        )

    def test_on_the_gpu(self, command, tmp_path):
        """The same is said of the GPU's time in NCCL, where kernels are known."""
        for rank, wait_ns in enumerate((4e6, 1e6)):
            source = Source(id=f"{rank:016x}", run_id="run-1", rank=rank, world_size=2)
            with FakeClock(START_NS).installed(), Bus(source=source) as bus:
                bus.subscribe(EventLog(tmp_path / "runs"))
                bus.log(kernel_window({"ncclDevKernel_AllReduce": wait_ns}, steps=2, count=4, at_ns=START_NS))
        printed = command("scores", tmp_path)
        assert (
            "waiting for others on the GPU, in NCCL: least rank 1, 2 ms per step; most rank 0, 8 ms per step"
            in printed.lines
        )
        (window,) = json.loads(command("scores", tmp_path, "--json").out)["windows"]
        assert window["nccl_s_per_step"] == {"0": 0.008, "1": 0.002}


class TestJson:
    def test_all_windows(self, command, runs):
        """Every window is printed, with scores, reasons, stragglers, and the ranks below NVRx's four thresholds."""
        windows = json.loads(command("scores", runs, "--json").out)["windows"]

        assert [window["steps"] for window in windows] == [[0, 99], [100, 199], [200, 299], [300, 399]]
        assert windows[1]["relative"] == {
            "sections": {"data": {"0": 1.0, "1": 0.5, "2": 1.0}, "forward": {"0": 1.0, "1": 1.0, "2": 1.0}},
            "gpu": {"0": None, "1": None, "2": None},
        }
        assert windows[1]["stragglers"] == []
        assert windows[2]["stragglers"][0] == {
            "rank": 1,
            "node": "node-0",
            "kind": "relative",
            "what": "section data",
            "score": 0.5,
            "lost_s_per_step": 0.01,
            "since_window": 1,
            "since_step": 100,
        }
        assert windows[1]["below_threshold"] == {
            "straggler_gpus_relative": [],
            "straggler_gpus_individual": [],
            "straggler_sections_relative": {"data": [{"rank": 1, "node": "node-0"}]},
            "straggler_sections_individual": {"data": [{"rank": 1, "node": "node-0"}]},
        }
        assert {"rank": 2, "what": "all", "why": "rank silent"} in windows[3]["missing"]

    def test_one_window(self, command, runs):
        """One window can be asked for."""
        windows = json.loads(command("scores", runs, "--json", "--window", "1").out)["windows"]
        assert [window["window"] for window in windows] == [1]


class TestErrors:
    def test_no_windows(self, command, readable):
        """A log without sections is a clear error."""
        outcome = command("scores", readable)
        assert outcome.code == 2
        assert outcome.err.startswith("trackside scores: ")
        assert "does not hold any window of sections" in outcome.err

    def test_no_such_window(self, command, runs):
        """So is a window that does not exist."""
        outcome = command("scores", runs, "--window", "7")
        assert outcome.code == 2
        assert "does not hold a window 7 of sections" in outcome.err

    def test_unreadable(self, command, runs, unreadable):
        """Unreadable files are reported, after everything that can be read."""
        outcome = command("scores", runs, unreadable)
        assert outcome.code == 2
        assert outcome.lines[0].startswith("run run-1: window 2")
