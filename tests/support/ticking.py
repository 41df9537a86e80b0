"""The event of tests to which it does not matter what happened."""

from __future__ import annotations

from trackside.events import Event, event


@event("test.ticked")
class Ticked(Event):
    number: int = 0
