"""Streams over bad connections and to bad viewers: no event is wrong, and losses are counted."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq

import trackside
from trackside.cli._serving import collecting_rarely
from trackside.handlers.zeromq._protocol import Hello, Ping, Subscribe, Verb, encode
from trackside.wire import wire_name_of

pytestmark = pytest.mark.once

STEP = "test.step.taken"
VIEWER = Path(__file__).parent / "scripts" / "viewer.py"
MIB = 1 << 20


def numbers(events):
    return [event.number for event in events if wire_name_of(event) == STEP]


class BadConnection(threading.Thread):
    """
    A connection between one viewer and a publisher that loses, repeats and reorders messages, and breaks.

    Both ways: one in a hundred messages is dropped and one repeated, and every eight are shuffled. Every second the
    connection to the publisher is cut and made anew, so that the publisher does not recognise the viewer.
    """

    def __init__(self, endpoint, socket_directory, seed):
        super().__init__(daemon=True)
        self.endpoint = f"ipc://{socket_directory}/bad{seed}"
        self.rng = random.Random(seed)
        self.is_good = False
        self.is_over = False
        self.faults = {"dropped": 0, "repeated": 0, "cuts": 0}
        self._publisher = endpoint
        self._sockets = zmq.Context()
        self._front = self._sockets.socket(zmq.ROUTER)
        self._front.linger = 0
        self._front.bind(self.endpoint)
        self._viewer = None

    def _connect(self):
        back = self._sockets.socket(zmq.DEALER)
        back.linger = 0
        back.connect(self._publisher)
        return back

    def run(self):
        """Forward messages until it is stopped."""
        back, cut_s = self._connect(), time.monotonic() + 1.0
        held = {"up": [], "down": []}
        while not self.is_over:
            if not self.is_good and time.monotonic() >= cut_s:
                back.close(0)
                self.faults["cuts"] += 1
                time.sleep(0.1)
                back, cut_s = self._connect(), time.monotonic() + 1.0
            poller = zmq.Poller()
            poller.register(self._front, zmq.POLLIN)
            poller.register(back, zmq.POLLIN)
            ready = dict(poller.poll(20))
            if self._front in ready:
                self._viewer, *parts = self._front.recv_multipart()
                held["up"].append(parts)
            if back in ready:
                held["down"].append(back.recv_multipart())
            for direction, messages in held.items():
                if len(messages) >= 8 or not ready:
                    for parts in self._spoilt(messages):
                        if direction == "up":
                            back.send_multipart(parts)
                        else:
                            self._front.send_multipart([self._viewer, *parts])
                    messages.clear()
        for each in (back, self._front):
            each.close(0)
        self._sockets.term()

    def _spoilt(self, messages):
        if self.is_good:
            return list(messages)
        recorded = []
        for parts in messages:
            luck = self.rng.random()
            self.faults["dropped"] += luck < 0.01
            self.faults["repeated"] += luck > 0.99
            recorded += [parts] * (0 if luck < 0.01 else 2 if luck > 0.99 else 1)
        self.rng.shuffle(recorded)
        return recorded


class TestBadConnection:
    def test_nothing_is_wrong(self, here, attached, socket_directory, seed, request):
        """Over a connection that drops, repeats, reorders and cuts, each event comes once, in order, or is counted."""
        faults, scale = 0, request.getfixturevalue("scale")
        for turn in range(max(1, round(20 * scale))):
            job = here()
            connection = BadConnection(job.endpoint, socket_directory, seed + turn)
            connection.start()
            viewer = attached(connection.endpoint, to=STEP)
            assert viewer.wait(30.0)
            job.pace(per_s=20_000)
            end_s, events = time.monotonic() + (6.0 if scale >= 1 else 1.5), []
            while time.monotonic() < end_s:
                events += viewer.read(0.05)
            logged = job.stop_logging()
            connection.is_good = True
            # The job's queue drops some if the machine pauses, and the job then logs what is due at once.
            while len(events := events + viewer.read(0.1)) + viewer.lost + viewer.dropped < logged:
                assert time.monotonic() < end_s + 30.0

            got = numbers(events)
            assert got == sorted(set(got))
            assert len(got) + viewer.lost + viewer.dropped == logged
            faults += sum(connection.faults.values())
            viewer.close()
            connection.is_over = True
            connection.join(10.0)
        assert faults > 0


@pytest.fixture
def other_viewer():
    """Give a function that starts a viewer in a process of its own; killed after the test."""
    started = []

    def start(endpoint):
        process = subprocess.Popen(
            [sys.executable, str(VIEWER), endpoint, STEP], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def only_watching():
    """Let this process collect garbage as `trackside attach` does: not through a test run's heap at every frame."""
    with collecting_rarely():
        yield


