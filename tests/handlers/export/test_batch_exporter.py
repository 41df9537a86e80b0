"""The batch exporter: in order, bounded, with retries, and with every loss counted."""

from __future__ import annotations

import threading
import time

import pytest

from trackside.handlers.export import CLOSED, QUEUE_FULL, BatchExporter, RefusedError, _batch_exporter


class System:
    """Another system: it keeps batches, blocks, or raises."""

    def __init__(self):
        self.batches = []
        self.error = None
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def accept(self, batch):
        """Block, raise, or keep *batch*."""
        self.entered.set()
        self.open.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def items(self):
        """Return all items in the order in which they came."""
        return [item for batch in self.batches for item in batch]


@pytest.fixture
def system():
    found = System()
    yield found
    found.open.set()


@pytest.fixture
def exporter(system, monkeypatch):
    monkeypatch.setattr(_batch_exporter, "_FIRST_RETRY_S", 0.01)
    found = BatchExporter(system.accept, name="test", export_interval_s=1_000.0, max_retry_s=0.02)
    yield found
    system.open.set()
    found.close(5)


class TestDelivery:
    def test_in_order(self, exporter, system):
        """All items arrive in the order in which they were put, in batches."""
        for number in range(1_300):
            assert exporter.put(number)
        assert exporter.flush(5)
        assert system.items() == list(range(1_300))
        assert max(map(len, system.batches)) <= 512
        assert (exporter.waiting_events, exporter.lost) == (0, 0)

    def test_full_batch_goes_at_once(self, exporter, system):
        """A full batch is delivered at once."""
        for number in range(512):
            exporter.put(number)
        assert system.entered.wait(5)

    def test_after_a_while(self, system):
        """A single item is delivered after the interval."""
        exporter = BatchExporter(system.accept, name="test", export_interval_s=0.01)
        exporter.put("one")
        assert system.entered.wait(5)
        assert exporter.close(5)

    def test_nothing_to_do(self, exporter):
        """Without items, flush and close return at once."""
        assert exporter.flush(0)
        assert exporter.close(0)


class TestStart:
    def test_meanwhile(self, system, monkeypatch):
        """A put or a flush while the thread is being started waits for it, and neither starts nor delivers."""
        by = []
        exporter = BatchExporter(
            lambda batch: by.append((threading.current_thread().name, *batch)), name="test", export_interval_s=0.01
        )
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

        first = after(first_may, exporter.put, 1)
        others = [after(others_may, exporter.put, 2), after(others_may, exporter.flush, 10)]
        monkeypatch.setattr(threading, "get_native_id", asked_on_birth)
        first_may.set()
        assert is_born.wait(10)
        others_may.set()
        for thread in others:
            thread.join(0.2)  # by then they would be done if they did not wait
        may_run.set()
        for thread in (first, *others):
            thread.join(10)
        assert exporter.close(10)
        assert len(births) == 1
        assert {name for name, *_ in by} == {"trackside-test"}
        assert sorted(item for _, *batch in by for item in batch) == [1, 2]


