"""Exceptions that nothing caught: published before the interpreter prints them."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from trackside.bus import Bus
from trackside.instruments import record_exception


class UncaughtExceptions:
    """
    Publishes the exceptions that end the program or one of its threads.

    The hooks that were there before are called as if this one did not exist, so the program prints what it always did.
    """

    def __init__(self, bus: Bus) -> None:
        self.ended_program: str = ""
        """The name of the exception that ends the program; empty while there is none."""
        self._bus = bus
        self._is_on = True
        self._program_hook, self._thread_hook = sys.excepthook, threading.excepthook
        # A bound method is made anew by each look-up, and is to be recognised later.
        self._own_program_hook, self._own_thread_hook = self._end_program, self._end_thread
        sys.excepthook, threading.excepthook = self._own_program_hook, self._own_thread_hook

    def _end_program(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._is_on:
            self.ended_program = kind.__name__
            record_exception(error, self._bus)
        self._program_hook(kind, error, trace)

    def _end_thread(self, arguments: Any) -> None:
        if self._is_on and arguments.exc_value is not None and arguments.exc_type is not SystemExit:
            record_exception(arguments.exc_value, self._bus)
        self._thread_hook(arguments)

    def close(self) -> None:
        """Take the hooks back; those that other code has put before them stay, and lead through."""
        self._is_on = False
        if sys.excepthook is self._own_program_hook:
            sys.excepthook = self._program_hook
        if threading.excepthook is self._own_thread_hook:
            threading.excepthook = self._thread_hook