@pytest.mark.once
class TestStoppedViewer:
    def test_costs_its_window(self, jobs, attached, other_viewer):
        """
        A viewer that is stopped costs the job a bounded amount and the other viewers nothing.

        When it goes on it gets the latest events, and the exact number of those that it does not get.
        """
        job = jobs(models=False)
        stopped = other_viewer(job.endpoint)
        viewer = attached(job.endpoint, to=STEP)
        assert viewer.wait(60)
        job.log(count=2000, size=2000)
        events = []
        while len(events) < 2000:
            events += viewer.read(5.0)
        before = job.memory()[1]
        os.kill(stopped.pid, signal.SIGSTOP)
        for _ in range(10):
            logged = job.log(count=1000, size=2000)
            while len(events) < logged:
                events += viewer.read(5.0)
        grown = job.memory()[1] - before
        os.kill(stopped.pid, signal.SIGCONT)
        logged = job.log(count=10)
        while len(events) < logged:
            events += viewer.read(5.0)
        viewer.close()
        job.end()
        job.close(timeout_s=10.0)
        recorded = json.loads(stopped.stdout.readline())

        assert grown <= 16 * MIB
        assert viewer.lost == 0
        assert len(events) == logged
        assert recorded["lost"] > 0
        assert recorded["count"] + recorded["lost"] == logged
        assert recorded["in_order"]
        assert recorded["last"] == logged - 1
        assert recorded["reasons"] == ["this viewer was too slow"]

    @pytest.mark.usefixtures("only_watching")
    def test_beside_a_steady_stream(self, jobs, attached, other_viewer, scale):
        """
        A viewer is stopped for a minute while a job goes on: the job does not grow, and each viewer's count is exact.
        """
        job = jobs(models=False)
        stopped = other_viewer(job.endpoint)
        viewer = attached(job.endpoint, to=STEP)
        assert viewer.wait(60)
        job.pace(per_s=50_000 if scale >= 1 else 20_000)
        count, lags_ms, before = 0, [], 0

        def read(seconds):
            nonlocal count
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                events = viewer.read(0.05)
                count += len(events)
                now_ns = trackside.events.clock.now_ns()
                lags_ms.extend((now_ns - event.at_ns) / 1e6 for event in events[::20])

        read(1.0)
        before = job.memory()[1]
        os.kill(stopped.pid, signal.SIGSTOP)
        read(60 * scale)
        grown = job.memory()[1] - before
        os.kill(stopped.pid, signal.SIGCONT)
        read(2.0)
        logged = job.stop_logging()
        dropped = job.stats()["lost"]
        end_s = time.monotonic() + 60
        while count + viewer.lost < logged - dropped and time.monotonic() < end_s:
            count += len(viewer.read(0.1))
        viewer.close()
        job.end()
        job.close(timeout_s=20.0)
        recorded = json.loads(stopped.stdout.readline())
        lags_ms.sort()
        print(
            f"{logged:,} logged, {dropped:,} dropped in the job, which grew by {grown >> 10:,} KiB; "
            "lag of the other viewer: "
            f"p50 {lags_ms[len(lags_ms) // 2]:.1f} ms, p99 {lags_ms[len(lags_ms) * 99 // 100]:.1f} ms, "
            f"it lost {viewer.lost:,}; the stopped one: {recorded}"
        )

        assert grown <= 16 * MIB
        assert count + viewer.lost == logged - dropped
        assert recorded["count"] + recorded["lost"] == logged - dropped
        assert recorded["in_order"]
        assert dropped or recorded["last"] == logged - 1

    def test_job_ends_in_time(self, jobs, other_viewer):
        """A job with a stopped viewer, and one with a killed viewer, ends within its bound."""
        job = jobs(models=False)
        stopped, killed = other_viewer(job.endpoint), other_viewer(job.endpoint)
        os.kill(stopped.pid, signal.SIGSTOP)
        killed.kill()
        job.log(count=20_000, size=500)
        elapsed_s, done = job.close(timeout_s=1.0)

        assert not done
        assert elapsed_s < 30
        assert job.leave() == 0


