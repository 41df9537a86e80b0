"""Enums whose members are texts, also when they are printed."""

from __future__ import annotations

import enum


class StrEnum(str, enum.Enum):
    """A class like ``enum.StrEnum``, which Python 3.10 lacks."""

    def __str__(self) -> str:
        return str(self.value)


def text_of(name: str | enum.Enum) -> str:
    """Return a name that may be an enum's member as text."""
    return str(name.value) if isinstance(name, enum.Enum) else str(name)
