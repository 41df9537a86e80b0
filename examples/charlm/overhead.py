"""
The cost of telemetry to the training, measured in two ways.

Directly: the time of its calls in a step of the training loop, and the CPU time of its own threads.

By comparison: the same steps with it and without it, alternately. Two long runs differ by more than telemetry costs,
because the machine has other load. Two short blocks of steps, one right after the other, differ less, and the median
over pairs of them ignores the pair that was disturbed. Which comes first alternates, against drift.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import comb
from pathlib import Path
from statistics import mean, median

import attrs

import trackside
from charlm.laps import Lap

CONFIDENCE = 0.95
WARM_STEPS = 20
"""The steps of a block before those that are measured: data loading and telemetry start, which a job does once."""
EMPTY_STEPS = 50

Train = Callable[[], Sequence[Lap]]


@attrs.frozen
class Direct:
    """The cost of telemetry during some steps, in seconds."""

    steps: int
    lasted_s: float
    """All of them, and what was between them."""
    calls_s: float
    """The calls of one step, on average."""
    median_call_s: float
    """The same, the median."""
    threads_s: float
    """CPU time of its threads."""


def cpu_of_threads_s() -> float:
    """Return the CPU time of trackside's threads so far; NaN if the system does not report it."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return float("nan")
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("trackside")]
    return sum(time.clock_gettime(clock_of(thread.ident)) for thread in ours)


def empty_steps_s(work: Callable[[], object]) -> list[float]:
    """
    Return the duration of steps that contain only the training loop's calls of telemetry.

    Args:
        work: Done before each of them, so that the processor's caches are as cold as they are in training.
    """
    loss_seen = trackside.stat("train.loss")
    lasted_s = []
    for step in range(EMPTY_STEPS):
        work()
        began_s = time.perf_counter()
        with trackside.training_iteration(step=step) as iteration:
            for block, section in (
                (trackside.data_loading, "data_loading"),
                (trackside.zero_grad, ""),
                (trackside.model_forward, "forward"),
                (trackside.model_backward, ""),
                (trackside.optimizer_update, "optimizer"),
            ):
                with block(), trackside.section(section) if section else nullcontext():
                    pass
            iteration.set(loss=0.0, samples=1, tokens=1)
            loss_seen.record(0.0)
        lasted_s.append(time.perf_counter() - began_s)
    return lasted_s


@attrs.define
class Comparison:
    """The durations of blocks of steps, in seconds; the *n*-th with telemetry and the *n*-th without are a pair."""

    steps: int
    """In each block."""
    with_it: list[float] = attrs.field(factory=list)
    without: list[float] = attrs.field(factory=list)

    def change(self) -> tuple[float, float, float]:
        """
        Return the change of the time by telemetry, in percent: the median over the pairs, and its bounds.

        The bounds are the sign test's, which supposes nothing about the distribution. From fewer than 6 pairs they
        are the smallest and the largest change, and less sure than `CONFIDENCE`.
        """
        changes = sorted(100 * (on / off - 1) for on, off in zip(self.with_it, self.without, strict=True))
        outside = _outside(len(changes))
        return median(changes), changes[outside], changes[-1 - outside]


def compare_blocks(train: Train, pairs: int, directory: str) -> Comparison:
    """
    Train alternately inside and outside of telemetry.

    Args:
        train: Trains for some more steps than `WARM_STEPS`.
        pairs: The number of pairs of blocks.
        directory: The directory that telemetry may write to.
    """
    comparison = Comparison(steps=0)
    for pair in range(pairs):
        for is_on in (True, False) if pair % 2 else (False, True):
            with trackside.start(directory, report=False) if is_on else nullcontext():
                laps = train()
            (comparison.with_it if is_on else comparison.without).append(laps[-1].ended_s - laps[WARM_STEPS].began_s)
            comparison.steps = len(laps) - WARM_STEPS
    return comparison


def _outside(pairs: int) -> int:
    """Return how many of so many sorted changes lie below the lower bound, and as many above the upper."""
    count = tail = 0
    while (tail := tail + comb(pairs, count)) / 2**pairs <= (1 - CONFIDENCE) / 2:
        count += 1
    return max(count - 1, 0)


@attrs.frozen
class Costs:
    """Both measurements, as one rank made them."""

    direct: Direct
    comparison: Comparison | None

    def save(self, path: Path) -> None:
        """Write them to a file."""
        path.write_text(json.dumps(attrs.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Costs | None:
        """Read the file that `save` wrote; None if there is none."""
        if not path.exists():
            return None
        found = json.loads(path.read_text())
        return cls(Direct(**found["direct"]), Comparison(**found["comparison"]) if found["comparison"] else None)


def measure_costs(
    laps: Sequence[Lap], threads_s: float, *, work: Callable[[], object], train: Train, pairs: int, scratch: Path
) -> Costs:
    """
    Measure the cost of telemetry in a training.

    Args:
        laps: The training's steps.
        threads_s: The CPU time of telemetry's threads during those.
        work: As for `empty_steps_s`.
        train: As for `compare_blocks`.
        pairs: As for `compare_blocks`; 0 for no comparison.
        scratch: The directory in which to make another one for a while.
    """
    with tempfile.TemporaryDirectory(dir=scratch, prefix=".overhead-") as directory:
        with trackside.start(directory, report=False):
            calls_s = empty_steps_s(work)
        comparison = compare_blocks(train, pairs, directory) if pairs else None
    lasted_s = laps[-1].ended_s - laps[0].began_s
    return Costs(Direct(len(laps), lasted_s, mean(calls_s), median(calls_s), threads_s), comparison)
