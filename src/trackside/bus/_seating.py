"""Checking what was given to the bus, and making seats of it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from trackside.bus._inline import InlineSeat
from trackside.bus._queued import QueuedSeat
from trackside.events import FRAMES, INLINE, PORTER, SIDING, ConfigError, Detail, Event, RunsOn

if TYPE_CHECKING:
    from trackside.bus._past import Seat
    from trackside.bus._rules import Rule

_MAY_NAME: Final = re.compile(r"[.*?\[]")
"""Of a text that has none of these it is known that it is neither a wire name nor a glob of such."""
_OF_FRAME_HANDLERS: Final = ("open", "take", "flush", "close", "after_fork", "lost")


def seat_for(
    handler: Any,
    *,
    to: object,
    keep: Rule | None,
    detail: Detail | None,
    queued: bool,
    publish: Callable[[Event], None],
    log: CodeType,
) -> Seat:
    """
    Return a seat for *handler*, where it says that it runs.

    Args:
        handler: As for `Bus.subscribe`, which the next four are of too.
        to: The event types.
        keep: The rule.
        detail: The lowest level.
        queued: Whether a plain callable goes to a siding.
        publish: Where a seat behind the queue says that its handler rests.
        log: The code of `Bus.log`, whose calls are counted to find how deep a handler logs.

    Raises:
        ConfigError: if an argument is not what it should be.
    """
    runs_on = _place_of(handler, queued=queued)
    types, names = _asked_for(to)
    level = _level(detail)
    if keep is not None and (isinstance(keep, type) or not callable(getattr(keep, "start", None))):
        raise ConfigError("keep", keep, "give a rule: every(n), fraction(p), at_most(n, per=s), where(predicate) …")

    def wants(cls: type[Event]) -> bool:
        return cls.detail >= level and (issubclass(cls, types) or (bool(names) and _is_named(cls, names)))

    def wants_given(cls: type[Event]) -> bool:
        return wants(cls) and not cls.derived  # what a model derived, replay computes again

    name = name_of(handler)
    if runs_on is INLINE:
        return InlineSeat(handler, name=name, wants=wants, keep=keep, log=log)
    return QueuedSeat(
        handler,
        name=name,
        runs_on=runs_on,
        wants=wants_given if runs_on is PORTER else wants,
        keep=keep,
        audience_key=(types, names, level) if keep is None else object(),
        publish=publish,
    )


def is_event_type(cls: object) -> bool:
    """Return whether instances of *cls* can be logged."""
    return isinstance(cls, type) and issubclass(cls, Event) and isinstance(cls.detail, Detail)


def _place_of(handler: Any, *, queued: bool) -> RunsOn:
    runs_on = getattr(handler, "runs_on", INLINE)
    if not isinstance(runs_on, RunsOn):
        raise ConfigError("handler.runs_on", runs_on, "give INLINE, PORTER, SIDING or FRAMES of trackside.events")
    if runs_on is not INLINE and isinstance(handler, type):
        raise ConfigError("handler", handler, "give an instance of it")
    if runs_on is FRAMES:
        missing = [name for name in _OF_FRAME_HANDLERS if not hasattr(handler, name)]
        if missing:
            raise ConfigError("handler", handler, f"give a handler of frames the missing {', '.join(missing)}")
    elif not callable(handler):
        raise ConfigError("handler", handler, "give something callable with one argument, the event")
    return SIDING if queued and runs_on is INLINE else runs_on


def _asked_for(to: object) -> tuple[tuple[type[Event], ...], tuple[str, ...]]:
    """Return the classes in *to*, and the names and globs."""
    given = to if isinstance(to, tuple) else (to,)
    types = tuple(cls for cls in given if isinstance(cls, type) and issubclass(cls, Event))
    names = tuple(name for name in given if isinstance(name, str) and _MAY_NAME.search(name))
    if not given or len(types) + len(names) < len(given):
        raise ConfigError("to", to, "give an event class, a wire name or a glob of such, or a tuple of them")
    return types, names


def _is_named(cls: type[Event], names: tuple[str, ...]) -> bool:
    """Return whether one of *names* is that of *cls* or of a base of it, as of a class that is declared later too."""
    own = [base.wire_name for base in cls.__mro__ if issubclass(base, Event) and base.wire_name]
    return any(name == "*" or any(fnmatch.fnmatchcase(known, name) for known in own) for name in names)


def _level(detail: Detail | None) -> Detail:
    try:
        return Detail.PROFILE if detail is None else Detail(detail)
    except ValueError:
        raise ConfigError("detail", detail, "give LIFECYCLE, ITERATION or PROFILE") from None


def name_of(handler: object) -> str:
    """Return what reports call *handler*."""
    name = getattr(handler, "__qualname__", None)
    module = getattr(handler, "__module__", None)
    if not isinstance(name, str):
        name, module = type(handler).__qualname__, type(handler).__module__
    return name if module in {None, "builtins"} else f"{module}.{name}"
