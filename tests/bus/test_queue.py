"""The order of what threads log at once, and the deques by lane that keep it without the interpreter lock."""

from __future__ import annotations

import threading
from collections import deque

import pytest

from kinds import Often
from ticking import Ticked
from trackside.bus import _queue
from trackside.bus._admission import AdmissionByLane
from trackside.bus._queue import Placeholder, QueueByLane


class Lanes:
    """A queue by lane, and the lane and the moment at which the next item is appended."""

    def __init__(self):
        self.queue = QueueByLane()
        self.lane = 0
        self.moments = iter(range(1_000_000))

    def append(self, item, *, lane, at_ns=None):
        """Append *item* in *lane*, now or at *at_ns*."""
        self.lane = lane
        if at_ns is not None:
            self.moments = iter([at_ns])
        self.queue.append(item)

    def put_in_order(self, *, at_ns):
        """Put in order what was logged until *at_ns*; return the items that are in order."""
        self.moments = iter([at_ns])
        count = self.queue.put_in_order()
        assert count == len(self.queue.ordered)
        return list(self.queue.ordered)

    def take_and_append(self):
        """Let the dispatcher take all that waits, and five threads append, each in a lane of its own."""
        self.put_in_order(at_ns=100)
        self.queue.ordered.clear()
        for lane in range(2, 7):
            self.append("anew", lane=lane, at_ns=101)


class Counted(deque):
    """A lane; the first time that it is counted once armed, the count is made, and then *meanwhile* is called."""

    def __init__(self, meanwhile):
        super().__init__()
        self.is_armed = False
        self.meanwhile = meanwhile

    def __len__(self):
        count = super().__len__()
        if self.is_armed:
            self.is_armed = False
            self.meanwhile()
        return count


@pytest.fixture
def lanes(monkeypatch):
    given = Lanes()
    monkeypatch.setattr(_queue, "lane", lambda: given.lane)
    monkeypatch.setattr(_queue, "now_ns", lambda: next(given.moments))
    monkeypatch.setattr("trackside.bus._admission.LANES", 127)
    monkeypatch.setattr("trackside.bus._admission.now_ns", lambda: next(given.moments))
    return given


class TestQueueByLane:
    def test_order(self, lanes):
        """Items of several lanes are in the order in which they were appended."""
        for item, lane in enumerate([1, 2, 1, 3, 2, 2, 1]):
            lanes.append(item, lane=lane)
        assert lanes.queue.copy() == list(range(7))
        assert lanes.put_in_order(at_ns=100) == list(range(7))

    def test_late_append(self, lanes):
        """An item whose thread was halted before it could append it comes before all that were logged after it."""
        lanes.append("second", lane=1, at_ns=6)
        lanes.append("first", lane=1, at_ns=4)
        lanes.append("between", lane=2, at_ns=5)
        assert lanes.queue.copy() == ["first", "between", "second"]
        assert lanes.put_in_order(at_ns=9) == ["first", "between", "second"]

    def test_logged_meanwhile(self, lanes):
        """Events that are logged while lanes are emptied wait, in their order, until they are emptied again."""
        lanes.append("before", lane=1, at_ns=4)
        lanes.append("meanwhile", lane=2, at_ns=6)
        assert lanes.put_in_order(at_ns=5) == ["before"]
        lanes.append("in between", lane=3, at_ns=5)
        assert (len(lanes.queue), lanes.queue.copy()) == (3, ["before", "in between", "meanwhile"])
        assert lanes.put_in_order(at_ns=7) == ["before", "in between", "meanwhile"]

    def test_same_moment(self, lanes):
        """Items that a coarse clock dates alike keep the order that they have in their lane."""
        items = [object() for _ in range(3)]  # which cannot be compared
        for item in items:
            lanes.append(item, lane=1, at_ns=5)
        assert lanes.put_in_order(at_ns=5) == items

    def test_count_meanwhile(self, lanes):
        """A count does not grow by what the dispatcher takes, and lanes hold anew, while it is made."""
        lane = lanes.queue._lanes[1] = Counted(lanes.take_and_append)
        for other in range(2, 7):
            lanes.queue._lanes[other] = deque()
        for number in range(5):
            lanes.append(number, lane=1)
        lane.is_armed = True
        assert len(lanes.queue) == 5


class TestAdmissionByLane:
    def test_share(self, lanes):
        """A lane exceeds what the others leave of the share by fewer events than are admitted without asking."""
        woken = []
        admission = AdmissionByLane(Often, lanes.queue, 16_384, lambda: woken.append(len(lanes.queue)))
        for lane, count in ((1, 8_191), (2, 200)):
            lanes.lane = lane
            _, admit, _, _ = admission.step()
            for _ in range(count):
                admit(Often())
        # Half of 16,384 is for PROFILE. One of 64 asks: the first of the second lane finds one place left.
        assert (len(lanes.queue), admission.dropped.value) == (8_191 + 64, 200 - 64)
        # Three quarters of the share, at the next event that asks.
        assert woken == [6_144]

    def test_large(self, lanes):
        """A text of 10 KiB takes three places of its lane, which the dispatcher gets before it."""
        admission = AdmissionByLane(Ticked, lanes.queue, 100, lambda: None)
        lanes.lane = 1
        _, admit, _, _ = admission.step()
        for text in ("x" * 10_240, "y"):
            admit(Ticked(text=text))
        assert len(lanes.queue) == 4
        lanes.queue.put_in_order()
        assert [type(item) for item in lanes.queue.ordered] == [Placeholder, Placeholder, Ticked, Ticked]

    def test_small(self, lanes):
        """Of a small queue no lane takes more than is left."""
        admission = AdmissionByLane(Often, lanes.queue, 100, lambda: None)
        for lane in (1, 2):
            lanes.lane = lane
            for _ in range(40):
                admission.offer(Often())
        assert (len(lanes.queue), admission.dropped.value) == (50, 30)


class TestOrder:
    def test_one_after_the_other(self, bus, model):
        """Events that threads log in turns, each after the other's call returned, are numbered in this order."""
        turns = [threading.Semaphore(0) for _ in range(4)]

        def log(place, mine, following):
            for number in range(place, 2_000, 4):
                mine.acquire()
                bus.log(Ticked(number=number))
                following.release()

        with bus.subscribe(model, to=Ticked):
            threads = [
                threading.Thread(target=log, args=(place, turns[place], turns[(place + 1) % 4])) for place in range(4)
            ]
            for thread in threads:
                thread.start()
            turns[0].release()
            for thread in threads:
                thread.join(60)
            bus.flush()
        assert [one.number for one in model.events] == list(range(2_000))
