"""The sampler: the one thread of a counter registry."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from trackside.bus._patience import complain

_PAUSE_S: Final = 1.0


class Sampler:
    """
    Calls *beat* when its time has come.

    Args:
        beat: Returns in how many seconds it wants to be called again, None for not before a nudge.
    """

    def __init__(self, beat: Callable[[], float | None]) -> None:
        self._beat = beat
        self.forget()

    def forget(self) -> None:
        """Be without a thread, as a forked child is."""
        self._thread: threading.Thread | None = None
        self._nudge = threading.Event()
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, or let a running one look again when to beat next."""
        if self.is_running:
            self._nudge.set()
            return
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="trackside-sampler", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; False if it did not end within *timeout_s*."""
        self._is_stopping = True
        self._nudge.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        nudge = self._nudge
        while not self._is_stopping:
            try:
                wait_s = self._beat()
            except BaseException as error:
                complain("the counters' sampler failed: %s; it goes on", error, error=error)
                wait_s = _PAUSE_S
            nudge.wait(wait_s)
            nudge.clear()
