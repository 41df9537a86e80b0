"""The arguments ``to=``, ``min_priority=`` and ``keep=`` by which subscribers and readers select events."""

from __future__ import annotations

import fnmatch
from typing import Any, Final, TypeAlias

import attrs

from trackside.events._errors import ConfigError
from trackside.events._event import Event, Priority
from trackside.events.vocabulary import UnknownEvent

EventTypes: TypeAlias = "type[Event] | str | tuple[type[Event] | str, ...]"
"""An event class, a wire name, a glob of wire names, or a tuple of these."""

EVERYTHING: Final = "*"
MARKS: Final = frozenset(".*?[")
"""A text with none of these characters is neither a wire name nor a glob."""


@attrs.frozen
class SelectedTypes:
    """The event types that an argument *to* stands for; types derived from them are selected too."""

    classes: tuple[type[Event], ...]
    names: tuple[str, ...]
    """Wire names and globs of them; they match types that are declared later, too."""

    @classmethod
    def of(cls, to: object) -> SelectedTypes:
        """
        Return the types that the argument *to* selects.

        Raises:
            ConfigError: unless it is an event class, a wire name, a glob, or a tuple of one or more of these.
        """
        given = to if isinstance(to, tuple) else (to,)
        classes = tuple(one for one in given if isinstance(one, type) and issubclass(one, Event))
        names = tuple(one for one in given if isinstance(one, str) and not MARKS.isdisjoint(one))
        if not given or len(classes) + len(names) < len(given):
            raise ConfigError("to", to, "give an event class, a wire name or a glob of such, or a tuple of them")
        return cls(classes, names)

    @property
    def has_all(self) -> bool:
        """Whether every type is selected."""
        return Event in self.classes or EVERYTHING in self.names

    def has(self, typed: Event | type[Event]) -> bool:
        """Return whether a type, or an event's type, is selected; an unknown type has the name in its event."""
        cls = typed if isinstance(typed, type) else type(typed)
        if self.has_all or issubclass(cls, self.classes):
            return True
        if not self.names:
            return False
        own = {base.wire_name for base in cls.__mro__ if issubclass(base, Event) and base.wire_name}
        if isinstance(typed, UnknownEvent):
            own.add(typed.name)
        return any(fnmatch.fnmatchcase(name, glob) for glob in self.names for name in own)


def checked_priority(min_priority: Any) -> Priority:
    """
    Return the argument *min_priority* as a `Priority`; None means all.

    Raises:
        ConfigError: unless it is a priority or None.
    """
    try:
        return Priority.PROFILE if min_priority is None else Priority(min_priority)
    except ValueError:
        raise ConfigError("min_priority", min_priority, "give LIFECYCLE, ITERATION or PROFILE") from None


def checked_rule(keep: Any) -> Any:
    """
    Return the argument *keep*, checked; None keeps everything.

    Raises:
        ConfigError: unless it is a rule or None.
    """
    if keep is not None and not is_rule(keep):
        raise ConfigError("keep", keep, "give a rule: every(n), fraction(p), at_most(n, per=s), where(predicate) …")
    return keep


def is_rule(given: Any) -> bool:
    """Return whether *given* is an object with the method ``start`` of rules."""
    return not isinstance(given, type) and callable(getattr(given, "start", None))
