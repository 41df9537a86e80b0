"""
Equality, hash and repr, shared by all classes of values.

attrs would compile such methods anew for each class, and that would be half of what declaring one costs.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable
from typing import Any

import attrs

from trackside.events._fields import fields_in


class Compared:  # noqa: PLW1641  what may change has no hash
    """Equal to what is of the same class and equal in every field, and shown as it is built; it may change."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether *other* is of the same class and equal in every field."""
        if type(other) is not type(self):
            return NotImplemented
        return all(
            read(self) == read(other) for read in (_reader(field) for field in fields_in(type(self)) if field.eq)
        )

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        """Return the class and its fields."""
        shown = []
        for field in fields_in(type(self)):
            if field.repr:
                show = field.repr if callable(field.repr) else repr
                shown.append(f"{field.name}={show(getattr(self, field.name, attrs.NOTHING))}")
        return f"{type(self).__qualname__.rsplit('>.', 1)[-1]}({', '.join(shown)})"


class Value(Compared):
    """As `Compared`, and never changing, so that it has a hash: base of classes that are ``attrs.frozen``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether *other* is of the same class and equal in every field."""
        return Compared.__eq__(self, other)

    def __hash__(self) -> int:
        """Return a hash over the fields that count for it."""
        counting = (one for one in fields_in(type(self)) if (one.eq if one.hash is None else one.hash))
        return hash(tuple(_reader(field)(self) for field in counting))


def _reader(field: attrs.Attribute[Any]) -> Callable[[object], Any]:
    """Return what reads a field as it is compared, which a class may say of it: ``field(eq=…)``."""
    key = getattr(field, "eq_key", None)
    read = operator.attrgetter(field.name)
    return read if key is None else lambda value: key(read(value))
