"""The ambient context of the code that emits: the open span and the current step."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, TypeAlias

Ambient: TypeAlias = tuple[int, int]
"""
The innermost open span and the current training step of one thread or task, as ``span_id, step``.

``span_id`` is the span's id within this process, 0 for none; ``step`` is -1 for none. A plain tuple: one is made for
each span, and a named one takes four times as long.
"""

NOWHERE: Final[Ambient] = (0, -1)

ambient: ContextVar[Ambient] = ContextVar("trackside.ambient", default=NOWHERE)
