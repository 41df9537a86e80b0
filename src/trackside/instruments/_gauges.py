"""Gauges of the machine, which the sampler reads once in each interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class MachineGauge(NamedTuple):
    """A value of the machine. If reading it fails or returns None, the value is absent, and never 0."""

    name: str
    unit: str
    """In the notation of UCUM, as OpenTelemetry has it: ``1`` for a share, ``By``, ``W``, ``J``, ``Cel``, ``Hz``."""
    help: str
    read: Callable[[], float | None]


class Share:
    """
    The growth of one total divided by the growth of another, since the last reading.

    Args:
        part: Returns a total that only grows.
        whole: Returns the total whose growth is the divisor.
    """

    def __init__(self, part: Callable[[], float], whole: Callable[[], float]) -> None:
        self._part = part
        self._whole = whole
        self._before: tuple[float, float] | None = None

    def read(self) -> float | None:
        """Return the quotient; None at the first reading, and if *whole* has not grown."""
        before, now = self._before, (self._part(), self._whole())
        self._before = now
        if before is None or now[1] <= before[1]:
            return None
        return max(0.0, now[0] - before[0]) / (now[1] - before[1])
