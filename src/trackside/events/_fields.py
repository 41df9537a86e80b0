"""The fields of an event class, and the types they are declared with."""

from __future__ import annotations

import functools
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from trackside.events._structure import SCALARS, is_union

ENVELOPE: Final = ("at_ns", "span_id", "step")


def fields_in(cls: Any) -> Sequence[attrs.Attribute[Any]]:
    """Return all fields of *cls*, the envelope first."""
    return attrs.fields(cls)  # type: ignore[no-any-return]


def own_fields(cls: Any) -> tuple[str, ...]:
    """Return the names of the fields of *cls* beyond the envelope, in order of declaration."""
    return tuple(field.name for field in fields_in(cls) if field.name not in ENVELOPE)


def hints_of(cls: type) -> dict[str, Any]:
    """
    Return the types of the fields of *cls* by name.

    A type that cannot be found at run time (imported for type checkers alone, local to a function) is `Any`:
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
