"""What surrounds the code that emits: the open span and the current step."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple


class Ambient(NamedTuple):
    """The innermost open span and the current training step of one thread or task."""

    span_id: int
    """The span's id within this process; 0 for none."""
    step: int
    """The training step; -1 for none."""


NOWHERE = Ambient(0, -1)

ambient: ContextVar[Ambient] = ContextVar("trackside.ambient", default=NOWHERE)
