"""Generated jobs, with known faults."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import attrs
import pytest

from framing import write_log
from processes import Process
from trackside.events import (
    ClockAnchored,
    CounterWindow,
    Event,
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    SourceStarted,
)
from windows import section_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

S = 10**9
START_NS = 1_700_000_000 * S
WINDOW_STEPS = 50


@attrs.define
class MadeUpJob:
    """
    A job of ranks that meet at the end of each step.

    Each number is that of a healthy job; a test changes one of them.
    """

    ranks: int = 4
    steps: int = 300
    forward_s: float = 0.04
    backward_s: float = 0.06
    loading_s: float = 0.002
    reduce_s: float = 0.008
    noise: float = 0.03
    save_every: int = 100
    save_s: float = 0.3
    validate_every: int = 0
    validation_s: float = 0.0
    imports_s: float = 0.0
    """The time of each process before its first span."""
    before_start_s: float = 0.0
    """The age of each process when the job was started in it."""
    setup_s: float = 0.5
    stumbles: float = 0.002
    """The share of steps that take three times as long for no reason."""
    factor: Callable[[int, int, str], float] = lambda rank, step, part: 1.0
    """By what a part of a step is longer on some rank from some step on."""
    killed_at: tuple[int, ...] = ()
    """The steps at which rank 1 is killed, one for each attempt."""
    recovery_s: float = 2.0
    memory: Callable[[int, int], float] = lambda rank, step: 8.0e9
    seed: int = 0
    run_id: str = "job"
    session_tag: str = "made-up"
    hangs_s: float = 0.0
    """The age of the last step, in progress, when the logs end."""
    between_s: float = 0.0
    """The time between steps that is in no span."""
    fetch_s: float = 0.0
    """The time in a span ``fetch`` before each step."""
    baseline: bool = False

    def write(self, directory: Path) -> Path:
        """Write the logs of all ranks and attempts; return the directory."""
        rng = random.Random(self.seed)
        at_ns, first = START_NS, 0
        for attempt, until in enumerate([*self.killed_at, self.steps]):
            is_killed = attempt < len(self.killed_at)
            at_ns = self._attempt(directory, rng, attempt, at_ns, range(first, until), is_killed=is_killed)
            first = until - until % self.save_every
            at_ns += round(self.recovery_s * S)
        return directory

    def _attempt(
        self, directory: Path, rng: random.Random, attempt: int, start_ns: int, steps: range, *, is_killed: bool
    ) -> int:
        sources = [
            Source(
                id=f"{self.seed:04x}{attempt:04x}{rank:08x}",
                run_id=self.run_id,
                session_tag=self.session_tag,
                attempt=attempt,
                rank=rank,
                world_size=self.ranks,
                host=f"node{rank // 2}",
                pid=100 + rank,
                application="made-up",
                baseline=self.baseline,
                before_start_s=self.before_start_s,
            )
            for rank in range(self.ranks)
        ]
        logs = [Rank(source, start_ns) for source in sources]
        for log in logs:
            log.began(round(self.imports_s * S), round(self.setup_s * S), attempt, steps.start)
        for step in steps:
            self._step(logs, rng, step)
        if self.hangs_s:
            for log in logs:
                log.hang(round(self.hangs_s * S), steps.stop)
        for log in logs:
            if not is_killed and not self.hangs_s:
                log.ended()
            elif is_killed and log.source.rank != 1:
                log.waited(S)
        for log in logs:
            write_log(directory, log.source, log.events)
        return max(log.at_ns for log in logs)

    def _step(self, logs: list[Rank], rng: random.Random, step: int) -> None:
        stumble = 3.0 if rng.random() < self.stumbles else 1.0
        lengths = []
        for log in logs:
            rank = log.source.rank
            means = {"data_loading": self.loading_s, "model_forward": self.forward_s, "model_backward": self.backward_s}
            lengths.append(
                {
                    name: round(S * mean * stumble * max(0.2, rng.gauss(1, self.noise)) * self.factor(rank, step, name))
                    for name, mean in means.items()
                }
            )
        reduce_ns = round(S * self.reduce_s * self.factor(-1, step, "all_reduce"))
        slowest = max(sum(parts.values()) for parts in lengths)
        for log, parts in zip(logs, lengths, strict=True):
            waited = slowest - sum(parts.values()) + reduce_ns
            if self.fetch_s:
                log.spent("fetch", round(self.fetch_s * S), -1)
            log.step(step, {**parts, "all_reduce": waited})
            if self.between_s:
                log.at_ns += round(self.between_s * S)
            if not step % 10:
                log.counted(step, self.memory(log.source.rank, step))
            if (step + 1) % self.save_every == 0 and self.save_s:
                log.spent("checkpoint_save_sync", round(self.save_s * S), -1, current_iteration=step)
            if self.validate_every and (step + 1) % self.validate_every == 0:
                log.spent("validation_loop", round(self.validation_s * S), step)


class Rank(Process):
    """The events of one rank."""

    def __init__(self, source: Source, at_ns: int) -> None:
        super().__init__(source, at_ns=at_ns)
        self.add(SourceStarted, identity=source.to_wire())
        self.window: dict[str, list[float]] = {}

    def began(self, imports_ns: int, setup_ns: int, attempt: int, first_step: int) -> None:
        """Begin: the process starts up."""
        self.read_clock()
        self.at_ns += imports_ns
        self.spent("model_initialization", setup_ns, -1)
        if attempt:
            self.spent("checkpoint_load", setup_ns // 2, -1, current_iteration=first_step - 1)

    def read_clock(self) -> None:
        """Read the clocks."""
        self.add(ClockAnchored, mono_ns=1, wall_ns=self.at_ns, offset_ns=0, uncertainty_ns=100)

    def spent(self, name: str, length_ns: int, step: int, **attributes: Any) -> None:
        """Spend time in a span."""
        self.spend_long(name, length_ns, step=step, attributes=attributes)

    def step(self, step: int, parts: dict[str, int]) -> None:
        """Make one step."""
        iteration, began_ns = next(self.ids), self.at_ns
        for name, length_ns in parts.items():
            self.window.setdefault(name, []).append(float(length_ns))
            if name == "all_reduce":
                self.at_ns += length_ns
            else:
                self.spend(name, length_ns, parent=iteration, step=step)
        duration_ns, loss = self.at_ns - began_ns, 2.0 / (step + 1)
        self.add(IterationEnded, step=step, span_id=iteration, duration_ns=duration_ns, samples=32, loss=loss)
        if (step + 1) % WINDOW_STEPS == 0:
            start_ns = self.at_ns - round(sum(map(sum, self.window.values())))
            place = {"window": step // WINDOW_STEPS, "steps": WINDOW_STEPS, "start_ns": start_ns, "at_ns": self.at_ns}
            self.put(section_window(self.window, waits=["all_reduce"], **place))
            self.window = {}

    def counted(self, step: int, value: float) -> None:
        """Record the memory."""
        reported: dict[str, Any] = {
            "name": "process.memory.usage",
            "unit": "By",
            "count": 1,
            "values": {"mean": value, "max": value},
        }
        self.add(
            CounterWindow, start_ns=self.at_ns - S, end_ns=self.at_ns, total_count=step + 1, total_sum=value, **reported
        )

    def hang(self, length_ns: int, step: int) -> None:
        """Hang in a span, still alive and reading the clock."""
        self.start_span("save_to_bucket" if self.source.rank == 2 else "waiting", step=step)
        self.at_ns += length_ns
        self.read_clock()
        self.add(Heartbeat, sequence=0)

    def waited(self, length_ns: int) -> None:
        """Wait, alive."""
        self.at_ns += length_ns
        self.add(Heartbeat, sequence=0)

    def ended(self) -> None:
        """End well."""
        self.add(SourceEnded, reason="closed")


@pytest.fixture(scope="session")
def make_job() -> type[MadeUpJob]:
    """Give the class of generated jobs."""
    return MadeUpJob


@pytest.fixture(scope="session")
def write_events() -> Callable[[Path, Source, Iterable[Event]], Path]:
    """Give the function that writes the events of one process."""
    return write_log


@pytest.fixture
def made_up(tmp_path: Path) -> Callable[..., Path]:
    """Give a function that writes a generated job and returns its directory."""

    def write(name: str = "job", **changes: Any) -> Path:
        return MadeUpJob(**changes).write(tmp_path / name)

    return write
