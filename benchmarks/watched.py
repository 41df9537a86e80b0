"""
What a viewer costs the job that it watches: the whole of `benchmarks.whole`, with a viewer in another process.

``python -m benchmarks.watched STEP_MS PAIRS DIRECTORY`` measures, and prints its figures as JSON; ``python -m
benchmarks.watched ENDPOINT`` is the viewer, which takes every event of every job that comes to be there.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import trackside
from benchmarks.measure import Row
from benchmarks.whole import BLOCK_S, COUNTERS, PAIRS, Figures, Loop, block, row
from trackside.handlers.models import SpanBuilder

_MET_S = 10.0


def rows() -> list[Row]:
    """Measure, and return the rows."""
    return [each for step_ms, budget in ((10.0, 0.005), (1.0, 0.05)) for each in _measured(step_ms, budget)]


def _measured(step_ms: float, budget: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.watched", str(step_ms), str(PAIRS), directory]
        found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ours
    figures: Figures = json.loads(found.stdout.splitlines()[-1])
    what = f"the same, {step_ms:g} ms, watched: 4 spans, 1 iteration, {COUNTERS} counters"
    return [row(f"{what}; {kind}", figures, kind, budget) for kind in ("CPU", "wall")]


def measure(step_s: float, pairs: int, directory: pathlib.Path) -> Figures:
    """Return the CPU and wall nanoseconds of a step, watched and without telemetry, for each pair of blocks."""
    loop, endpoint = Loop(), f"ipc://{directory}/job"
    loop.calibrate(step_s)
    steps = max(10, round(BLOCK_S / step_s))
    figures: Figures = {f"{kind} {how}": [] for kind in ("CPU", "wall") for how in ("with", "without")}
    with _viewer(endpoint):
        for pair in range(pairs + 1):
            for is_on in (True, False) if pair % 2 else (False, True):
                if is_on:
                    _watched(loop, steps, figures, directory, endpoint)
                else:
                    block(loop.without, steps, figures, "without")
    return {name: taken[1:] for name, taken in figures.items()}  # the first block of each warms up


def _watched(loop: Loop, steps: int, figures: Figures, directory: pathlib.Path, endpoint: str) -> None:
    with trackside.start(directory, report=False, publish=endpoint) as job, trackside.training_loop(0):
        until_s = time.monotonic() + _MET_S
        while not job.is_watched:
            if time.monotonic() > until_s:
                raise RuntimeError("the viewer never came")
            time.sleep(0.01)
        block(loop.told, steps, figures, "with")


@contextlib.contextmanager
def _viewer(endpoint: str) -> Iterator[None]:
    viewer = subprocess.Popen([sys.executable, "-m", "benchmarks.watched", endpoint])  # noqa: S603  ours
    try:
        yield
    finally:
        viewer.kill()
        viewer.wait()


def watch(endpoint: str) -> None:
    """Watch job after job, with a model, until killed."""
    while True:
        with trackside.attach(endpoint, models=[SpanBuilder()]) as events:
            for _ in events:
                pass


if __name__ == "__main__":
    if len(sys.argv) > 2:  # noqa: PLR2004
        print(json.dumps(measure(float(sys.argv[1]) / 1e3, int(sys.argv[2]), pathlib.Path(sys.argv[3]))))
    else:
        watch(sys.argv[1])
