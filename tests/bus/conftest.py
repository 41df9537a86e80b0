"""Fixtures: a bus for each test, frame sinks, clocks that stand still, and scripts that may hang or crash."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from trackside.bus import Bus
from trackside.events import RunsOn
from trackside.wire import FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.bus._dispatcher import Dispatcher
    from trackside.events import Event, Source
    from trackside.wire import Frame

SCRIPTS = Path(__file__).parent / "scripts"
DEADLINE_S = 30.0


class RecordingFrameSink:
    """A frame sink that decodes the frames it gets, or refuses them."""

    def __init__(self) -> None:
        self.lost = 0
        self.accepts = True
        self.opened: list[Source] = []
        self.frames: list[tuple[bytes, int]] = []
        self.flushes = 0
        self.is_closed = False

    def open(self, source: Source) -> None:
        """Accept any source."""
        self.opened.append(source)

    def accept(self, frame: bytes, *, events: int) -> bool:
        """Keep *frame*."""
        if not self.accepts:
            return False
        self.frames.append((frame, events))
        return True

    def flush(self, timeout_s: float) -> bool:
        """Count the request."""
        self.flushes += 1
        return True

    def close(self, timeout_s: float) -> bool:
        """Note the end."""
        self.is_closed = True
        return True

    def after_fork(self, source: Source) -> None:
        """Forget the parent's frames."""
        self.frames = []

    def decoded(self) -> list[Frame]:
        """Return the frames, decoded."""
        decoder = FrameDecoder()
        return [decoder.decode(frame) for frame, _ in self.frames]

    def events(self, kind: type = object) -> list[Any]:
        """Return the events of all frames that are a *kind*."""
        return [event for frame in self.decoded() for event in frame.events if isinstance(event, kind)]


class Model:
    """A model that keeps the events it gets, and how many it missed."""

    runs_on = RunsOn.DISPATCHER

    def __init__(self, on_event: Callable[[Event], None] | None = None) -> None:
        self.events: list[Event] = []
        self.missed_events = 0
        self.threads: set[int] = set()
        self._on_event = on_event

    def __call__(self, event: Event) -> None:
        """Keep *event*, then do what the test wants."""
        self.threads.add(threading.get_ident())
        self.events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def missed(self, source: Source, count: int) -> None:
        """Note what was missed."""
        self.missed_events += count


class Gate:
    """A handler that blocks until the test releases it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Wait, then keep *event*."""
        self.entered.set()
        self.go_on.wait(DEADLINE_S)
        self.events.append(event)


@pytest.fixture
def make_bus() -> Iterator[Callable[..., Bus]]:
    """Give a function that makes buses; they are closed after the test, whatever is stuck."""
    made: list[Bus] = []

    def make(**options: Any) -> Bus:
        made.append(Bus(**options))
        return made[-1]

    yield make
    for bus in made:
        bus.close(0.2)


@pytest.fixture
def bus(make_bus: Callable[..., Bus]) -> Bus:
    """Give the test a bus of its own."""
    return make_bus()


@pytest.fixture
def frames() -> RecordingFrameSink:
    """Give a frame sink that keeps its frames."""
    return RecordingFrameSink()


@pytest.fixture
def make_frames() -> type[RecordingFrameSink]:
    """Give the class of frame sinks that keep their frames."""
    return RecordingFrameSink


@pytest.fixture
def model() -> Model:
    """Give a model that keeps what it gets."""
    return Model()


@pytest.fixture
def make_model() -> type[Model]:
    """Give the class of models that keep what they get."""
    return Model


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Give a handler that blocks until the test lets it go on, or is over."""
    gate = Gate()
    yield gate
    gate.go_on.set()


@pytest.fixture
def held_still() -> Iterator[Callable[[Bus], Callable[[], None]]]:
    """Give a function that keeps a bus's dispatcher from working until the test ends it, or is over."""
    held: list[Dispatcher] = []

    def hold(bus: Bus) -> Callable[[], None]:
        dispatcher = bus._dispatcher
        assert dispatcher.draining.acquire(timeout=DEADLINE_S)
        held.append(dispatcher)

        def release() -> None:
            held.remove(dispatcher)
            dispatcher.draining.release()

        return release

    yield hold
    for dispatcher in held:
        dispatcher.draining.release()


@pytest.fixture
def new_threads() -> Callable[[], set[threading.Thread]]:
    """Give a function that returns the threads that were started since, of which none is one of an earlier test."""
    before = set(threading.enumerate())
    return lambda: set(threading.enumerate()) - before


# From Python 3.15 on this warning, made an error, leaves fork() in the parent after the child was made: an executor
# then waits for ever for a child that is unknown.
_STRICT = ("-W", "error", "-W", "ignore:This process:DeprecationWarning", "-X", "faulthandler")


class Outcome:
    """The outcome of a script."""

    def __init__(self, process: subprocess.Popen[str], out: str, err: str) -> None:
        self.code = process.returncode
        self.out = out
        self.err = err

    @property
    def printed(self) -> list[Any]:
        """Return the JSON values it printed, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def start_script() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """
    Give a function that starts one of the scripts next to these tests.

    What of it still runs after the test is killed, its children too: they may outlive it, and hold its pipes.
    """
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *_STRICT, str(SCRIPTS / name), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        _signal_all(process, signal.SIGKILL)
        process.communicate()


def _signal_all(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to a script and its children, those too that outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@pytest.fixture
def run_script(start_script: Callable[..., subprocess.Popen[str]]) -> Callable[..., Outcome]:
    """Give a function that runs one of the scripts to its end."""

    def run(name: str, *arguments: object, timeout_s: float = 60.0, **environment: str) -> Outcome:
        process = start_script(name, *arguments, **environment)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _signal_all(process, signal.SIGABRT)  # faulthandler prints where every thread is
            out, err = process.communicate()
            pytest.fail(f"{name} {arguments} hangs:\n{out}\n{err}")
        return Outcome(process, out, err)

    return run
