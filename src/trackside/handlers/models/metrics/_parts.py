"""Which forward, backward and data-loading spans belong to which iteration."""

from __future__ import annotations

from typing import Final

import attrs

from trackside.events import SpanEnded, span_names

PLACES: Final = {span_names.MODEL_FORWARD: 0, span_names.MODEL_BACKWARD: 1, span_names.DATA_LOADING: 2}
"""Of what is timed, by span name; in the order of `Work.parts_ns`."""

_LOOPS: Final = frozenset((span_names.TRAINING_LOOP, span_names.VALIDATION_LOOP, span_names.TESTING_LOOP))
_MOST_OPEN: Final = 64


@attrs.define
class OpenParts:
    """
    How long the timed parts took within each span that is still open.

    They are known before the iteration around them is: a span's end hands what it holds to the span around it, until
    it arrives at an iteration, or at the loop: there it waits for the loop's next iteration.
    """

    within: dict[int, list[int]] = attrs.field(factory=dict)
    """By span id."""

    def end(self, event: SpanEnded) -> None:
        """Read the end of a span that held parts."""
        parts = self.within.pop(event.id)
        if event.name in _LOOPS:
            return
        if event.name in PLACES:
            parts[PLACES[event.name]] = event.duration_ns  # what was inside it is part of it
        held = self.within.get(event.parent_id) or self.begin(event.parent_id)
        for place, part_ns in enumerate(parts):
            held[place] += part_ns

    def begin(self, parent_id: int) -> list[int]:
        """Return where the parts of a span that is open are to be added up, as it had none so far."""
        held = self.within[parent_id] = [0, 0, 0]  # as many as PLACES
        if len(self.within) > _MOST_OPEN:  # ends of spans were lost
            del self.within[next(iter(self.within))]
        return held

    def take(self, iteration_id: int, loop_id: int) -> list[int] | None:
        """Return what belongs to the iteration that has ended, and forget it; None if there is nothing."""
        if not self.within:
            return None
        inside = self.within.pop(iteration_id, None) if iteration_id else None
        before = self.within.pop(loop_id, None) if self.within else None
        if inside is None or before is None:
            return inside or before
        return [one + other for one, other in zip(inside, before, strict=True)]
