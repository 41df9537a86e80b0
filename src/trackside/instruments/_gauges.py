"""Values that the sampler reads off the machine now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class MachineGauge(NamedTuple):
    """A value that can be read off the machine. Reading it may fail or return None: it is then absent, and never 0."""

    name: str
    unit: str
    """In the notation of UCUM, as OpenTelemetry has it: ``1`` for a share, ``By``, ``W``, ``J``, ``Cel``, ``Hz``."""
    help: str
    read: Callable[[], float | None]


class Share:
    """
    How much one total grew for each unit that another one grew by, since it was read last.

    Args:
        part: Returns a total that only grows.
        whole: Returns what to compare it with.
    """

    def __init__(self, part: Callable[[], float], whole: Callable[[], float]) -> None:
        self._part = part
        self._whole = whole
        self._before: tuple[float, float] | None = None

    def read(self) -> float | None:
        """Return it; None at first, and where nothing has grown."""
        before, now = self._before, (self._part(), self._whole())
        self._before = now
        if before is None or now[1] <= before[1]:
            return None
        return max(0.0, now[0] - before[0]) / (now[1] - before[1])
