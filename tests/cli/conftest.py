"""Fixtures: logs to read, and the command that reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import pytest

from trackside.bus import Bus
from trackside.cli import main
from trackside.events import ITERATION, Event, Source, event
from trackside.handlers import EventLog
from trackside.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

START_NS = 1_700_000_000 * 10**9
"""2023-11-14 22:13:20 UTC."""


@event("test.cli.stepped", priority=ITERATION)
class Stepped(Event):
    """An event of a step."""

    text: str = ""
    loss: float = 0.5


def make_source(rank: int = 0, **printed: Any) -> Source:
    """Return the source of a rank."""
    given: dict[str, Any] = {
        "run_id": "run-1",
        "host": "node-1",
        "pid": 100 + rank,
        "rank": rank,
        "world_size": 2,
        **printed,
    }
    return Source(id=f"{rank:016x}", **given)


@pytest.fixture(autouse=True)
def ids_that_are_printed(ids_as_given: None) -> None:
    """Let buses number under the ids that the tests give, which also order what has the same time."""


class Outcome(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines on stdout."""
        return self.out.splitlines()


@pytest.fixture
def write_log() -> Callable[..., Path]:
    """
    Give a function that records steps 0, 1, 2 … of a rank, a second apart, and returns the file.

    The process's clock stands still meanwhile, so that the first and the last event of the stream have that time too.
    """

    def write(
        directory: Path,
        *,
        rank: int = 0,
        steps: int = 3,
        offset_ns: int = 0,
        texts: Sequence[str] = (),
        **printed: Any,
    ) -> Path:
        log = EventLog(directory)
        at_ns = START_NS + offset_ns
        with FakeClock(at_ns).installed(), Bus(source=make_source(rank, **printed)) as bus:
            bus.subscribe(log)
            for step in range(steps):
                text = texts[step] if step < len(texts) else f"rank {rank}"
                bus.log(Stepped(text=text, at_ns=at_ns + step * 10**9, step=step, span_id=0))
        assert bus.stats().lost == 0
        return log.paths[0]

    return write


@pytest.fixture
def write_frames() -> Callable[..., Path]:
    """Give a function that writes a log of frames as a hostile process might make them; it returns the file."""

    def write(directory: Path, *frames: object, **printed: Any) -> Path:
        log = EventLog(directory)
        log.open(make_source(**printed))
        for frame in frames:
            assert log.accept(msgpack.packb(frame), events=1)
        assert log.close(60)
        return log.paths[0]

    return write


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Give a function that runs the command in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Give a function that starts the command in a process of its own; it is ended with the test."""
    children: list[subprocess.Popen[str]] = []

    def run(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        # A shell starts its background jobs with Ctrl-C ignored, and so the tests, and the programs that they start.
        listen = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        program = [sys.executable, "-c", listen + "from trackside.cli import main; sys.exit(main())"]
        streams: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }
        # As users run it: unbuffered output would hide data left in a buffer.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        child = subprocess.Popen([*program, *map(str, arguments)], **{**streams, "env": env, **options})
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def readable(tmp_path: Path, write_log: Callable[..., Path]) -> Path:
    """Give a log with three steps."""
    return write_log(tmp_path / "runs")


@pytest.fixture
def damaged(tmp_path: Path, write_log: Callable[..., Path]) -> Path:
    """Give a log with three steps, of which a part in the middle is damaged."""
    path = write_log(tmp_path / "damaged")
    data = bytearray(path.read_bytes())
    data[data.rfind(b"test.cli.stepped") + 20] ^= 0xFF
    path.write_bytes(data)
    return path


@pytest.fixture
def unreadable(tmp_path: Path) -> Path:
    """Give a file that is no log."""
    path = tmp_path / "notes.tslog"
    path.write_text("a shopping list, and nothing else\n" * 100)
    return path
