"""The fields of an event class, the types they are declared with, and the methods of classes that consist of fields."""

from __future__ import annotations

import functools
import operator
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs

SCALARS: Final = (bool, int, float, str, bytes, type(None))


def is_union(hint: Any) -> bool:
    """Return whether *hint* is a union of types, ``X | None`` included."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


ENVELOPE: Final = ("at_ns", "span_id", "step")
STAMPS: Final = ("_source", "_seq")
"""The slots of an event besides its fields: dispatcher and decoder write them."""


def fields_in(cls: Any) -> Sequence[attrs.Attribute[Any]]:
    """Return all fields of *cls*, the envelope first."""
    return attrs.fields(cls)  # type: ignore[no-any-return]


def own_fields(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of *cls* beyond the envelope, in order of declaration."""
    return tuple(field.name for field in fields_in(cls) if field.name not in ENVELOPE)


def hints_of(cls: type) -> dict[str, Any]:
    """
    Return the types of the fields of *cls* by name.

    A type that cannot be found at run time (imported only for type checkers, local to a function) is `Any`:
    values of such a field are read as they were written.
    """
    evaluated: dict[str, Any] = _evaluated(cls)
    return evaluated


@functools.lru_cache(maxsize=4096)
def _evaluated(cls: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # one annotation that does not evaluate must not cost the other fields their types
        scopes = [vars(sys.modules[base.__module__]) for base in cls.__mro__ if base.__module__ in sys.modules]
        return {field.name: _resolved(field.type, scopes) for field in fields_in(cls)}


def _resolved(annotation: Any, scopes: Iterable[dict[str, Any]]) -> Any:
    for scope in scopes:
        bearer = types.SimpleNamespace(__annotations__={"field": annotation})
        try:
            return typing.get_type_hints(bearer, globalns=scope)["field"]
        except Exception:  # noqa: S112  the next class in the line of inheritance may know it
            continue
    return Any


def is_flat(hints: Iterable[Any]) -> bool:
    """Return whether values of all these types are scalars."""
    return all(hint in SCALARS or (is_union(hint) and is_flat(typing.get_args(hint))) for hint in hints)


MAX_NAME_LENGTH: Final = 128
MAX_MAP_LENGTH: Final = 1 << 10
"""The most entries in a map, and the most fields in a type."""
MAX_SCHEMA_LENGTH: Final = 1 << 14
"""The most characters in all field names of one type together."""
_EXACT_TEXT: Final = frozenset((str,))


def check_schema(name: Any, version: Any, names: Any) -> None:
    """
    Check the schema of an event type: its name, its version and the names of its fields.

    Raises:
        TypeError: if they are not a text, a whole number and a list of texts.
        ValueError: if the names are too long or too many, or a field is named twice.
    """
    if type(name) is not str or type(version) is not int or type(names) not in (list, tuple):
        raise TypeError("a schema is a name, a version and the names of its fields")
    if len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"a name of {len(name)} characters; at most {MAX_NAME_LENGTH}")
    if len(names) > MAX_MAP_LENGTH:
        raise ValueError(f"{len(names)} fields; at most {MAX_MAP_LENGTH}")
    if not _EXACT_TEXT.issuperset(map(type, names)):
        raise TypeError("a field's name is a text")
    if sum(map(len, names)) > MAX_SCHEMA_LENGTH:
        raise ValueError(f"the names of the fields have more than {MAX_SCHEMA_LENGTH} characters")
    if len({*ENVELOPE, *names}) < len(ENVELOPE) + len(names):
        raise ValueError("a field is named twice, or like one of the envelope")


class Compared:  # noqa: PLW1641  what may change has no hash
    """Base of mutable classes whose objects are equal if all fields are equal, and whose repr shows the fields."""

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
    """Like `Compared`, but immutable and with a hash: base of classes that are ``attrs.frozen``."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Return whether *other* is of the same class and equal in every field."""
        return Compared.__eq__(self, other)

    def __hash__(self) -> int:
        """Return a hash of the fields that are compared, unless ``field(hash=…)`` says otherwise."""
        counting = (one for one in fields_in(type(self)) if (one.eq if one.hash is None else one.hash))
        return hash(tuple(_reader(field)(self) for field in counting))


def _reader(field: attrs.Attribute[Any]) -> Callable[[object], Any]:
    """Return a function that reads a field for comparison, through the key in its ``field(eq=…)`` if it has one."""
    key = getattr(field, "eq_key", None)
    read = operator.attrgetter(field.name)
    return read if key is None else lambda value: key(read(value))
