"""Exceptions that the program's own signal handlers raise inside a call of trackside."""

from __future__ import annotations

import signal
import threading
from typing import Any


def is_from_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised *error*, which then concerns the program."""
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while hasattr(handler, "func"):  # functools.partial
            handler = handler.func
        for function in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004  its code is wanted
            code = getattr(getattr(function, "__func__", function), "__code__", None)
            if code is not None:
                codes.add(code)
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False