class TestSlowViewer:
    def test_models_are_not_left_with_a_hole(self, here, attached, states):
        """
        A viewer that skipped events brings its models up to date from a new snapshot, and reports how many it skipped.
        """
        from trackside.handlers.models import TrainingMetrics

        model = TrainingMetrics()
        job = here(models=True, ring_bytes=1 << 20)
        viewer = attached(job.endpoint, models=[model])
        assert viewer.wait(60)
        for _ in range(8):
            job.work(seed=1, steps=5)
            job.log(count=4000, size=500)
        job.work(seed=2, steps=50)
        events, end_s = [], time.monotonic() + 30.0
        while not viewer.lost or states([model]) != {"TrainingMetrics": states(job.dumps())["TrainingMetrics"]}:
            events += viewer.read(0.1)
            assert time.monotonic() < end_s
        job.end()
        job.close()
        events += list(viewer)

        assert viewer.models["TrainingMetrics"].complete
        assert states([model])["TrainingMetrics"] == states(job.dumps())["TrainingMetrics"]
        assert len({(event.source.id, event.seq) for event in events}) == len(events)
        assert len(events) + viewer.lost == job.stats()["published"]


class TestHostilePeers:
    def raw(self, context, endpoint):
        """Return a socket that connects to a job without following the protocol."""
        peer = context.socket(zmq.DEALER)
        peer.linger = 0
        peer.connect(endpoint)
        return peer

    def test_whatever_is_sent(self, jobs, attached, read_until, *, until, rng, scaled):
        """Peers that send garbage, floods, giant messages and endless handshakes change nothing (S7)."""
        job = jobs(models=False)
        viewer = attached(job.endpoint, to=STEP)
        assert viewer.wait(60)
        before = job.memory()[1]
        with zmq.Context() as context:
            peer = self.raw(context, job.endpoint)
            for _ in range(scaled(5000)):
                peer.send_multipart([rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(1, 5))])
            hello = Hello(2, "viewer", "x" * 16, "somebody")
            peer.send_multipart(encode(hello))
            for asked in (["nothing", "["], [], ["*"]):
                peer.send_multipart(encode(Subscribe(len(asked), asked, 77, ["every", -1], ["X"] * 9, "", 0, 1 << 40)))
            peer.send_multipart(encode(Verb(1, "priority", [], {"level": "PROFILE"})))
            for _ in range(scaled(20_000)):
                peer.send_multipart(encode(Ping(0)))
            giant = self.raw(context, job.endpoint)
            giant.send(bytes(2 * MIB))
            others = [self.raw(context, job.endpoint) for _ in range(70)]
            for number, other in enumerate(others):
                other.send_multipart(encode(Hello(2, "viewer", f"{number:016}", "one of many")))
                other.send_multipart(encode(Hello(9, "viewer", f"{number:016}", "from the future")))
            plain = socket.socket(socket.AF_UNIX)
            plain.connect(job.endpoint.removeprefix("ipc://"))
            plain.sendall(rng.randbytes(1000))
            job.log(count=100)
            got = numbers_of(read_until(viewer, lambda events: len(events) >= 100))
            until(lambda: job.stats()["remote"][0].keys() >= {"malformed", "refused"})
            plain.close()
            for each in (peer, giant, *others):
                each.close(0)

        assert got == list(range(100))
        (counts,) = job.stats()["remote"]
        assert counts["viewers"] <= 64
        assert job.memory()[1] - before <= 16 * MIB


def numbers_of(events):
    return [event.fields["number"] if hasattr(event, "fields") else event.number for event in events][-100:]


class TestForks:
    def test_child_publishes_nothing(self, here, attached, read_until):
        """Events of a forked child are not sent as the parent's, and neither end notices the child's end."""
        job = here()
        viewer = attached(job.endpoint, to=STEP)
        assert viewer.wait(60)
        job.log(count=1)
        read_until(viewer, lambda events: len(events) >= 1)
        child = os.fork()
        if not child:
            is_quiet = not job.bus.wants(job.Step)
            job.log(count=100)
            job.close()
            job.bus.close()
            os._exit(not is_quiet)
        assert os.waitpid(child, 0)[1] == 0
        job.log(count=3)

        assert numbers(read_until(viewer, lambda events: len(numbers(events)) >= 3)) == [1, 2, 3]
        assert viewer.lost == 0
        assert trackside.events.process_source().role == "main"
