"""Deliveries to systems of somebody else's: in order, bounded, tried again, and counted."""

from __future__ import annotations

import threading
import time

import pytest

from trackside.handlers._courier import NO_ROOM, NOT_BY_THE_END, Courier, RefusedError


class System:
    """Takes batches, or does what it is told."""

    def __init__(self):
        self.batches = []
        self.error = None
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def take(self, batch):
        """Be slow, raise, or keep *batch*."""
        self.entered.set()
        self.open.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def items(self):
        """Return everything in the order in which it came."""
        return [item for batch in self.batches for item in batch]


@pytest.fixture
def system():
    found = System()
    yield found
    found.open.set()


@pytest.fixture
def courier(system):
    found = Courier(system.take, name="test", every_s=1_000.0, first_rest_s=0.01, longest_rest_s=0.02)
    yield found
    system.open.set()
    found.close(5)


class TestDelivery:
    def test_in_order(self, courier, system):
        """Everything arrives in the order in which it was put, in batches."""
        for number in range(1_300):
            assert courier.put(number)
        assert courier.flush(5)
        assert system.items() == list(range(1_300))
        assert max(map(len, system.batches)) <= 512
        assert (courier.waiting_events, courier.lost) == (0, 0)

    def test_full_batch_goes_at_once(self, courier, system):
        """A full batch waits for nothing."""
        for number in range(512):
            courier.put(number)
        assert system.entered.wait(5)

    def test_after_a_while(self, system):
        """An item alone goes after a while."""
        courier = Courier(system.take, name="test", every_s=0.01)
        courier.put("one")
        assert system.entered.wait(5)
        assert courier.close(5)

    def test_nothing_to_do(self, courier):
        """Without items there is nothing to wait for."""
        assert courier.flush(0)
        assert courier.close(0)


class TestStart:
    def test_meanwhile(self, system, monkeypatch):
        """Whoever puts or flushes while the thread is being started waits for it, and neither starts nor delivers."""
        by = []
        courier = Courier(lambda batch: by.append((threading.current_thread().name, *batch)), name="test", every_s=0.01)
        first_may, others_may, may_run = threading.Event(), threading.Event(), threading.Event()
        is_born, births = threading.Event(), []

        def asked_on_birth(real=threading.get_native_id):
            births.append(real())
            is_born.set()
            may_run.wait(10)
            return real()

        def after(signal, work, *arguments):
            thread = threading.Thread(target=lambda: signal.wait(10) and work(*arguments))
            thread.start()
            return thread

        first = after(first_may, courier.put, 1)
        others = [after(others_may, courier.put, 2), after(others_may, courier.flush, 10)]
        monkeypatch.setattr(threading, "get_native_id", asked_on_birth)
        first_may.set()
        assert is_born.wait(10)
        others_may.set()
        for thread in others:
            thread.join(0.2)  # by then they would be done if they did not wait
        may_run.set()
        for thread in (first, *others):
            thread.join(10)
        assert courier.close(10)
        assert len(births) == 1
        assert {name for name, *_ in by} == {"trackside-test"}
        assert sorted(item for _, *batch in by for item in batch) == [1, 2]


