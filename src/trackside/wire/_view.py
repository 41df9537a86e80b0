"""
A frame as models read it: by type in columns, or event by event in order.

This is the reference in Python, over events that exist. Column by column is also how frames lie in memory where
their events were not built.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, cast

from trackside.events._event import Event
from trackside.events._source import Source

E = TypeVar("E", bound=Event)

MOST_EVENTS: Final = 1_024
"""The most events of a view that `views` yields, so that the memory is bounded."""

_number = attrgetter("seq")


class EventColumns(Generic[E]):
    """
    The events of one type in one frame, field by field.

    All columns run parallel to *seqs*. A base type's columns hold the events of its subclasses too, in order.
    """

    __slots__ = ("events",)

    def __init__(self, events: Sequence[E]) -> None:
        self.events: Sequence[E] = events

    def __len__(self) -> int:
        return len(self.events)

    @property
    def seqs(self) -> list[int]:
        """The numbers of the events in their source's stream, rising; with them types are merged in order."""
        return list(map(_number, self.events))

    def __getitem__(self, field: str) -> list[Any]:
        """Return the values of one field, of the envelope's too: ``columns["at_ns"]``."""
        return list(map(attrgetter(field), self.events))

    def rows(self, *fields: str) -> Iterable[Any]:
        """Return the values of *fields* as one tuple an event; of a single field the values themselves."""
        return map(attrgetter(*fields), self.events)


class FrameView:
    """
    One frame, or a part of one, of one source.

    Making one costs the same however many events it has.

    Args:
        source: The process that the events come from.
        events: Its events, in the order of their numbers.
    """

    __slots__ = ("_kinds", "events", "source")

    def __init__(self, source: Source, events: Sequence[Event]) -> None:
        self.source: Source = source
        self.events: Sequence[Event] = events
        self._kinds: frozenset[type[Event]] | None = None

    def __len__(self) -> int:
        return len(self.events)

    def columns(self, cls: type[E]) -> EventColumns[E]:
        """Return the columns of the events that are a *cls*; derived ones only if *cls* itself is derived."""
        return EventColumns(cast("Sequence[E]", self.of(cls)))

    def of(self, *classes: type[Event]) -> Sequence[Event]:
        """Return the events of these classes and of their subclasses, in order; derived ones only if asked for."""
        if self._kinds is None:
            self._kinds = frozenset(map(type, self.events))
        wanted = {kind for kind in self._kinds if _is_asked_for(kind, classes)}  # type: ignore[arg-type]  # classes are hashable
        if len(wanted) == len(self._kinds):
            return self.events
        return [event for event in self.events if type(event) in wanted] if wanted else ()


def views(events: Iterable[Event]) -> Iterator[FrameView]:
    """Yield numbered *events* of any sources as views: one for each stretch of the same source, of bounded length."""
    for source, run in groupby(events, attrgetter("source")):
        while part := list(islice(run, MOST_EVENTS)):
            yield FrameView(source, part)


def deliver(handler: Any, view: FrameView) -> None:
    """Let a model consume *view*; call any other handler with each of its events that is not derived."""
    if hasattr(handler, "consume"):
        handler.consume(view)
        return
    for event in view.events:
        if not event.derived:
            handler(event)


@functools.lru_cache(maxsize=4096)
def _is_asked_for(kind: type[Event], classes: tuple[type[Event], ...]) -> bool:
    if kind.derived:
        return any(cls.derived and issubclass(kind, cls) for cls in classes)
    return issubclass(kind, classes)
