"""A clock in seconds, for parts that are given one."""

from __future__ import annotations


class SecondsClock:
    """A clock that stands still until a test sets it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s
