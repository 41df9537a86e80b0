"""Patches: methods of a framework's objects and classes replaced, where it has no hook, and put back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_ABSENT: Final = object()


class _Patch(NamedTuple):
    owner: Any
    name: str
    before: Any
    """The entry of the owner's own dictionary; absent if the method was inherited."""
    replacement: Any


class Patches:
    """Replaced methods, to be put back."""

    def __init__(self) -> None:
        self._applied: list[_Patch] = []

    def __len__(self) -> int:
        return len(self._applied)

    def replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace the method *name* of *owner*, an object or a class, by what *make* returns when called with it."""
        method = getattr(owner, name, None)
        if method is None:
            return
        before = vars(owner).get(name, _ABSENT)
        replacement = make(method)
        setattr(owner, name, replacement)
        self._applied.append(_Patch(owner, name, before, replacement))

    def remove(self) -> None:
        """Put every method back, the latest first; one that other code has replaced since stays as it is."""
        while self._applied:
            patch = self._applied.pop()
            if vars(patch.owner).get(patch.name) is not patch.replacement:
                continue
            if patch.before is _ABSENT:
                delattr(patch.owner, patch.name)
            else:
                setattr(patch.owner, patch.name, patch.before)
