"""
The whole: the cost that telemetry adds to the training of a real, small model, with event log, models and publisher on.

Wall time: a process trains in blocks, alternately with telemetry and without. A pair of neighbouring blocks is
disturbed alike by other load on the machine, and which comes first alternates. The later work of telemetry, in its own
threads, is waited for inside the time of the block.

CPU time: of the training thread it is the excess of 10 ms of steps with telemetry over their neighbours without, and of
all other threads of the process, libraries' own among them, their time in the blocks: they have no other work. So the
figure does not drown in the noise of two long computations; that a step finds less of its own data in the caches after
one of these threads ran shows in the wall time alone.

The rows show the upper bound of the median over the pairs, which 95 % of such runs stay below (the sign test's: it
supposes nothing about the distribution). One more row is the floor: the cost of reading the clock at the same places
and keeping the readings in a list.

``python -m benchmarks.whole STEP_MS PAIRS DIRECTORY`` is such a process; it prints its figures as JSON.
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import attrs
import torch

import trackside
from benchmarks.measure import Row, Timing, budget, timing
from trackside.counters import Counter

CONFIDENCE = 0.95
BLOCK_S = 0.5
PAIRS = 60
ALTERNATING_S = 40.0
"""The time that steps run alternately with and without, altogether."""
AT_ONCE_S = 0.01
"""
The time that steps of one kind take in a row. Of those of 1 ms each finds in the caches what the one before left there;
longer ones find little of it, and neighbours in time are disturbed alike.
"""
COUNTERS = 15
WIDTH = 192
SAMPLES = 64

Figures = dict[str, list[float]]
Train = Callable[[int], None]


@attrs.frozen
class Budgets:
    """The largest shares of a step that are good enough."""

    own: float
    """CPU time of the training thread."""
    all_threads: float
    wall: float
    by_hand: float = math.inf


def rows() -> list[Row]:
    """Measure, and return the rows."""
    ten = Budgets(budget(compiled=0.003, pure=0.008), budget(compiled=0.005, pure=0.012), budget(compiled=0.005), 0.001)
    one = Budgets(budget(compiled=0.015, pure=0.06), budget(compiled=0.025, pure=0.09), budget(compiled=0.02))
    return [row for step_ms, budgets in ((10.0, ten), (1.0, one)) for row in _measured(step_ms, budgets)]


def _measured(step_ms: float, budgets: Budgets) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.whole", str(step_ms), str(PAIRS), directory]
        found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ours
    figures: Figures = json.loads(found.stdout.splitlines()[-1])
    what = f"a step of {step_ms:g} ms: 4 spans, 1 iteration, {COUNTERS} counters"
    return [
        *compared_rows(what, figures, budgets),
        _slowest_row(f"{what}; wall of the slowest hundredth", figures),
        row(f"{what}; by hand", figures["by hand"], figures["without"], budgets.by_hand),
    ]


def compared_rows(what: str, figures: Figures, budgets: Budgets) -> list[Row]:
    """Return the rows for an operation, *what*: CPU time of the training thread, of all threads, and wall time."""
    others_ns = statistics.median(figures["CPU of others"])
    on, off = figures["with"], figures["without"]
    return [
        row(f"{what}; CPU of the training thread", on, off, budgets.own),
        row(f"{what}; CPU of all threads", [step_ns + others_ns for step_ns in on], off, budgets.all_threads),
        row(f"{what}; wall", figures["wall with"], figures["wall without"], budgets.wall),
    ]


def row(operation: str, on: list[float], off: list[float], budget: float) -> Row:
    """Return the upper bound of the excess of times *on* over *off*, pair by pair, against *budget*."""
    upper = upper_bound([one / other - 1 for one, other in zip(on, off, strict=True)])
    extra = sorted(one - other for one, other in zip(on, off, strict=True))
    middle = len(extra) // 2
    spread = Timing(extra[middle], extra[len(extra) // 4], extra[-1 - len(extra) // 4])
    bare = sorted(off)[middle]
    return Row(operation, spread, "the step without it", Timing(bare, bare, bare), budget, upper)


def _slowest_row(operation: str, figures: Figures) -> Row:
    """Return the 99th percentile of a step's wall time, with telemetry beside without."""
    on, off = (statistics.quantiles(figures[f"each {name}"], n=100)[-1] for name in ("with", "without"))
    return Row(operation, timing([on - off]), "the step without it", timing([off]), budget(compiled=0.05), on / off - 1)


