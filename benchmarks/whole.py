"""
The whole: what telemetry adds to the training of a real, small model, with event log, models and publisher on.

A process trains in blocks, in turn with telemetry and without, and the CPU time of all its threads and the wall time
are taken of each. A pair of neighbouring blocks is disturbed alike by whatever else the machine does, and which comes
first alternates. The row shows the upper bound of the median over the pairs, which 95 % of such runs stay below (the
sign test's: it supposes nothing about the distribution). What telemetry does later, in its own threads, is waited for
inside the time of the block.

``python -m benchmarks.whole STEP_MS PAIRS DIRECTORY`` is such a process; it prints its figures as JSON.
"""

from __future__ import annotations

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import trackside
from benchmarks.measure import Row, Timing

CONFIDENCE = 0.95
BLOCK_S = 0.5
PAIRS = 60
COUNTERS = 15
WIDTH = 192
SAMPLES = 64

Figures = dict[str, list[float]]
Train = Callable[[int], None]


def rows() -> list[Row]:
    """Measure, and return the rows."""
    return [row for step_ms, budget in ((10.0, 0.005), (1.0, 0.05)) for row in _measured(step_ms, budget)]


def _measured(step_ms: float, budget: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.whole", str(step_ms), str(PAIRS), directory]
        found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ours
    figures: Figures = json.loads(found.stdout.splitlines()[-1])
    what = f"a step of {step_ms:g} ms: 4 spans, 1 iteration, {COUNTERS} counters"
    return [row(f"{what}; {kind}", figures, kind, budget) for kind in ("CPU", "wall")]


def row(operation: str, figures: Figures, kind: str, budget: float) -> Row:
    """Return the upper bound of what *kind* of time was added, against *budget*."""
    on, off = figures[f"{kind} with"], figures[f"{kind} without"]
    upper = upper_bound([one / other - 1 for one, other in zip(on, off, strict=True)])
    extra = sorted(one - other for one, other in zip(on, off, strict=True))
    middle = len(extra) // 2
    spread = Timing(extra[middle], extra[len(extra) // 4], extra[-1 - len(extra) // 4])
    bare = sorted(off)[middle]
    return Row(operation, spread, "the step without it", Timing(bare, bare, bare), budget, upper)


def upper_bound(changes: list[float]) -> float:
    """Return what the median is below with a confidence of 95 %: the order statistic of the one-sided sign test."""
    ordered = sorted(changes)
    count = len(ordered)
    place, below = 0, 0.0
    while place < count:
        below += math.comb(count, place) / 2**count
        if below >= CONFIDENCE:
            break
        place += 1
    return ordered[min(place, count - 1)]


class Loop:
    """A model that is trained, step by step, each as long as it takes to do *passes* forward and backward."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(SAMPLES, WIDTH)
        self.passes = 1

    def calibrate(self, step_s: float) -> None:
        """Choose as many passes as a step of *step_s* seconds has time for."""
        self.without(50)
        best_s = min(_timed(self.without) for _ in range(200))
        self.passes = max(1, round(step_s / best_s))

    def load(self) -> torch.Tensor:
        """Return a batch."""
        return self.batch + 0.001

    def forward(self, batch: torch.Tensor) -> Any:
        """Return the loss of all passes."""
        loss: Any = 0.0
        for _ in range(self.passes):
            loss = loss + self.model(batch).square().mean()
        return loss

    def without(self, steps: int) -> None:
        """Train, and say nothing."""
        for _ in range(steps):
            loss = self.forward(self.load())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def told(self, steps: int) -> None:
        """Train, and tell everything."""
        counters = [trackside.counter(f"train.value_{number}") for number in range(COUNTERS)]
        for step in range(steps):
            with trackside.training_iteration(step=step) as iteration:
                with trackside.data_loading():
                    batch = self.load()
                with trackside.model_forward():
                    loss = self.forward(batch)
                with trackside.model_backward():
                    loss.backward()
                with trackside.optimizer_update():
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                iteration.set(samples=SAMPLES)
                for counter in counters:
                    counter.add(1.0)
        trackside.flush()


def _timed(train: Train, steps: int = 1) -> float:
    began_s = time.perf_counter()
    train(steps)
    return time.perf_counter() - began_s


def measure(step_s: float, pairs: int, directory: pathlib.Path) -> Figures:
    """Return the CPU and wall nanoseconds of a step, with telemetry and without, for each pair of blocks."""
    loop = Loop()
    loop.calibrate(step_s)
    steps = max(10, round(BLOCK_S / step_s))
    figures: Figures = {f"{kind} {how}": [] for kind in ("CPU", "wall") for how in ("with", "without")}
    for pair in range(pairs + 1):
        for is_on in (True, False) if pair % 2 else (False, True):
            if is_on:
                with trackside.start(directory, report=False, publish=True), trackside.training_loop(0):
                    block(loop.told, steps, figures, "with")
            else:
                block(loop.without, steps, figures, "without")
    return {name: taken[1:] for name, taken in figures.items()}  # the first block of each warms up


def block(train: Train, steps: int, figures: Figures, how: str) -> None:
    """Train so many steps, and note what each took."""
    train(5)
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    train(steps)
    figures[f"CPU {how}"].append((time.process_time_ns() - cpu_ns) / steps)
    figures[f"wall {how}"].append((time.perf_counter_ns() - wall_ns) / steps)


if __name__ == "__main__":
    print(json.dumps(measure(float(sys.argv[1]) / 1e3, int(sys.argv[2]), pathlib.Path(sys.argv[3]))))
