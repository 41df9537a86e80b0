"""The sampler: the one thread of a counter registry."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from typing import Final

from trackside.bus._patience import complain
from trackside.bus._thread import LateThread

_PAUSE_S: Final = 1.0


class Sampler:
    """
    Calls *beat* when its time has come; once stopped, never again.

    Args:
        beat: Returns in how many seconds it wants to be called again, None for not before a nudge.
    """

    def __init__(self, beat: Callable[[], float | None]) -> None:
        self._beat = beat
        self.forget()

    def forget(self) -> None:
        """Be without a thread, as a forked child is."""
        self._thread = LateThread(self._run, "trackside-sampler")
        # C code, unlike an Event: a signal handler may nudge while its thread is just nudging.
        self._nudges: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread.is_alive

    def start(self) -> None:
        """Start the thread, or let a running one look again when to beat next."""
        self._thread.start()  # where none can be started any more, closing publishes the windows
        self._nudges.put(None)

    def stop(self, timeout_s: float) -> bool:
        """Stop the thread; False if it did not end within *timeout_s*."""
        self._is_stopping = True
        self._nudges.put(None)
        return self._thread.is_current or self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_stopping:
            try:
                wait_s = self._beat()
            except BaseException as error:
                complain("the counters' sampler failed: %s; it goes on", error, error=error)
                wait_s = _PAUSE_S
            with contextlib.suppress(queue.Empty):
                self._nudges.get(timeout=wait_s)
                while True:
                    self._nudges.get_nowait()
