"""The ambient context of the code that emits: the open span and the current step."""

from __future__ import annotations

from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from trackside._free_threading import immortal
from trackside._implementation import native

Ambient: TypeAlias = tuple[int, int]
"""
The innermost open span and the current training step of one thread or task, as ``span_id, step``.

``span_id`` is the span's id within this process, 0 for none; ``step`` is -1 for none. A plain tuple: one is made for
each span, and a named one takes four times as long.
"""

NOWHERE: Final[Ambient] = immortal((0, -1))

_variable: Final[ContextVar[Ambient]] = ContextVar("trackside.ambient", default=NOWHERE)


def _compiled() -> Any:
    """Return what the compiled core has for the variable: the parts of a step are kept beside it."""
    native.keep_surroundings(_variable, NOWHERE)
    return SimpleNamespace(get=native.surroundings, set=native.surround, reset=native.reset_surroundings)


ambient: Final[ContextVar[Ambient]] = _variable if native is None else _compiled()
"""What surrounds the running code, to be read and set as a context variable."""
