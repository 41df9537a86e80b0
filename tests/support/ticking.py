"""The event of tests to which it does not matter what happened, and a value that no event can hold."""

from __future__ import annotations

from trackside.events import Event, event


@event("test.ticked")
class Ticked(Event):
    number: int = 0
    text: str = ""


class Unencodable:
    """A value that cannot be encoded."""

    __slots__ = ()

    def __hash__(self) -> int:
        raise TypeError("no hash")

    def __repr__(self) -> str:
        raise ValueError("no text")
