"""Instrumenting a trainer's class, so that every trainer made of it is watched."""

from __future__ import annotations

import functools
from typing import Any, Final, TypeVar

T = TypeVar("T", bound=type)

_MARK: Final = "trackside_callback"


def hooked(cls: T, callback: Any) -> tuple[T, Any]:
    """
    Give every trainer of the class *cls* made from now on a callback, before those that it is given.

    A class that has one, its own or an inherited one, keeps it.

    Args:
        cls: The class; changed in place.
        callback: What its trainers share.

    Returns:
        The class, and the callback that its trainers have.
    """
    known = getattr(cls, _MARK, None)
    if known is not None:
        return cls, known
    make: Any = cls.__init__  # type: ignore[misc]  # this class's own

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = kwargs.get("callbacks")
        listed = list(given) if isinstance(given, (list, tuple)) else [] if given is None else [given]
        if callback not in listed:
            listed.insert(0, callback)
        make(self, *args, **{**kwargs, "callbacks": listed})

    cls.__init__ = init  # type: ignore[misc]
    setattr(cls, _MARK, callback)
    return cls, callback
