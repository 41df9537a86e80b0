"""The offsets of clocks, added up from the comparison of the clocks at the two ends of each link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from trackside.events import ClockCompared, Event, RunsOn
from trackside.handlers.models._model import VersionedModel
from trackside.wire import FrameView

_MOST_LINKS: Final = 16
"""From a rank over forwarders to the collector; more links are a cycle."""


@attrs.frozen
class ClockOffset:
    """The offset of one source's clock: how far it is ahead."""

    offset_ns: int
    """Subtracted from the source's ``at_ns``, it gives the time by the clock of *root*."""
    uncertainty_ns: int
    """The true offset differs from *offset_ns* by at most this."""
    root: str
    """The id of the source, a collector's, whose clock is the reference."""


@attrs.frozen
class ClocksResult:
    """The offsets, by source id."""

    offsets: dict[str, ClockOffset]
    missed: int = 0
    """Events that the model should have had and did not get."""


class ClockOffsets(VersionedModel):
    """
    Adds up the clock offsets that collectors and forwarders publish of their links (`ClockCompared`).

    ::

        (clocks,) = feed(replay("logs/"), ClockOffsets())
        offset = clocks.result().offsets[event.source.id]
        event.at_ns - offset.offset_ns  # by the collector's clock

    If a comparer compared a source more than once, the latest comparison counts. Among several comparers, the one with
    the least uncertainty counts.
    """

    version = 1

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = (ClockCompared,)

    def __init__(self) -> None:
        self._links: dict[str, dict[str, tuple[int, int, int]]] = {}
        """By compared source and comparer: time, offset and uncertainty."""

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        columns = frame.columns(ClockCompared)
        for source_id, *compared in columns.rows("source_id", "at_ns", "offset_ns", "uncertainty_ns"):
            known = self._links.setdefault(source_id, {})
            latest = tuple(compared)
            known[frame.source.id] = max(known.get(frame.source.id, latest), latest)

    def result(self) -> ClocksResult:
        """Return the offsets as they are known now."""
        return ClocksResult({source_id: self._offset(source_id) for source_id in sorted(self._links)}, self._missed)

    def _offset(self, source_id: str) -> ClockOffset:
        total_ns = uncertainty_ns = 0
        root = source_id
        for _ in range(_MOST_LINKS):
            links = self._links.get(root)
            if not links:
                break
            uncertainty, root, offset = min((doubt, name, offset) for name, (_, offset, doubt) in links.items())
            total_ns += offset
            uncertainty_ns += uncertainty
        return ClockOffset(total_ns, uncertainty_ns, root)

    def _dump(self) -> dict[str, Any]:
        links = {
            source_id: {comparer: list(latest) for comparer, latest in sorted(known.items())}
            for source_id, known in sorted(self._links.items())
        }
        return {"links": links}

    def _load(self, state: Mapping[str, Any]) -> None:
        links: dict[str, dict[str, tuple[int, int, int]]] = {}
        for source_id, known in state["links"].items():
            links[str(source_id)] = {}
            for comparer, (at_ns, offset_ns, uncertainty_ns) in known.items():
                links[str(source_id)][str(comparer)] = int(at_ns), int(offset_ns), int(uncertainty_ns)
        self._links = links
