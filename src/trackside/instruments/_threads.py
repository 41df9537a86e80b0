"""
The context in which new threads begin: outside of every span, whatever this Python lets threads inherit.

A thread of a pool or of a data loader outlives the span in which it was started, so that span is not the parent of
what the thread does later. Without the interpreter lock, and with ``-X thread_inherit_context=1``, Python 3.14 and
later copy the context of the starter; there, trackside's own variables are left out of the copy. A context that is
handed over on purpose, as by `asyncio.to_thread` or ``Thread(context=…)``, keeps them.
"""

from __future__ import annotations

import functools
import sys
import threading
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

from trackside.events import ambient
from trackside.instruments._iteration import next_step

_OURS: Final[tuple[ContextVar[Any], ...]] = (ambient, next_step)


def begin_outside_of_spans() -> None:
    """Let threads that are started from now on begin outside of every span, where they would inherit one."""
    if not getattr(sys.flags, "thread_inherit_context", 0):
        return
    start = threading.Thread.start

    def start_outside(thread: threading.Thread) -> None:
        context = copy_context()
        for variable in _OURS:
            context.run(variable.set, Context().run(variable.get))
        context.run(start, thread)

    functools.update_wrapper(start_outside, start)
    threading.Thread.start = start_outside  # type: ignore[assignment, method-assign]
