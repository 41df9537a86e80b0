"""Trackside's scores beside those of nvidia-resiliency-ext, on the same windows of four ranks."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.events import Source
from trackside.handlers.models.scores import ScoreAggregator
from trackside.testing import recorded
from windows import Taken, kernel_window, section_window

pytestmark = [pytest.mark.integration, pytest.mark.torch]

WORLD = 4
WINDOWS = 12
HERE = Path(__file__).parent


def random_windows(rng):
    """
    Return windows of all ranks: durations that 32-bit floats hold exactly, names that come and go.

    The peer reduces its references as 32-bit floats; with such durations nothing is rounded there.
    """

    def table(names, share):
        chosen = [name for name in names if rng.random() < share]
        rng.shuffle(chosen)
        return {
            name: (rng.randrange(1 << 10, 1 << 14) / 4, rng.randrange(1 << 10, 1 << 14) / 4, rng.randrange(1, 100))
            for name in chosen
        }

    windows = []
    for number in range(WINDOWS):
        share = (1.0, 0.9, 0.6)[number % 3]
        windows.append(
            [
                {
                    "sections": table(("data", "forward", "backward"), share),
                    "kernels": table(("gemm", "softmax", "copy", "norm", "ncclDevKernel_AllReduce"), share),
                }
                for _ in range(WORLD)
            ]
        )
    return windows


@pytest.fixture(scope="module")
def windows(request):
    return random_windows(random.Random(request.config.option.seed))


@pytest.fixture(scope="module")
def theirs(windows, tmp_path_factory):
    """Run the peer's generator on four processes, and return the reports of each rank."""
    if importlib.util.find_spec("nvidia_resiliency_ext") is None:
        pytest.skip("nvidia-resiliency-ext is not installed in this environment")
    assert importlib.metadata.version("nvidia-resiliency-ext") == "0.4.1"
    folder = tmp_path_factory.mktemp("nvrx")
    (folder / "windows.json").write_text(json.dumps(windows))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", HERE / "nvrx_rank.py", str(rank), str(WORLD), folder],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    try:
        for process in ranks:
            _, recorded = process.communicate(timeout=100)
            assert process.returncode == 0, recorded
    finally:
        for process in ranks:
            process.kill()
    return [json.loads((folder / f"answers{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.fixture(scope="module")
def ours(windows):
    """Return trackside's reports on the same windows."""
    aggregator = ScoreAggregator(relax=0.0, keep=WINDOWS)
    sources = [Source(rank=rank, world_size=WORLD, host=f"node{rank}") for rank in range(WORLD)]
    for number, ranks in enumerate(windows):
        for source, measured in zip(sources, ranks, strict=True):
            for kind, key in ((kernel_window, "kernels"), (section_window, "sections")):
                aggregator(window_of(kind, source, number, measured[key]))
    return aggregator.result().windows


def window_of(kind, source, number, table):
    made = kind({name: Taken(*row) for name, row in table.items()}, window=number, steps=1)
    return recorded(made, source=source)


def close(mine, peers):
    """Return whether two scores are equal to 1e-9, or both missing."""
    if mine is None or math.isnan(peers):
        return mine is None and math.isnan(peers)
    return math.isclose(mine, peers, rel_tol=1e-9, abs_tol=0.0)


@pytest.mark.parametrize("kind", ["relative", "individual"])
class TestScores:
    def test_gpu(self, ours, theirs, kind):
        """Every rank has the same GPU score in every window, or none."""
        apart = [
            (report.window, rank, getattr(report, kind).gpu[rank], theirs[rank][report.window][kind]["gpu"])
            for report in ours
            for rank in range(WORLD)
            if not close(getattr(report, kind).gpu[rank], theirs[rank][report.window][kind]["gpu"])
        ]
        assert apart == []

    def test_sections(self, ours, theirs, kind):
        """Every section that a rank ran has the same score in every window, or none."""
        apart = [
            (report.window, rank, name, score)
            for report in ours
            for rank in range(WORLD)
            for name, score in theirs[rank][report.window][kind]["sections"].items()
            if not close(getattr(report, kind).sections[name][rank], score)
        ]
        assert apart == []

    def test_something_was_compared(self, ours, kind):
        """There are scores in most windows, and stragglers among them."""
        scores = [score for report in ours for score in getattr(report, kind).gpu if score is not None]
        assert len(scores) > WINDOWS
        assert min(scores) < 0.75


class TestStragglers:
    def test_same(self, ours, theirs):
        """The same ranks are stragglers of the same kinds."""
        assert len(ours) == WINDOWS
        for report in ours:
            found = report.identify_stragglers()
            for key, mine in found.items():
                recorded = [answers[report.window]["stragglers"][key] for answers in theirs]
                if isinstance(mine, dict):
                    expected = {}
                    for one in recorded:
                        for name, ranks in one.items():
                            expected.setdefault(name, set()).update(ranks)
                    assert {name: {one.rank for one in ids} for name, ids in mine.items()} == expected
                else:
                    assert {one.rank for one in mine} == {rank for ranks in recorded for rank in ranks}
