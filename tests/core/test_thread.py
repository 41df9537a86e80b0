"""A thread that is started once."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from interrupting import interrupter
from trackside.core._worker import LateThread
from waiting import until


class TestStart:
    @pytest.fixture
    def interrupted(self):
        """Let the first Ctrl-C interrupt, also where the tests run with it ignored; return whether it came."""
        came = threading.Event()

        def interrupt_once(*_):
            if not came.is_set():
                came.set()
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt_once)
        yield came
        signal.signal(signal.SIGINT, before)

    def test_interrupted(self, monkeypatch, interrupted):
        """A thread whose starter was interrupted before the thread ran does nothing: another may be started instead."""
        runs, may_run, births = [], threading.Event(), []
        late = LateThread(lambda: runs.append(threading.get_native_id()), "late")

        def asked_on_birth(real=threading.get_ident):
            if real() not in known and not births:
                births.append(real())
                while not interrupted.is_set():  # one that comes just before the main thread waits does not wake it
                    signal.pthread_kill(main, signal.SIGINT)
                    time.sleep(0.01)
                may_run.wait(10)
            return real()

        main, known = threading.main_thread().ident, {thread.ident for thread in threading.enumerate()}
        monkeypatch.setattr(threading, "get_ident", asked_on_birth)
        with pytest.raises(KeyboardInterrupt):
            late.start()
        assert not late.is_started
        assert late.start()
        assert late.join(10)
        before = list(runs)
        may_run.set()
        # It cannot be joined before `threading` knows that it runs.
        until(lambda: all(thread.name != "late" for thread in threading.enumerate()))
        assert len(before) == 1
        assert runs == before


class TestJoin:
    """Waiting for a thread that another thread is starting."""

    def test_while_being_started(self, monkeypatch):
        """In the moment when it runs and `threading` does not report it yet, its end is waited for like any other."""
        may_start, is_born, may_run = threading.Event(), threading.Event(), threading.Event()
        late = LateThread(lambda: None, "late")

        def start():
            may_start.wait(10)
            late.start()

        def asked_on_birth(real=threading.get_native_id):
            is_born.set()
            may_run.wait(10)
            return real()

        starter = threading.Thread(target=start)
        starter.start()
        monkeypatch.setattr(threading, "get_native_id", asked_on_birth)
        may_start.set()
        assert is_born.wait(10)
        assert not late.join(0.01)
        may_run.set()
        assert late.join(10)
        starter.join(10)


class TestIsAlive:
    def test_after_an_interruption(self):
        """A signal handler that raises while a thread's life is asked for does not make it look dead."""
        go_on = threading.Event()
        late = LateThread(lambda: go_on.wait(60), "late")
        assert late.start()
        answers = set()
        with interrupter() as handler:
            outcome = handler.interrupt(lambda: answers.add(late.is_alive), 200)
        is_alive = late.is_alive
        go_on.set()
        assert late.join(20)
        assert (outcome.came, answers, is_alive, late.is_alive) == (200, {True}, True, False)
