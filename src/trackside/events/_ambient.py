"""The ambient context of the code that emits: the open span, the current step, and the next span's number."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from trackside._free_threading import immortal, kept, shared
from trackside._implementation import native

Ambient: TypeAlias = tuple[int, int]
"""
The innermost open span and the current training step of one thread or task, as ``span_id, step``.

``span_id`` is the span's id within this process, 0 for none; ``step`` is -1 for none. It is a plain tuple: one is made
for each span, and making a named tuple takes four times as long.
"""

NOWHERE: Final[Ambient] = immortal((0, -1))

# Each context, and each token that setting it makes, holds a reference to it.
_variable: Final[ContextVar[Ambient]] = kept(ContextVar("trackside.ambient", default=NOWHERE))


def _compiled() -> Any:
    """Return the compiled core's variable; the core keeps the parts of a step beside it."""
    native.keep_surroundings(_variable, NOWHERE)
    return SimpleNamespace(get=native.surroundings, set=native.surround, reset=native.reset_surroundings)


def _kept_while_set() -> Any:
    """
    Return the variable for Python before 3.12.

    There, a finalizer may run, and set a variable, while a variable is being set. CPython then reads values that it has
    freed (its issue 148891), so a copy of the context keeps them in memory.
    """

    def change(by: Callable[..., Any], argument: object) -> Any:
        copied = copy_context()
        changed = by(argument)
        del copied
        return changed

    set_, reset = partial(change, _variable.set), partial(change, _variable.reset)
    return SimpleNamespace(get=_variable.get, set=set_, reset=reset)


def _made() -> Any:
    if native is not None:
        return _compiled()
    return _variable if sys.version_info >= (3, 12) else _kept_while_set()


ambient: Final[ContextVar[Ambient]] = _made()
"""The span and the step around the running code, as a context variable."""


_ids: Final[Iterator[int]] = itertools.count(1) if native is None else native.Count(1)
next_id: Final = shared(_ids.__next__)
"""Returns the next number; one call into C, so no two threads get the same."""
