"""
Hostile peers that were admitted: endless messages, floods of connections and of requests.

The attacked job, or a job that sends to the attacked collector, goes on logging; it grows by at most 16 MiB, and its
events arrive.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import socket
import struct
import subprocess
import threading
from pathlib import Path

import pytest
import zmq

from trackside.handlers import check_logs
from trackside.handlers.zeromq._connection import new_context
from trackside.handlers.zeromq._protocol import Hello, Subscribe, encode

pytestmark = pytest.mark.once

STEP = "test.step.taken"
MIB = 1 << 20
PACE_PER_S = 1000


@pytest.fixture
def attacked(jobs, attached, read_until):
    """Give a job at work with a viewer; all events logged during the attack must have arrived, in bounds."""
    job = jobs(models=False)
    viewer = attached(job.endpoint, to=STEP)
    assert viewer.wait(60)
    job.log(count=4000, size=500)
    read_until(viewer, lambda events: len(events) == 4000)
    before = job.memory()
    job.pace(per_s=PACE_PER_S)
    yield job
    events = read_until(viewer, lambda events: len(events) >= PACE_PER_S // 2)
    logged = job.stop_logging() - 4000
    events += read_until(viewer, lambda more: len(events) + len(more) + viewer.lost >= logged)
    numbers = [event.fields["number"] if hasattr(event, "fields") else event.number for event in events]
    assert viewer.lost == 0
    assert numbers == list(range(4000, 4000 + logged))
    assert job.stats()["lost"] == 0
    grown = [after - first for first, after in zip(before, job.memory(), strict=True)]
    print(f"{logged:,} steps meanwhile; peak and present grew by {[size >> 10 for size in grown]} KiB")
    assert max(grown) <= 16 * MIB


def _greeting():
    """Return the first bytes that a ZMTP 3.0 peer without any security sends."""
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER" + b"\x08Identity" + struct.pack(">I", 0)
    return (
        b"\xff"
        + bytes(8)
        + b"\x7f\x03\x00NULL".ljust(23, b"\0")
        + b"\0"
        + bytes(31)
        + b"\x04"
        + bytes([len(ready)])
        + ready
    )


def _message(parts):
    """Return *parts*, each shorter than 256 bytes, as ZMTP sends them."""
    last = len(parts) - 1
    return b"".join(bytes([number < last, len(part)]) + part for number, part in enumerate(parts))


def _reach(job):
    """Return a plain connection to a job."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(20)
    peer.connect(job.endpoint.removeprefix("ipc://"))
    return peer


class Supervised:
    """A process that is started again when it ends, until it is stopped."""

    def __init__(self, start):
        self._start = start
        self._is_ending = False
        self.codes = []
        self._process = start()
        self._process.stdout.readline()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._is_ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.codes.append(self._process.wait(0.1))
                if not self._is_ending:
                    self._process = self._start()
                    self._process.stdout.readline()

    def allow(self, more_bytes):
        """Limit the memory that the present process may take in addition."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more_bytes
        resource.prlimit(self._process.pid, resource.RLIMIT_AS, (most, most))

    def let_be(self):
        """Start it no more."""
        self._is_ending = True
        self._thread.join(30)

    def end(self):
        """End it; return the exit codes, of which there is one if it was never started again, and its output."""
        self.let_be()
        self._process.send_signal(signal.SIGTERM)
        output = self._process.communicate(timeout=100)
        return [*self.codes, self._process.returncode], output


@pytest.fixture
def supervised(command_line):
    """Give a function that starts `trackside` with some arguments, and again whenever it ends."""
    started = []

    def start(*arguments):
        started.append(Supervised(lambda: command_line(*arguments)))
        return started[-1]

    yield start
    for process in started:
        process.let_be()


class TestJob:
    def test_ten_thousand_visits(self, attacked, scaled):
        """Ten thousand peers connect, and close at once: before the handshake, after it, or after a greeting."""
        greeting = _greeting()
        for number in range(scaled(10_000)):
            hello = _message(encode(Hello(2, "viewer", f"{number:016}", "passing by")))
            with _reach(attacked) as peer, contextlib.suppress(ConnectionError, BrokenPipeError):
                peer.sendall((b"", greeting, greeting + hello)[number % 3])

        assert attacked.stats()["lost"] == 0

    def test_hundred_thousand_subscriptions(self, attacked, scaled):
        """One peer subscribes with a hundred thousand different filters."""
        with new_context() as context:
            peer = context.socket(zmq.DEALER)
            peer.linger = 0
            peer.sndhwm = 1000
            peer.connect(attacked.endpoint)
            peer.send_multipart(encode(Hello(2, "viewer", "x" * 16, "insatiable")))
            for number in range(scaled(100_000)):
                names = [f"test.{number}.{word}" for word in ("one", "two", "three")]
                peer.send_multipart(encode(Subscribe(number + 1, names, 1, None, [], "", 0, 1 << 22)))
            peer.close(0)

        assert attacked.stats()["lost"] == 0

    def test_message_without_an_end(self, attacked):
        """
        A peer of this user's sends parts of a message that never ends, until it has sent 8 MiB, and leaves.
        """
        with _reach(attacked) as peer:
            peer.sendall(_greeting())
            for _ in range(16):
                peer.sendall(b"\x03" + struct.pack(">Q", MIB // 2) + bytes(MIB // 2))

        assert attacked.stats()["lost"] == 0


@pytest.mark.integration
class TestCollector:
    def test_message_without_an_end_under_a_limit(self, supervised, jobs, tmp_path, free_port):
        """
        A collector with a limit of memory survives a message that never ends, or is started again, and has all events.
        """
        arguments = ("collect", "--bind", f"tcp://127.0.0.1:{free_port}", "--log", tmp_path / "log", "--insecure")
        collector = supervised(*arguments)
        job = jobs(publish=False, collector=f"tcp://127.0.0.1:{free_port}", insecure=True, models=False)
        job.log(count=1000)
        before = job.memory()
        job.pace(per_s=PACE_PER_S)
        collector.allow(128 * MIB)
        with socket.create_connection(("127.0.0.1", free_port)) as peer, contextlib.suppress(OSError):
            peer.settimeout(20)
            peer.sendall(_greeting())
            for _ in range(1000):
                peer.sendall(b"\x03" + struct.pack(">Q", MIB // 2) + bytes(MIB // 2))
        logged = job.stop_logging()
        job.end()
        _, done = job.close(timeout_s=30)
        codes, output = collector.end()

        report = next(one for one in check_logs(tmp_path / "log").sources if one.source.role == "main")
        assert (report.by_type[STEP], report.missing, done) == (logged, 0, True), output
        assert max(after - first for first, after in zip(before, job.memory(), strict=True)) <= 16 * MIB
        print(f"{logged:,} steps; the collector ended with {codes}")

    def test_ten_thousand_visits(self, collectors, jobs, until, scaled):
        """Ten thousand peers connect and close at a collector; events that a rank logs meanwhile all arrive."""
        collector = collectors()
        job = jobs(publish=False, collector=collector.endpoint, insecure=True, models=False)
        job.pace(per_s=PACE_PER_S)
        port, greeting = int(collector.endpoint.rpartition(":")[2]), _greeting()
        for number in range(scaled(10_000)):
            with socket.create_connection(("127.0.0.1", port), 20) as peer, contextlib.suppress(OSError):
                peer.sendall((b"", greeting)[number % 2])
        logged = job.stop_logging()

        until(lambda: len(collector.heard(STEP)) == logged)
        assert collector.totals()["lost"] == 0
