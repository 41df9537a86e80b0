"""From a publisher in one process to a viewer in another: logged here, decoded to events there."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator

import zmq

import trackside
from benchmarks.measure import Row, Run, budget, compared, interleaved
from trackside.cli._serving import collecting_rarely
from trackside.events import Source
from trackside.handlers.zeromq import new_keys
from trackside.job import Remote
from trackside.job._remote_access import RemoteAccess

_LOOPS = 80_000
_SLICE = 4_000
"""Logged before the next flush: far less than the queue holds, so nothing is dropped."""
_BATCH = 64
_RAW = bytes(200)
_COUNT = struct.Struct("<q")


@trackside.event("benchmark.step.watched")
class StepWatched(trackside.Event):
    """An event of two fields."""

    loss: float
    tokens: int


def rows() -> list[Row]:
    """Measure, and return the rows."""
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.chmod(0o700)
        new_keys(directory / "keys")
        runs: dict[str, Run] = {
            "plain": stack.enter_context(_watched(f"ipc://{directory}/plain", None)),
            "CURVE": stack.enter_context(_watched("tcp://127.0.0.1:*", directory / "keys")),
            "pyzmq": stack.enter_context(_raw(f"ipc://{directory}/raw")),
        }
        times = interleaved(runs, loops=_LOOPS)
    return [
        compared(
            "an event to a remote viewer, decoded (0.4 M/s: 2,500 ns)",
            times,
            "plain",
            "pyzmq",
            budget(compiled=3.0, pure=10.0),
        ),
        compared("the same with CURVE, over TCP", times, "CURVE", "plain", 1 / 0.3),
    ]


@contextlib.contextmanager
def _watched(endpoint: str, keys: pathlib.Path | None) -> Iterator[Run]:
    """Return a function that logs events and returns when a viewer in another process has all of them."""
    bus = trackside.Bus()
    source = Source.detect({})
    with tempfile.TemporaryDirectory() as directory:
        config = Remote(publish=endpoint, keys=keys)
        remote = RemoteAccess(config, bus=bus, source=source, directory=pathlib.Path(directory))
    reached = remote.endpoints[0]
    with _other_process(lambda report: _view(reached, keys, report)) as wait_for:
        while not bus.wants(StepWatched):
            pass
        wait_for(0)

        def run(loops: int) -> None:
            for index in range(loops):
                bus.log(StepWatched(loss=2.5, tokens=4096))
                if index % _SLICE == _SLICE - 1:
                    bus.flush()
            bus.flush()
            wait_for(loops)

        yield run
    remote.close(1.0)
    stats = bus.stats()
    bus.close()
    if stats.lost:
        raise RuntimeError(f"{stats.lost} events were lost: the figures would be of less work")


def _view(endpoint: str, keys: pathlib.Path | None, report: Callable[[int], None]) -> None:
    # As `trackside attach` does: a process that only watches.
    with collecting_rarely(), trackside.attach(endpoint, to=StepWatched, keys=keys) as attachment:
        attachment.wait()
        report(0)
        while True:
            events = attachment.read(1.0)
            if attachment.lost:
                raise RuntimeError(f"{attachment.lost} events were skipped: the viewer is too slow for this loop")
            if events:
                report(len(events))


@contextlib.contextmanager
def _raw(endpoint: str) -> Iterator[Run]:
    """
    Return a function that sends messages of 200 bytes, 64 at a time, and returns when another process has counted them.
    """
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.sndhwm = 0
    socket.linger = 0
    socket.bind(endpoint)
    with _other_process(lambda report: _count(endpoint, report)) as wait_for:

        def run(loops: int) -> None:
            for _ in range(loops // _BATCH):
                socket.send(_RAW * _BATCH)
            wait_for(loops // _BATCH * _BATCH)

        yield run
    socket.close()
    context.term()


def _count(endpoint: str, report: Callable[[int], None]) -> None:
    socket = zmq.Context().socket(zmq.PULL)
    socket.rcvhwm = 0
    socket.connect(endpoint)
    while True:
        data = socket.recv()
        report(sum(1 for _ in range(0, len(data), len(_RAW))))


@contextlib.contextmanager
def _other_process(work: Callable[[Callable[[int], None]], None]) -> Iterator[Callable[[int], None]]:
    """Run *work* in a child; yield a function that waits until the child has reported so many more events."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            work(lambda count: _tell(writable, count))
        finally:
            os._exit(1)
    os.close(writable)

    def wait_for(count: int) -> None:
        while True:
            data = os.read(readable, _COUNT.size)
            if not data:
                raise RuntimeError("the other process ended")
            count -= _COUNT.unpack(data)[0]
            if count <= 0:
                return

    try:
        yield wait_for
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(readable)


def _tell(fd: int, count: int) -> None:
    os.write(fd, _COUNT.pack(count))
