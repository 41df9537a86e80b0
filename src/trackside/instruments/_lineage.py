"""The span under which this process was started, and the variables that say so to the processes that it starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from trackside.events import Parent, ambient, process_source
from trackside.events.trace import PADDING, global_id, is_traceable, trace_of

VARIABLE: Final = "TRACKSIDE_PARENT"
W3C_VARIABLE: Final = "TRACEPARENT"

_OURS: Final = re.compile(r"(?P<source>[A-Za-z0-9_-]{1,64}):(?P<span>[0-9]{1,19})")
_W3C: Final = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


def parent_from(environ: Mapping[str, str] | None = None) -> Parent | None:
    """
    Return the span under which this process was started, or None if its parent did not name one.

    Read are ``TRACKSIDE_PARENT``, else W3C's ``TRACEPARENT``, of which the source is the trace: 32 hexadecimal
    digits, or the 16 of a source of ours. What is malformed is passed over, as the W3C recommends.
    """
    env = os.environ if environ is None else environ
    ours = _OURS.fullmatch(env.get(VARIABLE, ""))
    if ours is not None:
        return Parent(ours["source"], int(ours["span"]))
    theirs = _W3C.fullmatch(env.get(W3C_VARIABLE, ""))
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
