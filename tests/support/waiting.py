"""Waiting for another thread or process, without end only where it never does what is waited for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def until(true: Callable[[], T], timeout_s: float = 90.0, *, what: str = "it became true") -> T:
    """Return what *true* returns, once that is true; fail after *timeout_s*, which only a failing test needs."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)
    return found
