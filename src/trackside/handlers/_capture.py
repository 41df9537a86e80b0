"""A handler for tests, which keeps the events that it gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from trackside.events import Event

E = TypeVar("E", bound=Event)


class Capture:
    """
    Keeps every event it is called with, in order.

    ::

        captured = Capture()
        with trackside.subscribe(captured, to=BatchSkipped):
            train_one_step()
        assert [event.reason for event in captured.of(BatchSkipped)] == ["loss is nan"]
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Keep *event*."""
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of type *kind*, subclasses included."""
        return [event for event in self.events if isinstance(event, kind)]

    def clear(self) -> None:
        """Forget everything kept so far."""
        self.events.clear()

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
