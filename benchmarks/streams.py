"""
Frames to a stream in NATS JetStream and on to a worker: the processor time of each process for a frame.

Beside a plain program with nats-py that publishes, or fetches, the same bytes: in a burst, and at the pace of ranks
that step. ``interleaved`` does not do here: what counts is not how long it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.load import processor_s
from benchmarks.measure import Row, compared
from benchmarks.simulated import Writer
from trackside.events import Source
from trackside.handlers.export import encoded_source
from trackside.handlers.nats import NatsCollector, NatsSink
from trackside.handlers.nats._stream import create_stream, message_headers
from trackside.wire import encode_frame

_REPEATS = 5
_BURST = 2_000
_RANKS = 16
_PACED = 25
_PAUSE_S = 0.2
"""Between two frames of a rank, as a bus cuts them."""
EVENTS = 2
"""In a frame: ten a second and rank."""
_WAIT_S = 60.0
_PORT = 24_222
STREAM = "benchmark"
_TRIALS = ((f"{_BURST:,} at once", 1, _BURST, 0.0), (f"{_RANKS} ranks, 5 a second each", _RANKS, _PACED, _PAUSE_S))


class Rank:
    """A source and its frames, one after another."""

    def __init__(self, rank: int, run: str = "run", writer: Writer | None = None) -> None:
        self.source = Source.detect({}, run_id=run, rank=rank, world_size=_RANKS, application="benchmark")
        self.subject = f"{STREAM}.{run}.{rank}.{self.source.id}"
        self._source_json = encoded_source(self.source)
        self._writer = writer or Writer()
        self._next = 0

    def frame(self) -> tuple[bytes, dict[str, str]]:
        """Return the next frame and the headers of its message."""
        first = self._next
        self._next += EVENTS
        schemas, rows = self._writer.iterations(first, EVENTS)
        frame = encode_frame(self.source.id, first, self._next - 1, dropped={}, schemas=schemas, rows=rows)
        return frame, message_headers(self.source.id, first, self._source_json)


Publish = Callable[[int, float], object]
"""Publishes so many frames of each rank, with a pause between two, and has them acknowledged."""


def rows() -> list[Row]:
    """Measure, and return the rows."""
    found = []
    for trial, ranks, frames, pause_s in _TRIALS:
        rank_ns: dict[str, list[float]] = defaultdict(list)
        server_ns: dict[str, list[float]] = defaultdict(list)
        with _server() as (server, pid), _sinks(server, ranks) as ours, _clients(server, ranks) as theirs:
            for _ in range(_REPEATS):
                for who, publish in (("ours", ours), ("nats-py", theirs)):
                    began_s, server_began_s = time.process_time(), processor_s(pid)
                    publish(frames, pause_s)
                    rank_ns[who].append((time.process_time() - began_s) * 1e9 / (ranks * frames))
                    server_ns[who].append((processor_s(pid) - server_began_s) * 1e9 / (ranks * frames))
        found += [
            compared(f"NATS: a frame, {trial}: the rank", rank_ns, "ours", "nats-py", 4.0),
            compared(f"NATS: a frame, {trial}: the server", server_ns, "ours", "nats-py", 4.0),
        ]
    return [*found, _worker()]


def _worker() -> Row:
    """Measure a worker that reads a run from the beginning, beside a client that fetches its messages."""
    times: dict[str, list[float]] = {"ours": [], "nats-py": []}
    for _ in range(_REPEATS):
        with _server() as (server, _):
            with _clients(server, 1) as publish:
                publish(_BURST, 0.0)
            began_s = time.process_time()
            _collect(server)
            times["ours"].append((time.process_time() - began_s) * 1e9 / _BURST)
            began_s = time.process_time()
            asyncio.run(_fetch(server))
            times["nats-py"].append((time.process_time() - began_s) * 1e9 / _BURST)
    return compared(f"NATS: a frame of {EVENTS} events, read: a worker", times, "ours", "nats-py", 5.0)


def _collect(server: str) -> None:
    with NatsCollector(f"{server}/{STREAM}") as collector:
        thread = threading.Thread(target=collector.serve)
        thread.start()
        deadline_s = time.monotonic() + _WAIT_S
        while collector.counts["messages"] < _BURST and time.monotonic() < deadline_s:
            time.sleep(0.01)
        collector.stop()
        thread.join(_WAIT_S)
        if collector.counts["messages"] < _BURST:
            raise RuntimeError("the worker did not read it")


async def _fetch(server: str) -> None:
    client = await nats.connect(server)
    try:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        reading = await client.jetstream().pull_subscribe(f"{STREAM}.>", stream=STREAM, config=config)
        count = 0
        while count < _BURST:
            count += len(await reading.fetch(64))
    finally:
        await client.close()


def server_program() -> str:
    """Return the path of nats-server."""
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise RuntimeError("nats-server is not installed")
    return program


@contextlib.contextmanager
def _server() -> Iterator[tuple[str, int]]:
    """Start a server, and give its URL and the number of its process."""
    url = f"nats://127.0.0.1:{_PORT}"
    with tempfile.TemporaryDirectory() as directory:
        command = [server_program(), "-a", "127.0.0.1", "-p", str(_PORT), "-js", "-sd", directory]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603  ourselves
            try:
                asyncio.run(_create(url))
                yield url, process.pid
            finally:
                process.kill()


async def _create(url: str) -> None:
    client = await nats.connect(url, error_cb=_ignore)  # it tries again until the server listens
    await create_stream(client.jetstream(), STREAM)
    await client.close()


async def _ignore(_: Exception) -> None:
    pass


@contextlib.contextmanager
def _sinks(server: str, ranks: int) -> Iterator[Publish]:
    with contextlib.ExitStack() as stack:
        each = []
        for rank in map(Rank, range(ranks)):
            sink = NatsSink(server, stream=STREAM)
            sink.open(rank.source)
            stack.callback(sink.close)
            each.append((rank, sink))

        def publish(frames: int, pause_s: float) -> None:
            for _ in range(frames):
                for rank, sink in each:
                    sink.accept(rank.frame()[0], events=EVENTS)
                time.sleep(pause_s)
            if not all(sink.flush(_WAIT_S) for _, sink in each):
                raise RuntimeError("the server did not acknowledge it")

        publish(10, 0.0)
        yield publish


@contextlib.contextmanager
def _clients(server: str, ranks: int) -> Iterator[Publish]:
    each = [Rank(rank) for rank in range(ranks)]
    loop = asyncio.new_event_loop()
    clients = [loop.run_until_complete(nats.connect(server)) for _ in each]
    streams = [client.jetstream() for client in clients]

    async def publish_one(stream: Any, rank: Rank, frames: int, pause_s: float) -> None:
        await asyncio.sleep(pause_s * rank.source.rank / ranks)  # not all at the same moment
        for _ in range(frames):
            frame, headers = rank.frame()
            await stream.publish(rank.subject, frame, headers=headers)
            await asyncio.sleep(pause_s)

    async def publish(frames: int, pause_s: float) -> None:
        await asyncio.gather(*(publish_one(*one, frames, pause_s) for one in zip(streams, each, strict=True)))

    try:
        loop.run_until_complete(publish(10, 0.0))
        yield lambda frames, pause_s: loop.run_until_complete(publish(frames, pause_s))
    finally:
        for client in clients:
            loop.run_until_complete(client.close())
        loop.close()
