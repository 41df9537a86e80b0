"""A thread that is started once, by the first caller that needs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_MOMENT_S: Final = 0.0001


class LateThread:
    """
    A daemon thread that does not exist until it is needed.

    Any number of threads and signal handlers may start it at once; none of them waits for another.
    """

    __slots__ = ("_starting", "_target", "_thread", "name")

    def __init__(self, target: Callable[[], object], name: str) -> None:
        self.name = name
        self._target = target
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> bool:
        """Start the thread unless it was started; False if none can be started any more: the interpreter ends."""
        if self._thread is None and self._starting.acquire(blocking=False):
            try:
                return self._thread is not None or self._start()
            finally:
                self._starting.release()
        return True

    def _start(self) -> bool:
        # Known before it runs, so that an interrupt meanwhile cannot lead to a second one.
        self._thread = thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        finally:
            if thread.ident is None:
                self._thread = None
        return True

    def _run(self) -> None:
        # If its starter was interrupted before the thread ran, another may have been started since.
        if self._thread is threading.current_thread():
            self._target()

    @property
    def is_started(self) -> bool:
        """Whether the thread was started; it may have ended since."""
        return self._thread is not None

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return whether it came."""
        thread = self._thread
        if thread is None or thread.ident is None:  # not yet: its starter is just about to
            return True
        if self.is_current:
            return False
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                thread.join(max(0.0, deadline_s - time.monotonic()))
            except RuntimeError:  # it runs already, but a moment passes before `threading` says so
                if time.monotonic() >= deadline_s:
                    return False
                time.sleep(_MOMENT_S)
            else:
                return not thread.is_alive()
