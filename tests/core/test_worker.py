"""The worker thread: rounds at an interval, when there is enough to do, and on request."""

from __future__ import annotations

import logging
import queue
import signal
import sys
import threading
import time

import pytest

from interrupting import interrupter
from trackside.core import Mailbox, StopEvent, Worker

DEADLINE_S = 20.0


class Rounds:
    """Work that records its rounds, and may be blocked."""

    def __init__(self):
        self.rounds = []
        self.threads = set()
        self.is_held = False
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, *, insist, is_last):
        """Record the round, once it may go on."""
        self.threads.add(threading.get_ident())
        self.entered.set()
        if self.is_held:
            self.go_on.wait(DEADLINE_S)
        self.rounds.append((insist, is_last))


@pytest.fixture
def work():
    """Give the test work that is released at its end."""
    rounds = Rounds()
    yield rounds
    rounds.go_on.set()


def make(work, pause_s=1000.0, **options):
    return Worker(work, name="test", pause_s=lambda: pause_s, **options)


@pytest.mark.hang_guard(60)
class TestMailbox:
    @pytest.mark.parametrize("timeout_s", [0.0, 2e-6])
    def test_passed_before_the_sleep(self, timeout_s):
        """A timeout that passes before the thread sleeps ends the wait for an item that never comes."""

        def wait():
            for _ in range(5000):
                with pytest.raises(queue.Empty):
                    Mailbox().get(timeout_s)
            ended.append(threading.get_ident())

        ended = []
        threads = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert len(ended) == len(threads)

    def test_passed_in_a_signal_handler(self):
        """A timeout that passes while a signal handler runs in the waiting thread ends the wait."""
        ends_s = time.monotonic() + 0.2

        def outlast(number, frame):
            while time.monotonic() < ends_s:
                pass

        before = signal.signal(signal.SIGALRM, outlast)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(queue.Empty):
                Mailbox().get(0.1)
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_order(self):
        """Items that were put in while nobody waited come in their order, and then none."""
        mailbox = Mailbox()
        for item in (1, 2, 3):
            mailbox.put(item)
        assert [mailbox.get(0.0) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(queue.Empty):
            mailbox.get(0.0)


@pytest.mark.hang_guard(30)
class TestRounds:
    def test_none_before_the_start(self, work):
        """Making a worker starts no thread."""
        before = threading.active_count()
        make(work)
        assert (threading.active_count(), work.rounds) == (before, [])

    def test_at_an_interval(self, work):
        """Without a request a round follows a pause, and need not insist."""
        worker = make(work, pause_s=0.001)
        worker.start()
        assert work.entered.wait(DEADLINE_S)
        worker.close(DEADLINE_S)
        assert work.rounds[0] == (False, False)

    def test_when_there_is_enough(self, work):
        """A round is due at once when the owner says that there is enough to do."""
        waiting = [1]
        worker = make(lambda **_: waiting.clear() or work.entered.set(), is_wanted=lambda: bool(waiting))
        worker.start()
        assert work.entered.wait(DEADLINE_S)
        worker.close(DEADLINE_S)

    def test_goes_on_after_a_failure(self, caplog):
        """An exception raised in a round is reported, once a minute, and the next round is done."""
        failures = []

        def fail(*, insist, is_last):
            failures.append(insist)
            raise OSError("disk")

        worker = make(fail)
        worker.start()
        with caplog.at_level(logging.WARNING, "trackside"):
            assert [worker.flush(DEADLINE_S) for _ in range(3)] == [True] * 3
        assert (len(failures), [record.getMessage() for record in caplog.records]) == (
            3,
            ["test failed: OSError: disk; it goes on"],
        )
        assert worker.close(DEADLINE_S)


@pytest.mark.hang_guard(30)
class TestFlush:
    def test_round_after_the_call(self, work):
        """A flush waits for a round that began after it, not for one that is under way."""
        work.is_held = True
        worker = make(work, pause_s=0.001)
        worker.start()
        assert work.entered.wait(DEADLINE_S)
        done = []
        flushing = threading.Thread(target=lambda: done.append(worker.flush(DEADLINE_S)))
        flushing.start()
        assert not done
        work.go_on.set()
        flushing.join(DEADLINE_S)
        assert (done, (True, False) in work.rounds) == ([True], True)
        worker.close(DEADLINE_S)

    def test_timeout(self, work):
        """A flush returns False when its time is over, however long the work takes."""
        work.is_held = True
        worker = make(work)
        worker.start()
        assert not worker.flush(0.05)

    def test_on_its_own_thread(self):
        """The worker's own thread cannot wait for itself: it gets False at once."""
        answers = []
        worker = make(lambda **_: answers.append(worker.flush(DEADLINE_S)))
        worker.start()
        worker.flush(DEADLINE_S)
        assert answers == [False]
        worker.close(DEADLINE_S)

    def test_without_a_thread(self, work):
        """Before the start, and where no thread can be started, the caller does the round itself."""
        worker = make(work)
        assert worker.flush(DEADLINE_S)
        assert (work.rounds, work.threads) == ([(True, False)], {threading.get_ident()})


@pytest.mark.hang_guard(30)
class TestClose:
    def test_last_round(self, work):
        """Closing has one last round done, after which there is none, and closing again is harmless."""
        worker = make(work)
        worker.start()
        assert [worker.close(DEADLINE_S), worker.close(DEADLINE_S), worker.is_closed] == [True] * 3
        assert work.rounds == [(True, True)]

    def test_timeout(self, work):
        """Closing returns False when its time is over; the last round may still come to its end."""
        work.is_held = True
        worker = make(work)
        worker.start()
        assert (worker.close(0.05), worker.is_closed) == (False, False)
        work.go_on.set()
        assert worker.close(DEADLINE_S)

    def test_releases_a_flush(self, work):
        """A flush that comes after the last round does not wait out its time."""
        worker = make(work)
        worker.start()
        worker.close(DEADLINE_S)
        assert not worker.flush(DEADLINE_S)

    def test_without_a_thread(self, work):
        """If there is no thread, the caller does the last round, once."""
        worker = make(work)
        assert [worker.close(DEADLINE_S), worker.close(DEADLINE_S)] == [True, True]
        assert work.rounds == [(True, True)]


@pytest.mark.hang_guard(60)
class TestInterrupted:
    @pytest.mark.skipif(sys.version_info[:2] == (3, 14), reason="3.14 runs signal handlers before the block of a with")
    def test_leaves_nothing_locked(self, work):
        """Exceptions of the program's signal handlers in flush() come out, and the worker goes on."""
        worker = make(work)
        worker.start()
        with interrupter() as handler:
            outcome = handler.interrupt(lambda: worker.flush(DEADLINE_S), 1000)
        assert outcome.came == outcome.raised == 1000
        assert worker.close(DEADLINE_S)


class TestStopEvent:
    def test_wakes(self):
        """A thread that waits goes on as soon as the event is set, and at once when it was set before."""
        stop, came = StopEvent(), []
        thread = threading.Thread(target=lambda: came.extend([stop.wait(DEADLINE_S), stop.wait(DEADLINE_S)]))
        thread.start()
        stop.set()
        thread.join(DEADLINE_S / 2)
        assert came == [True, True]

    def test_timeout(self):
        """Waiting ends after the timeout if nobody sets it."""
        stop = StopEvent()
        assert (stop.wait(0.001), stop.is_set()) == (False, False)
