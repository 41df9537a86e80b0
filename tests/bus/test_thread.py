"""The thread that is started once."""

from __future__ import annotations

import threading

from trackside.bus._thread import LateThread


class TestJoin:
    """Waiting for a thread that another thread is starting."""

    def test_while_being_started(self, monkeypatch):
        """In the moment when it runs and `threading` does not say so yet, its end is waited for like any other."""
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
