"""The events that a reader asks for: by type, wire name or glob, and by a rule."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from trackside.events._errors import ConfigError
from trackside.events._event import Event
from trackside.events.vocabulary import UnknownEvent
from trackside.rules import Decide, Rule

EventTypes: TypeAlias = "type[Event] | str | tuple[type[Event] | str, ...]"
"""An event class, a wire name, a glob of wire names, or a tuple of these."""

_EVERYTHING: Final = "*"
_MAY_NAME: Final = re.compile(r"[.*?\[]")
"""A text without any of these is neither a wire name nor a glob."""


class EventSelection:
    """
    Chooses among numbered events.

    A class and a name select the events of derived classes too. The rule decides for each source on its own, so that
    what is kept does not depend on how sources interleave.

    Args:
        to: The event types, by class, wire name or glob.
        keep: The rule that says which of their events to keep; all unless given.

    Raises:
        ConfigError: if an argument is not what it should be.
    """

    def __init__(self, to: EventTypes = Event, keep: Rule | None = None) -> None:
        given = to if isinstance(to, tuple) else (to,)
        self._classes = tuple(cls for cls in given if isinstance(cls, type) and issubclass(cls, Event))
        self._names = tuple(name for name in given if isinstance(name, str) and _MAY_NAME.search(name))
        if not given or len(self._classes) + len(self._names) < len(given):
            raise ConfigError("to", to, "give an event class, a wire name or a glob of such, or a tuple of them")
        if keep is not None and (isinstance(keep, type) or not callable(getattr(keep, "start", None))):
            raise ConfigError("keep", keep, "give a rule: every(n), fraction(p), at_most(n, per=s), where(predicate) …")
        self._keep = keep
        self._is_open = Event in self._classes or _EVERYTHING in self._names
        self._by_class: dict[type[Event], bool] = {}
        self._decisions: dict[str, Decide] = {}

    def of(self, source_id: str, events: Sequence[Event]) -> Sequence[Event]:
        """Return those of the *events* of one source that are selected."""
        if not self._is_open:
            events = [event for event in events if self._is_selected(event)]
        if self._keep is None:
            return events
        decide = self._decisions.get(source_id)
        if decide is None:
            decide = self._decisions[source_id] = self._keep.start()
        return [event for event in events if decide(event) is None]

    def _is_selected(self, event: Event) -> bool:
        if isinstance(event, UnknownEvent):
            return isinstance(event, self._classes) or self._names_any((event.name, event.wire_name))
        cls = type(event)
        known = self._by_class.get(cls)
        if known is None:
            names = [base.wire_name for base in cls.__mro__ if issubclass(base, Event) and base.wire_name]
            known = self._by_class[cls] = issubclass(cls, self._classes) or self._names_any(names)
        return known

    def _names_any(self, names: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, glob) for name in names for glob in self._names)
