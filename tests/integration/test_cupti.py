"""Trackside's assumptions about cupti-python, checked against it; no GPU is needed for that."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.cli import main
from trackside.handlers import feed, replay
from trackside.handlers.models.scores import ScoreAggregator
from trackside.instruments.cupti import KernelRecorder, kernel_recorder

pytestmark = pytest.mark.integration
cupti = pytest.importorskip("cupti.cupti")

CALLED = """
    subscribe unsubscribe activity_register_callbacks activity_enable activity_disable activity_flush_all
    activity_get_num_dropped_records
""".split()
READ = "kind name start end block_x block_y block_z grid_x grid_y grid_z".split()


class TestInterface:
    @pytest.mark.parametrize("name", CALLED)
    def test_functions(self, name):
        """Each function that is called exists."""
        assert callable(getattr(cupti, name))

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("subscribe", ["callback", "userdata"]),
            ("activity_register_callbacks", ["func_buffer_requested", "func_buffer_completed"]),
            ("activity_get_num_dropped_records", ["context", "stream_id", "dropped"]),
        ],
    )
    def test_arguments(self, name, arguments):
        """Functions with several parameters have them in this order."""
        assert list(inspect.signature(getattr(cupti, name)).parameters) == arguments

    def test_records(self):
        """Every kind of kernel record has the fields that are read."""
        kinds = [
            cls for name, cls in vars(cupti).items() if name.startswith("ActivityKernel") and isinstance(cls, type)
        ]
        assert kinds
        assert [(cls.__name__, field) for cls in kinds for field in READ if not hasattr(cls, field)] == []

    def test_errors(self):
        """An error has its number, by which the one that means another profiler is known."""
        taken = cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        assert cupti.cuptiError(int(taken)).status == taken


class TestWithoutDriver:
    def test_reason(self):
        """Without a driver CUPTI's own message is the reason, and no resource is kept."""
        for _ in range(2):
            try:
                recorder = kernel_recorder()
            except RuntimeError as error:
                assert str(error).startswith("CUPTI: ")  # noqa: PT017  there is a driver, or there is none
            else:
                assert isinstance(recorder, KernelRecorder)
                recorder.close()


RANKS = 16
HERE = Path(__file__).parent


@pytest.fixture
def libraries(tmp_path):
    """Build the library that stands in for CUPTI and the driver; return its directory."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    directory = tmp_path / "lib"
    directory.mkdir()
    for name in ("libcupti.so.13", "libcuda.so.1"):
        command = [compiler, "-shared", "-fPIC", "-Werror", f"-Wl,-soname,{name}", "-o", str(directory / name)]
        subprocess.run([*command, str(HERE / "cupti_standin.c")], check=True)
    return directory


class TestWholeWay:
    def test_from_records_to_a_report(self, libraries, tmp_path, capsys):
        """Records that cupti-python gets from its library on 16 ranks become GPU scores; rank 5 is the slow one."""

        def start(rank):
            command = [sys.executable, HERE / "cupti_rank.py", libraries / "libcupti.so.13", tmp_path / "run", rank]
            of_rank = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "TORCHELASTIC_RUN_ID": "sixteen"}
            # cupti-python uses a CUPTI library that is loaded already, and the driver that it searches for.
            preloaded = {"LD_PRELOAD": str(libraries / "libcupti.so.13"), "LD_LIBRARY_PATH": str(libraries)}
            environment = {**os.environ, **preloaded}
            environment |= {name: str(value) for name, value in of_rank.items()}
            return subprocess.Popen(list(map(str, command)), env=environment)

        for first in range(0, RANKS, 2):
            pair = [start(rank) for rank in (first, first + 1)]
            assert [process.wait(60) for process in pair] == [0, 0]

        (aggregator,) = feed(replay(tmp_path / "run"), ScoreAggregator())
        (window,) = aggregator.result().windows
        assert window.ranks == list(range(RANKS))
        # Of 60 products of 200 µs and 20 copies of 50 µs: (0.5 * 60 * 200 + 20 * 50) / (60 * 200 + 20 * 50)
        assert window.relative.gpu == pytest.approx([7 / 13 if rank == 5 else 1.0 for rank in range(RANKS)])
        assert [one.rank for one in window.stragglers if one.what == "gpu"] == [5]
        assert main(["report", str(tmp_path / "run")]) == 0
        printed = capsys.readouterr().out
        assert "16 ranks on 1 host" in printed
        assert re.search(r"^ +5  \S+ +0\.54 ", printed, re.MULTILINE), printed
        assert re.search(r"rank 5 on \S+: gpu, ", printed), printed
