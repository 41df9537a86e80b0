"""Wire names and the classes behind them."""

from __future__ import annotations

import importlib
import re
import weakref
from typing import TYPE_CHECKING

from trackside.events._errors import ConfigError, DuplicateEventError
from trackside.events._fields import MAX_NAME_LENGTH, check_schema, own_fields

if TYPE_CHECKING:
    from trackside.events._event import Event

_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_MAX_VERSION = 65_535
_TAKEN = frozenset({"source", "seq", "wire_name", "version", "priority", "derived"})
_MAIN = frozenset({"__main__", "__mp_main__"})
_OWN = "trackside."
# Those of trackside's own events that an import of trackside leaves out, for what it costs to make their classes.
_LATER = tuple(
    f"trackside.events.{name}" for name in ("goodput", "metrics", "remote", "sections", "system", "training")
)

_classes: dict[str, type[Event]] = {}
_declared: weakref.WeakSet[type[Event]] = weakref.WeakSet()


def check_names(name: object, version: object) -> None:
    """
    Check how an event class wants to be known.

    Raises:
        ConfigError: if the name or the version is malformed.
    """
    if not (isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name)):
        raise ConfigError(
            "event name",
            name,
            f'give a lower-case dotted name of at most {MAX_NAME_LENGTH} characters, as "acme.batch.skipped"',
        )
    if type(version) is not int or not 1 <= version <= _MAX_VERSION:
        raise ConfigError("event version", version, f"give a whole number from 1 to {_MAX_VERSION}")


def register(cls: type[Event]) -> None:
    """
    Make *cls* known under its wire name.

    A class that is declared again (a reloaded module, a notebook cell run twice) replaces its older self.

    Raises:
        ConfigError: if fields have names that they cannot have.
        DuplicateEventError: if another class has the name.
    """
    fields = own_fields(cls)
    taken = sorted(_TAKEN.intersection(fields))
    if taken:
        raise ConfigError(
            f"field {taken[0]!r} of {cls.__qualname__}", taken[0], "every event has it already; rename it"
        )
    try:
        check_schema(cls.wire_name, cls.version, fields)
    except ValueError as error:
        raise ConfigError(f"fields of {cls.__qualname__}", len(fields), str(error)) from None
    holder = _classes.get(cls.wire_name) if cls.__module__.startswith(_OWN) else lookup(cls.wire_name)
    if holder is not None and not _is_redeclared(holder, cls):
        raise DuplicateEventError(cls.wire_name, holder, cls)
    _classes[cls.wire_name] = cls
    _declared.add(cls)


def _is_redeclared(holder: type, cls: type) -> bool:
    return holder.__qualname__ == cls.__qualname__ and (
        holder.__module__ == cls.__module__ or not _MAIN.isdisjoint((holder.__module__, cls.__module__))
    )


def lookup(name: str) -> type[Event] | None:
    """Return the class declared as *name*, or None."""
    if name not in _classes and name.startswith(_OWN):
        _load_all()
    return _classes.get(name)


def _load_all() -> None:
    for module in _LATER:
        importlib.import_module(module)


def is_declared(cls: type) -> bool:
    """
    Return whether *cls* itself, not only a base of it, was declared with ``@event``.

    True also of a class that was declared again since: code that holds on to the older one still publishes.
    """
    return cls in _declared


def declared() -> dict[str, type[Event]]:
    """Return a copy of the table of wire names, sorted."""
    _load_all()
    return dict(sorted(_classes.items()))
