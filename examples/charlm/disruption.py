"""
The disruption: once, one rank is killed without warning, as machines do it.

The process that kills records the truth here. Telemetry does not read it, and has to find out by itself.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import attrs

from charlm.laps import Lap


@attrs.frozen
class Kill:
    """The truth about the kill, as the killed rank knew it."""

    rank: int
    step: int
    """The one it was about to begin."""
    at_s: float
    """In seconds since the epoch."""
    resumes_at: int
    """The step after the latest checkpoint: where the next attempt has to go on."""
    lost_s: float
    """The time that the steps from there on had taken."""
    longest_step_s: float
    """Of those."""

    def broken_s(self, out: Path) -> float:
        """Return how long the others were in the step that it did not begin, until they noticed."""
        path = out / "witness.json"
        return max(0.0, json.loads(path.read_text())["noticed_s"] - self.at_s) if path.exists() else 0.0

    @classmethod
    def load(cls, out: Path) -> Kill | None:
        """Read the record of the killed rank; None if none was killed."""
        path = out / "kill.json"
        return cls(**json.loads(path.read_text())) if path.exists() else None


def kill_this_rank(out: Path, *, rank: int, laps: Sequence[Lap], step: int, resumes_at: int) -> NoReturn:
    """Record the truth and die, with the data loading processes, as if the machine had lost its power."""
    lost = [lap.lasted_s for lap in laps if lap.step >= resumes_at]
    kill = Kill(rank, step, time.time(), resumes_at, lost_s=sum(lost), longest_step_s=max(lost, default=0.0))
    (out / "kill.json").write_text(json.dumps(attrs.asdict(kill)))
    print(f"  rank {rank} is killed before its step {step}", flush=True)
    os.killpg(os.getpid(), signal.SIGKILL)  # torchrun gives each rank a process group of its own
    raise AssertionError  # nobody survives that


@contextmanager
def witness(out: Path) -> Iterator[None]:
    """If the training breaks off because another rank was killed, record when this one noticed."""
    try:
        yield
    except RuntimeError:
        noticed_s = time.time()
        if Kill.load(out) is not None:
            (out / "witness.json").write_text(json.dumps({"noticed_s": noticed_s}))
        raise


@attrs.frozen
class Restart:
    """The truth about the attempt that goes on."""

    began_s: float
    """The time at which it switched telemetry on, in seconds since the epoch."""
    first_step: int

    def save(self, out: Path) -> None:
        """Write it to its file."""
        (out / "restart.json").write_text(json.dumps(attrs.asdict(self)))

    @classmethod
    def load(cls, out: Path) -> Restart | None:
        """Read the record of the restarted rank 0; None if there was none."""
        path = out / "restart.json"
        return cls(**json.loads(path.read_text())) if path.exists() else None


class Request:
    """
    Torchrun's request to end, which it makes when another rank has died.

    It is only noted when it comes: an exception at any moment could interrupt the closing of a file.
    """

    def __init__(self) -> None:
        self._is_made = False
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  as the signal module has it
        self._is_made = True

    def exit_if_requested(self) -> None:
        """End, if that is asked for."""
        if self._is_made:
            raise SystemExit(128 + signal.SIGTERM)


def leave_ending_to_rank(worker: int) -> None:  # noqa: ARG001  as DataLoader calls it
    """Let a data loading process go on when torchrun's request comes: its rank may need it, and will end it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
