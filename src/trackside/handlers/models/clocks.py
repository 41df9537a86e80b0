"""The model of clocks: how far each process's clock is from one that all are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from trackside.events import PORTER, ClockCompared, Event

_MOST_LINKS: Final = 16
"""From a rank over forwarders to the collector; more is a circle."""


@attrs.frozen
class ClockOffset:
    """How far one source's clock is ahead."""

    offset_ns: int
    """Subtract it from the source's ``at_ns``, and what remains is by the clock of *root*."""
    uncertainty_ns: int
    """The truth is within this of it."""
    root: str
    """Id of the source, a collector's, by whose clock it is."""


@attrs.frozen
class ClocksResult:
    """The offsets, by source id."""

    offsets: dict[str, ClockOffset]
    missed: int = 0


class ClockOffsets:
    """
    Adds up what collectors and forwarders found out about the clocks at the ends of their links (`ClockCompared`).

    ::

        (clocks,) = feed(replay("logs/"), ClockOffsets())
        offset = clocks.result().offsets[event.source.id]
        event.at_ns - offset.offset_ns  # by the collector's clock

    Where a source was compared more than once, each comparer's latest word counts, and of several the surest.
    """

    runs_on = PORTER

    def __init__(self) -> None:
        self.missed = 0
        self._links: dict[str, dict[str, tuple[int, int, int]]] = {}

    def __call__(self, event: Event) -> None:
        """Read *event* if it compares clocks."""
        if isinstance(event, ClockCompared):
            told = (event.at_ns, event.offset_ns, event.uncertainty_ns)
            by = self._links.setdefault(event.source_id, {})
            by[event.source.id] = max(by.get(event.source.id, told), told)

    def miss(self, count: int) -> None:
        """Learn that *count* events were lost on the way here."""
        self.missed += count

    def result(self) -> ClocksResult:
        """Return the offsets as they are known now."""
        return ClocksResult({source_id: self._offset(source_id) for source_id in sorted(self._links)}, self.missed)

    def _offset(self, source_id: str) -> ClockOffset:
        total_ns = uncertainty_ns = 0
        root = source_id
        for _ in range(_MOST_LINKS):
            by = self._links.get(root)
            if not by:
                break
            uncertainty, root, offset = min((sure, name, offset) for name, (_, offset, sure) in by.items())
            total_ns += offset
            uncertainty_ns += uncertainty
        return ClockOffset(total_ns, uncertainty_ns, root)

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data."""
        links = {
            name: {one: list(told) for one, told in sorted(by.items())} for name, by in sorted(self._links.items())
        }
        return {"links": links, "missed": self.missed}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the state that `dump` returned."""
        self.missed = state["missed"]
        self._links = {name: {one: tuple(told) for one, told in by.items()} for name, by in state["links"].items()}