def upper_bound(changes: list[float]) -> float:
    """Return an upper bound of the median with 95 % confidence: the order statistic of the one-sided sign test."""
    ordered = sorted(changes)
    count = len(ordered)
    rank, below = 0, 0.0
    while rank < count:
        below += math.comb(count, rank) / 2**count
        if below >= CONFIDENCE:
            break
        rank += 1
    return ordered[min(rank, count - 1)]


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
        """Train without telemetry."""
        for _ in range(steps):
            loss = self.forward(self.load())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def instrumented(self, steps: int) -> None:
        """Train, and record everything."""
        counters = [trackside.counter(f"train.value_{number}") for number in range(COUNTERS)]
        for step in range(steps):
            self.instrumented_step(step, counters)

    def instrumented_step(self, step: int, counters: list[Counter]) -> None:
        """Train one step, and record everything."""
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

    def noted_step(self, noted: list[tuple[str, int]], sums: dict[int, float]) -> None:
        """Train one step, and keep the clock's readings at the places where `instrumented_step` records an event."""
        now = time.perf_counter_ns
        noted.append(("iteration", now()))
        noted.append(("loading", now()))
        batch = self.load()
        noted.append(("loaded", now()))
        noted.append(("forward", now()))
        loss = self.forward(batch)
        noted.append(("forwarded", now()))
        noted.append(("backward", now()))
        loss.backward()
        noted.append(("backwarded", now()))
        noted.append(("update", now()))
        self.optimizer.step()
        self.optimizer.zero_grad()
        noted.append(("updated", now()))
        for number in range(COUNTERS):
            sums[number] += 1.0
        noted.append(("iterated", now()))


def _timed(train: Train, steps: int = 1) -> float:
    began_s = time.perf_counter()
    train(steps)
    return time.perf_counter() - began_s


def measure(step_s: float, pairs: int, directory: pathlib.Path) -> Figures:
    """Return nanoseconds of a step: wall with and without, of other threads, and of the training thread alternately."""
    loop = Loop()
    loop.calibrate(step_s)
    steps = max(10, round(BLOCK_S / step_s))
    figures: Figures = {"wall with": [], "wall without": [], "CPU of others": []}
    for pair in range(pairs + 1):
        for is_on in (True, False) if pair % 2 else (False, True):
            if is_on:
                with (
                    trackside.start(directory, report=False, remote=trackside.Remote(publish=True)),
                    trackside.training_loop(0),
                ):
                    instrumented_block(loop, steps, figures)
            else:
                bare_block(loop, steps, figures)
    figures = {name: times[1:] for name, times in figures.items()}  # the first block of each warms up
    with trackside.start(directory, report=False, remote=trackside.Remote(publish=True)), trackside.training_loop(0):
        return {**figures, **alternating(loop, step_s)}


def instrumented_block(loop: Loop, steps: int, figures: Figures) -> None:
    """Train so many steps with telemetry, and note the time of each."""
    loop.instrumented(5)
    trackside.flush()
    own_ns, all_ns, wall_ns = time.thread_time_ns(), time.process_time_ns(), time.perf_counter_ns()
    loop.instrumented(steps)
    trackside.flush()
    figures["wall with"].append((time.perf_counter_ns() - wall_ns) / steps)
    others_ns = time.process_time_ns() - all_ns - (time.thread_time_ns() - own_ns)
    figures["CPU of others"].append(others_ns / steps)


def bare_block(loop: Loop, steps: int, figures: Figures) -> None:
    """Train so many steps without, and note the time of each."""
    loop.without(5)
    wall_ns = time.perf_counter_ns()
    loop.without(steps)
    figures["wall without"].append((time.perf_counter_ns() - wall_ns) / steps)


def alternating(loop: Loop, step_s: float) -> Figures:
    """
    Alternate steps with and without telemetry and by hand.

    Returns:
        By kind of step the CPU time that one took of this thread, turn by turn; and the wall time of each.
    """
    counters = [trackside.counter(f"train.value_{number}") for number in range(COUNTERS)]
    noted: list[tuple[str, int]] = []
    sums = dict.fromkeys(range(COUNTERS), 0.0)
    loops: list[tuple[str, Train]] = [
        ("with", lambda step: loop.instrumented_step(step, counters)),
        ("without", lambda _: loop.without(1)),
        ("by hand", lambda _: loop.noted_step(noted, sums)),
    ]
    figures: Figures = {f"{what}{name}": [] for what in ("", "each ") for name, _ in loops}
    at_once = max(1, round(AT_ONCE_S / step_s))
    for turn in range(round(ALTERNATING_S / step_s / len(loops) / at_once)):
        for name, train in loops if turn % 2 else reversed(loops):
            walls, ended_ns = figures[f"each {name}"], time.perf_counter_ns()
            began_ns = time.thread_time_ns()
            for step in range(turn * at_once, (turn + 1) * at_once):
                train(step)
                start_ns, ended_ns = ended_ns, time.perf_counter_ns()
                walls.append(ended_ns - start_ns)
            figures[name].append((time.thread_time_ns() - began_ns) / at_once)
        noted.clear()
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(float(sys.argv[1]) / 1e3, int(sys.argv[2]), pathlib.Path(sys.argv[3]))))
