"""
The spans under which child threads and child processes begin.

A child process begins under the span in which it was started, which the environment names. A thread begins outside of
every span, because a thread of a pool or of a data loader outlives the span in which it was started. Without the
interpreter lock, and with ``-X thread_inherit_context=1``, Python 3.14 and later copy the context of the starter;
there, trackside's own variables are left out of the copy. A context that is passed on purpose, for example by
`asyncio.to_thread` or ``Thread(context=…)``, keeps them.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

from trackside.events import Parent, ambient, process_source
from trackside.events.trace_ids import PADDING, global_id, is_traceable, trace_of
from trackside.instruments._iteration import next_step

VARIABLE: Final = "TRACKSIDE_PARENT"
W3C_VARIABLE: Final = "TRACEPARENT"

_OUR_PARENT: Final = re.compile(r"(?P<source>[A-Za-z0-9_-]{1,64}):(?P<span>[0-9]{1,19})")
_W3C_PARENT: Final = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def parent_from(environ: Mapping[str, str] | None = None) -> Parent | None:
    """
    Return the span under which this process was started, or None if its parent did not name one.

    Reads ``TRACKSIDE_PARENT``, else W3C's ``TRACEPARENT``. In the latter the source is the trace: 32 hexadecimal
    digits, or 16 for a source of trackside's. A malformed value is ignored, as the W3C recommends.
    """
    env = os.environ if environ is None else environ
    ours = _OUR_PARENT.fullmatch(env.get(VARIABLE, ""))
    if ours is not None:
        return Parent(ours["source"], int(ours["span"]))
    theirs = _W3C_PARENT.fullmatch(env.get(W3C_VARIABLE, ""))
    if theirs is None or theirs["trace"] == 2 * PADDING or theirs["span"] == PADDING:
        return None
    return Parent(theirs["trace"].removesuffix(PADDING), int(theirs["span"], 16))


def environ_for_child() -> dict[str, str]:
    """
    Return the variables that make a process started now a child of the innermost open span.

    ::

        subprocess.run(command, env={**os.environ, **environ_for_child()})
    """
    source, span_id = process_source(), ambient.get()[0]
    variables = {VARIABLE: f"{source.id}:{span_id}"}
    if is_traceable(source) and span_id:
        variables[W3C_VARIABLE] = f"00-{trace_of(source)}-{global_id(source, span_id):016x}-01"
    return variables


_OURS: Final[tuple[ContextVar[Any], ...]] = (ambient, next_step)


def begin_outside_of_spans() -> None:
    """Have threads that are started from now on begin outside of every span, if they would inherit one."""
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