class TestFailures:
    def test_tried_again(self, exporter, system):
        """A batch that failed is retried, and nothing overtakes it."""
        system.error = OSError("away")
        exporter.put("first")
        assert not exporter.flush(5)
        assert exporter.last_error == "OSError: away"
        exporter.put("second")
        system.error = None
        deadline_s = time.monotonic() + 10
        while len(system.items()) < 2 and time.monotonic() < deadline_s:
            system.entered.clear()
            system.entered.wait(0.1)
        assert system.items() == ["first", "second"]
        assert exporter.flush(5)
        assert (exporter.lost, exporter.last_error) == (0, "")

    def test_longest_pause(self, exporter, system):
        """However often a batch failed, the next attempt comes after the longest pause at most."""
        attempts = threading.Semaphore(0)
        exporter._deliver = lambda batch: attempts.release() or system.accept(batch)
        system.error = OSError("away")
        exporter.put("first")
        exporter.flush(5)
        assert all(
            attempts.acquire(timeout=10) for _ in range(14)
        )  # doubled each time, the last pauses would be 20 and 40 s

    def test_refused(self, exporter, system):
        """A batch that is refused for good is counted under its reason, and the next ones are delivered."""
        system.error = RefusedError("HTTP 400")
        exporter.put("bad", events=7)
        assert not exporter.flush(5)
        system.error = None
        exporter.put("good")
        assert exporter.flush(5)
        assert exporter.losses() == {"HTTP 400": 7}
        assert system.items() == ["good"]

    def test_no_room(self, exporter, system):
        """An item for which the queue is full is refused; the caller counts the loss."""
        system.error = OSError()
        small = BatchExporter(system.accept, name="small", max_events=10, export_interval_s=1_000.0)
        assert small.put("a", events=10)
        assert not small.put("b")
        assert small.lost == 0
        small.drop(1, QUEUE_FULL)
        assert not small.close(5)
        assert small.losses() == {QUEUE_FULL: 1, CLOSED: 10}

    def test_no_room_for_bytes(self, system):
        """Bytes are bounded too; a single item beyond the bound is accepted when nothing waits."""
        exporter = BatchExporter(system.accept, name="small", max_bytes=100, export_interval_s=1_000.0)
        assert exporter.put("large", size_bytes=1_000)
        assert not exporter.put("small", size_bytes=1)
        assert exporter.close(5)

    def test_strange_error(self, exporter, system):
        """An error whose text cannot be read loses nothing."""

        class UnprintableError(Exception):
            def __str__(self):
                raise RuntimeError

        system.error = UnprintableError()
        exporter.put(1)
        assert not exporter.flush(5)
        system.error = None
        assert exporter.flush(5)
        assert system.items() == [1]

    def test_one_warning(self, exporter, system, caplog):
        """Failures are reported once a minute, with counts."""
        system.error = OSError("away")
        exporter.put(1, events=3)
        for _ in range(5):
            exporter.flush(5)
        [record] = caplog.records
        assert record.getMessage() == "test: OSError: away; 3 event(s) wait, 0 are lost so far; training goes on"


class TestEnd:
    def test_hanging(self, exporter, system):
        """With a system that blocks, close returns in time and counts the items that were not delivered."""
        system.open.clear()
        exporter.put(1, events=4)
        exporter.put(2, events=5)
        began_s = time.monotonic()
        assert not exporter.close(0.2)
        assert time.monotonic() - began_s < 5
        assert exporter.losses() == {CLOSED: 9}

    def test_answer_after_the_end(self, system):
        """A loss that was counted stays one, even if the delivery succeeds later."""
        exporter = BatchExporter(system.accept, name="test", max_batch_items=1)
        system.open.clear()
        exporter.put(1)
        assert system.entered.wait(5)
        exporter.close(0.05)
        system.open.set()
        exporter._worker._thread.join(5)
        assert exporter.losses() == {CLOSED: 1}

    def test_put_afterwards(self, exporter):
        """A closed exporter accepts nothing."""
        exporter.close(1)
        assert not exporter.put(1)

    def test_twice(self, exporter, system):
        """Closing twice changes nothing."""
        system.error = OSError()
        exporter.put(1)
        assert not exporter.close(1)
        assert not exporter.close(1)
        assert exporter.losses() == {CLOSED: 1}

    def test_without_threads(self, exporter, system, monkeypatch):
        """If no thread can be started, flush and close deliver in the caller's thread."""

        def refuse(_):
            raise RuntimeError("can't start new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        exporter.put(1)
        assert exporter.flush(1)
        exporter.put(2)
        assert exporter.close(1)
        assert system.items() == [1, 2]

    def test_from_its_own_thread(self, exporter, system):
        """A flush from within a delivery returns False instead of waiting for itself."""
        answers = []
        exporter._deliver = lambda batch: answers.append(exporter.flush(100))
        exporter.put(1)
        exporter.flush(5)
        assert answers == [False]

    def test_reset(self, exporter, system):
        """A forked child starts from nothing."""
        system.error = OSError()
        exporter.put(1)
        exporter.flush(1)
        exporter.close(1)
        exporter.reset()
        system.error = None
        assert exporter.lost == 0
        exporter.put(2)
        assert exporter.flush(5)
        assert system.items() == [2]
