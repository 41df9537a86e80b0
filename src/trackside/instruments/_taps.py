"""What a framework has no hooks for, seen by standing in for methods of its objects and classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_ABSENT: Final = object()


class _Tap(NamedTuple):
    owner: Any
    name: str
    before: Any
    """What stood in the owner's own dictionary; absent if it was inherited."""
    stand_in: Any


class Taps:
    """The methods that something stands in for, to be put back."""

    def __init__(self) -> None:
        self._taps: list[_Tap] = []

    def __len__(self) -> int:
        return len(self._taps)

    def put(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Let what *make* returns of the method *name* of *owner*, an object or a class, stand in for it."""
        method = getattr(owner, name, None)
        if method is None:
            return
        before = vars(owner).get(name, _ABSENT)
        stand_in = make(method)
        setattr(owner, name, stand_in)
        self._taps.append(_Tap(owner, name, before, stand_in))

    def remove(self) -> None:
        """Put everything back, the latest first; what somebody else has replaced since stays as they left it."""
        while self._taps:
            tap = self._taps.pop()
            if vars(tap.owner).get(tap.name) is not tap.stand_in:
                continue
            if tap.before is _ABSENT:
                delattr(tap.owner, tap.name)
            else:
                setattr(tap.owner, tap.name, tap.before)
