"""One event type's way into the queue."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from trackside.bus._tally import Tally
from trackside.events import ITERATION, LIFECYCLE, PROFILE, Detail, Event, HandlerRested

if TYPE_CHECKING:
    from trackside.bus._inline import Step

QUEUE_LIMIT: Final = 16_384
"""Events the queue holds at most."""

# The share of the queue that each level of detail may fill, in fifths and halves of it.
_SHARE: Final = {PROFILE: 1 / 2, ITERATION: 4 / 5, LIFECYCLE: 1.0}
_CROWD: Final = 3 / 4
"""Of its share; when a lane's events find so much in the queue, the porter is called: not for a burst that fits in."""


class Lane:
    """
    Admits events of one type, and counts them on both sides of the queue.

    ``offered = taken + shed + in the queue``, each counted where it happens: offered and shed by whoever logs,
    taken, and what of it was invalid or redacted, by the porter.
    """

    __slots__ = (
        "_append",
        "_call",
        "_crowd",
        "_limit",
        "_most",
        "_queue",
        "ceiling",
        "cls",
        "invalid",
        "offered",
        "redacted",
        "shed",
        "suppressed",
        "taken",
    )

    def __init__(self, cls: type[Event], queue: deque[Any], limit: int, call: Callable[[], object]) -> None:
        self.cls = cls
        self.offered = Tally()
        self.shed = Tally()
        self.suppressed = Tally()
        self.taken = 0
        self.invalid = 0
        self.redacted = 0
        self.ceiling: float = math.inf
        self._queue = queue
        self._append = queue.append
        self._call = call
        self._most = max(1, int(limit * _SHARE[Detail(cls.detail)]))
        self._crowd = self._limit = max(1, int(self._most * _CROWD))

    def step(self) -> Step:
        """Return this lane's step on a route."""
        return self.offered.add, self.admit, None, self

    def admit(self, event: Event) -> None:
        """Queue *event* if there is room for its level of detail, else count it as shed."""
        # Threads that look at the same moment may overshoot by one each; a lock would cost more than that.
        if len(self._queue) < self._limit:
            self._append(event)
        else:
            self._admit_to_crowd(event)

    def _admit_to_crowd(self, event: Event) -> None:
        if len(self._queue) < self._most:
            self._append(event)
        else:
            self.shed.add()
        if self._limit < self._most:  # the first since the porter was here; the others pay nothing for this
            self._limit = self._most
            self._call()

    def calm(self) -> None:
        """Note that the porter was here."""
        self._limit = self._crowd

    def offer(self, event: Event) -> None:
        """Do what `Bus.log` does with the step: count *event*, and queue it if there is room."""
        self.offered.add()
        self.admit(event)

    def fault(self, error: BaseException) -> HandlerRested | None:  # noqa: ARG002  the protocol's
        """Count an event that could not even be queued: memory is short."""
        self.shed.add()
        return None


Lanes: TypeAlias = Mapping[type[Event], Lane]


def shed_by_name(lanes: Lanes) -> dict[str, int]:
    """Return what the queue refused so far, by wire name; a class declared anew has its predecessor's."""
    counts: dict[str, int] = {}
    for lane in list(lanes.values()):
        shed = lane.shed.value
        if shed:
            counts[lane.cls.wire_name] = counts.get(lane.cls.wire_name, 0) + shed
    return counts
