from __future__ import annotations

import random
import threading
import time

import pytest
import zmq

from trackside.handlers.zeromq._connection import new_context, open_socket
from trackside.wire import fields_of

pytestmark = pytest.mark.integration

STEP = "test.step.taken"
SHARE = 0.05
"""
Of all messages, dropped; as many are repeated, and as many delayed. There are few: each holds thousands of events.
"""


class FaultyProxy:
    """
    Stands between a job and a collector: drops, repeats and reorders messages both ways, and cuts the connection.

    Args:
        upstream: The collector's endpoint.
        seed: Determines the faults.
        cut_every_s: Between two cuts, in each of which no message passes for a while and the connection is made anew.
        cut_s: The length of a cut.
    """

    def __init__(self, upstream, seed, *, cut_every_s, cut_s):
        self._rng = random.Random(seed)
        self._upstream = upstream
        self._cut_every_s = cut_every_s
        self._cut_s = cut_s
        self._context = new_context()
        self._front = open_socket(self._context, zmq.ROUTER, send_high_water=10_000, receive_high_water=10_000)
        self._front.bind("tcp://127.0.0.1:*")
        self.endpoint = (
            self._front.get_string(zmq.LAST_ENDPOINT).replace("[::ffff:127.0.0.1]", "127.0.0.1").rstrip("\0")
        )
        self._stop = threading.Event()
        self.is_kind = False
        self.faults = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _connect(self):
        back = open_socket(self._context, zmq.DEALER, send_high_water=10_000, receive_high_water=10_000)
        back.connect(self._upstream)
        return back

    def _run(self):
        back, address, held = self._connect(), None, []
        cut_s = time.monotonic() + self._cut_every_s
        while not self._stop.is_set():
            for socket in (self._front, back):
                if not socket.poll(5):
                    continue
                parts = socket.recv_multipart()
                if socket is self._front:
                    address, parts = parts[0], parts[1:]
                for sent in self._spoiled(held, (socket is self._front, parts)):
                    self._pass(sent, back, address)
            if time.monotonic() > cut_s and not self.is_kind:
                back.close(0)
                self.faults += 1
                self._stop.wait(self._cut_s)
                back, held, cut_s = self._connect(), [], time.monotonic() + self._cut_every_s
        back.close(0)

    def _pass(self, message, back, address):
        is_upward, parts = message
        try:
            if is_upward:
                back.send_multipart(parts, zmq.DONTWAIT)
            elif address is not None:
                self._front.send_multipart([address, *parts], zmq.DONTWAIT)
        except zmq.ZMQError:
            self.faults += 1

    def _spoiled(self, held, message):
        """Return the messages to pass on after *message*, and those that are held back."""
        if self.is_kind:
            sent, held[:] = [*held, message], []
            return sent
        fate = self._rng.random()
        if fate < 3 * SHARE:
            self.faults += 1
        if fate < SHARE:
            return []
        if fate < 2 * SHARE:
            return [message, message]
        if fate < 3 * SHARE or (held and len(held) < 8):
            held.append(message)
            return []
        sent = [message, *held]
        held.clear()
        self._rng.shuffle(sent)
        return sent

    def close(self):
        """Stop."""
        self._stop.set()
        self._thread.join()
        self._front.close(0)
        self._context.term()


SHORT = {"cut_every_s": 2.0, "cut_s": 0.5}
LONG = {"cut_every_s": 20.0, "cut_s": 5.0}


@pytest.fixture
def faulty(collectors, seed):
    """Give a function that starts a collector behind a faulty proxy, and returns both."""
    started = []

    def start(turn, cuts):
        collector = collectors(silent_after_s=1e6)
        started.append(FaultyProxy(collector.endpoint, seed + turn, **cuts))
        return collector, started[-1]

    yield start
    for proxy in started:
        proxy.close()


class TestFaultyConnection:
    @pytest.mark.hang_guard(300)
    def test_totals_are_equal_or_the_loss_is_known(self, faulty, jobs, until, scale, scaled):
        """
        Over a connection that drops, repeats, reorders and is cut, events that arrive and events reported lost are all
        there were.

        Twenty seeds of a minute each in full: every other one with a few long cuts instead of many short ones.
        """
        length_s = max(6.0, 60 * scale)
        for turn in range(scaled(20)):
            collector, proxy = faulty(turn, LONG if turn % 2 and length_s > 40 else SHORT)
            job = jobs(publish=False, collector=proxy.endpoint, insecure=True, models=False)
            job.pace(per_s=20_000)
            time.sleep(length_s)
            logged = job.stop_logging()
            job.end()
            proxy.is_kind = True

            until(lambda collector=collector: collector.totals()["ended"] == 1, 60)

            totals, stats = collector.totals(), job.stats()
            numbers = [fields_of(event)["number"] for event in collector.heard(STEP)]
            assert numbers == sorted(set(numbers))
            assert len(numbers) + totals["lost"] + stats["lost"] >= logged
            assert totals["events"] + totals["lost"] == stats["published"]
            assert proxy.faults > 0
            print(f"turn {turn}: {logged} logged, {len(numbers)} came, {totals}, {proxy.faults} faults")
            job.kill()
            collector.end()
            collector.events.clear()
