"""The ambient context of the code that emits: the open span, the current step, and the next span's number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from trackside._free_threading import immortal, kept, shared
from trackside._implementation import native

Ambient: TypeAlias = tuple[int, int]
"""
The innermost open span and the current training step of one thread or task, as ``span_id, step``.

``span_id`` is the span's id within this process, 0 for none; ``step`` is -1 for none. A plain tuple: one is made for
each span, and a named one takes four times as long.
"""

NOWHERE: Final[Ambient] = immortal((0, -1))

# Each context and each token that is made when it is set refers to it.
_variable: Final[ContextVar[Ambient]] = kept(ContextVar("trackside.ambient", default=NOWHERE))


def _compiled() -> Any:
    """Return what the compiled core has for the variable: the parts of a step are kept beside it."""
    native.keep_surroundings(_variable, NOWHERE)
    return SimpleNamespace(get=native.surroundings, set=native.surround, reset=native.reset_surroundings)


ambient: Final[ContextVar[Ambient]] = _variable if native is None else _compiled()
"""What surrounds the running code, to be read and set as a context variable."""


_ids: Final[Iterator[int]] = itertools.count(1) if native is None else native.Count(1)
next_id: Final = shared(_ids.__next__)
"""Returns the next number; one call into C, so no two threads get the same."""
