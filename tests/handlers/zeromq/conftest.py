"""Fixtures: jobs in processes of their own that follow commands, endpoints for sockets, and waiting with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import ports
import scripts
import trackside
import waiting
from trackside.handlers.zeromq import Collector, Forwarder
from trackside.handlers.zeromq._keys import new_keys
from trackside.wire import wire_name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trackside.events import Event
    from trackside.handlers.zeromq import Attachment

SCRIPTS = Path(__file__).parent / "scripts"
DEADLINE_S = 90.0


class RemoteJob:
    """A job in a process of its own; every method of `scripts/job.py` can be called on it."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPTS / "job.py"), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = self.process.pid
        self.endpoints = self._command("start", config)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda **arguments: self._command(name, arguments)

    def _command(self, verb: str, arguments: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([verb, arguments]) + "\n")
        line = self.process.stdout.readline()
        assert line, f"the job ended while it did {verb}"
        return json.loads(line)

    @property
    def endpoint(self) -> str:
        """Return the endpoint to which it was bound."""
        return str(self.endpoints[0])

    def leave(self) -> int:
        """Let it end; return its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(DEADLINE_S)
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        """Kill it if it still runs."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(OSError):
            self.process.stdin.close()


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """Give a directory of this user's alone, with a name short enough for sockets."""
    directory = tempfile.mkdtemp(prefix="ts-")
    yield Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Give a directory with all keys."""
    directory = tmp_path / "keys"
    new_keys(directory)
    return directory


@pytest.fixture
def jobs(socket_directory: Path) -> Iterator[Callable[..., RemoteJob]]:
    """Give a function that starts jobs; they are ended after the test, in any state."""
    started: list[RemoteJob] = []

    def start(**config: Any) -> RemoteJob:
        config.setdefault("publish", f"ipc://{socket_directory}/job{len(started)}")
        started.append(RemoteJob(socket_directory, **config))
        return started[-1]

    yield start
    for job in started:
        assert job.process.stdout is not None
        if job.process.poll() is None or not job.process.stdout.closed:
            job.kill()


@pytest.fixture(scope="session")
def scripted() -> Any:
    """Give the module of `scripts/job.py`."""
    return scripts.load(SCRIPTS / "job.py")


@pytest.fixture
def here(socket_directory: Path, scripted: Any) -> Iterator[Callable[..., Any]]:
    """Give a function that makes the same jobs in this process, which start faster; the sockets are real."""
    made: list[Any] = []

    def make(**config: Any) -> Any:
        config.setdefault("publish", f"ipc://{socket_directory}/here{len(made)}")
        config.setdefault("models", False)
        made.append(scripted.Job(socket_directory, **config))
        return made[-1]

    yield make
    for job in made:
        job.close(0.1)
        job.bus.close(0.5)


@pytest.fixture
def attached() -> Iterator[Callable[..., Attachment]]:
    """Give `attach`; the attachments are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *endpoints, **options: stack.enter_context(trackside.attach(*endpoints, **options))


@pytest.fixture
def states() -> Callable[[Any], dict[str, Any]]:
    """Give a function that returns, by name, the states that *models* dump, or those that a job printed of its own."""

    def unpacked(models: Any) -> dict[str, Any]:
        packed = (
            models if isinstance(models, dict) else {type(one).__name__: msgpack.packb(one.dump()) for one in models}
        )
        return {
            name: msgpack.unpackb(bytes.fromhex(state) if isinstance(state, str) else state, strict_map_key=False)
            for name, state in packed.items()
        }

    return unpacked


@pytest.fixture
def read_until() -> Callable[..., list[Event]]:
    """Give a function that reads from an attachment until *enough* is true of the events, and returns them."""

    def read(
        attachment: Attachment, enough: Callable[[list[Event]], bool], timeout_s: float = DEADLINE_S
    ) -> list[Event]:
        events: list[Event] = []
        deadline = time.monotonic() + timeout_s
        while not enough(events):
            assert time.monotonic() < deadline, f"{len(events)} events, lost {attachment.lost}, and then no more"
            assert not attachment.is_over or enough(events), f"it ended after {len(events)} events"
            events += attachment.read(0.1)
        return events

    return read


@pytest.fixture
def until() -> Callable[..., Any]:
    """Give a function that waits until a condition is true."""
    return waiting.until


class Served:
    """A collector or forwarder that serves on a thread, and the events that it received."""

    def __init__(self, server: Collector | Forwarder) -> None:
        self.server = server
        self.events: list[Event] = []
        if isinstance(server, Collector):
            server.models.append(self.events.append)
        self._thread = threading.Thread(target=server.serve, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server, name)

    def heard(self, kind: type | str, source_id: str | None = None) -> list[Any]:
        """Return the received events of a *kind*, by class or wire name."""
        return [
            event
            for event in list(self.events)
            if kind in {type(event), wire_name_of(event)} and source_id in {None, event.source.id}
        ]

    def end(self) -> bool:
        """Stop and close; safe to call twice."""
        self.server.stop()
        self._thread.join(DEADLINE_S)
        return self.server.close()


@pytest.fixture
def collectors() -> Iterator[Callable[..., Served]]:
    """Give a function that runs collectors in this process, insecure unless the test says otherwise."""
    with contextlib.ExitStack() as stack:

        def start(**options: Any) -> Served:
            if "keys" not in options:
                options.setdefault("insecure", True)
            options.setdefault("bind", "tcp://127.0.0.1:*")
            served = Served(Collector(options.pop("bind"), **options))
            stack.callback(served.end)
            return served

        yield start


@pytest.fixture
def forwarders() -> Iterator[Callable[..., Served]]:
    """Give a function that runs forwarders in this process, insecure unless the test says otherwise."""
    with contextlib.ExitStack() as stack:

        def start(to: str, **options: Any) -> Served:
            if "keys" not in options:
                options.setdefault("insecure", True)
            options.setdefault("bind", "tcp://127.0.0.1:*")
            served = Served(Forwarder(options.pop("bind"), to=to, **options))
            stack.callback(served.end)
            return served

        yield start


@pytest.fixture
def free_port() -> int:
    """Give a port that is free now."""
    return ports.free_port()


@pytest.fixture
def command_line() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """
    Give a function that starts `trackside` with some arguments; processes that still run are killed after the test.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        code = "import sys; from trackside.cli import main; sys.exit(main(sys.argv[1:]))"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
