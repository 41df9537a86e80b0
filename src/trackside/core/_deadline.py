"""Deadlines on the monotonic clock, for calls that share one timeout."""

from __future__ import annotations

import threading
import time


def deadline_in(timeout_s: float) -> float:
    """Return the moment *timeout_s* from now: not in the past, and not beyond what locks can wait for."""
    return time.monotonic() + min(max(0.0, timeout_s), threading.TIMEOUT_MAX / 2)


def left_s(deadline_s: float) -> float:
    """Return the seconds until *deadline_s*, at least 0."""
    return max(0.0, deadline_s - time.monotonic())