class TestTrouble:
    def test_tried_again(self, courier, system):
        """What failed is tried again by itself, and nothing overtakes it."""
        system.error = OSError("away")
        courier.put("first")
        assert not courier.flush(5)
        assert courier.trouble == "OSError: away"
        courier.put("second")
        system.error = None
        deadline_s = time.monotonic() + 10
        while len(system.items()) < 2 and time.monotonic() < deadline_s:
            system.entered.clear()
            system.entered.wait(0.1)
        assert system.items() == ["first", "second"]
        assert courier.flush(5)
        assert (courier.lost, courier.trouble) == (0, "")

    def test_refused(self, courier, system):
        """What the other system will never take is counted under its reason, and what comes later goes."""
        system.error = RefusedError("HTTP 400")
        courier.put("bad", events=7)
        assert not courier.flush(5)
        system.error = None
        courier.put("good")
        assert courier.flush(5)
        assert courier.losses() == {"HTTP 400": 7}
        assert system.items() == ["good"]

    def test_no_room(self, courier, system):
        """What has no room is refused to whoever puts it, who says what became of it."""
        system.error = OSError()
        small = Courier(system.take, name="small", most_events=10, every_s=1_000.0)
        assert small.put("a", events=10)
        assert not small.put("b")
        assert small.lost == 0
        small.give_up(1, NO_ROOM)
        assert not small.close(5)
        assert small.losses() == {NO_ROOM: 1, NOT_BY_THE_END: 10}

    def test_no_room_for_bytes(self, system):
        """Bytes are bounded too; a single item that is larger than all room is taken when nothing waits."""
        courier = Courier(system.take, name="small", most_bytes=100, every_s=1_000.0)
        assert courier.put("large", size_bytes=1_000)
        assert not courier.put("small", size_bytes=1)
        assert courier.close(5)

    def test_strange_error(self, courier, system):
        """An error that cannot even be printed costs nothing."""

        class UnprintableError(Exception):
            def __str__(self):
                raise RuntimeError

        system.error = UnprintableError()
        courier.put(1)
        assert not courier.flush(5)
        system.error = None
        assert courier.flush(5)
        assert system.items() == [1]

    def test_one_complaint(self, courier, system, caplog):
        """Trouble is told of once a minute, with counts."""
        system.error = OSError("away")
        courier.put(1, events=3)
        for _ in range(5):
            courier.flush(5)
        [record] = caplog.records
        assert record.getMessage() == "test: OSError: away; 3 event(s) wait, 0 are lost so far; training goes on"


class TestEnd:
    def test_hanging(self, courier, system):
        """Against a system that hangs, the end comes in time, and what is left is counted before."""
        system.open.clear()
        courier.put(1, events=4)
        courier.put(2, events=5)
        began_s = time.monotonic()
        assert not courier.close(0.2)
        assert time.monotonic() - began_s < 5
        assert courier.losses() == {NOT_BY_THE_END: 9}

    def test_answer_after_the_end(self, system):
        """What was counted as lost stays so, whatever comes of it later."""
        courier = Courier(system.take, name="test", batch_items=1)
        system.open.clear()
        courier.put(1)
        assert system.entered.wait(5)
        courier.close(0.05)
        system.open.set()
        courier._thread.join(5)
        assert courier.losses() == {NOT_BY_THE_END: 1}

    def test_put_afterwards(self, courier):
        """After the end nothing is taken."""
        courier.close(1)
        assert not courier.put(1)

    def test_twice(self, courier, system):
        """To close twice changes nothing."""
        system.error = OSError()
        courier.put(1)
        assert not courier.close(1)
        assert not courier.close(1)
        assert courier.losses() == {NOT_BY_THE_END: 1}

    def test_without_threads(self, courier, system, monkeypatch):
        """Where no thread can be started any more, flush and close deliver in their caller's."""

        def refuse(_):
            raise RuntimeError("can't start new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        courier.put(1)
        assert courier.flush(1)
        courier.put(2)
        assert courier.close(1)
        assert system.items() == [1, 2]

    def test_from_its_own_thread(self, courier, system):
        """Whoever flushes from within a delivery is not kept waiting for itself."""
        answers = []
        courier._deliver = lambda batch: answers.append(courier.flush(100))
        courier.put(1)
        courier.flush(5)
        assert answers == [False]

    def test_begin_anew(self, courier, system):
        """A forked child begins with nothing."""
        system.error = OSError()
        courier.put(1)
        courier.flush(1)
        courier.close(1)
        courier.begin_anew()
        system.error = None
        assert courier.lost == 0
        courier.put(2)
        assert courier.flush(5)
        assert system.items() == [2]
