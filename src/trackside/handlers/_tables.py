"""
Events as rows of a table: which columns an event type has, and what goes into them.

Knows nothing of the format that the tables are written in.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from trackside.events import Event, own_fields, value_to_json
from trackside.events._fields import hints_of
from trackside.events._structure import is_union

Kind: TypeAlias = Literal["int", "float", "bool", "text", "bytes", "json"]
Row: TypeAlias = tuple[Any, ...]
"""The envelope, and a value for each column."""

_KINDS: Final[dict[Any, Kind]] = {int: "int", float: "float", bool: "bool", str: "text", bytes: "bytes"}
_TYPES: Final[dict[Kind, frozenset[type]]] = {
    "int": frozenset((int,)),
    "float": frozenset((float, int)),
    "bool": frozenset((bool,)),
    "text": frozenset((str,)),
    "bytes": frozenset((bytes,)),
}
_NONE: Final = frozenset((type(None),))

ENVELOPE: Final = ("seq", "time_ns", "span_id", "step")
"""The columns that every type has; before them stands the id of the ``source``."""
PARTITIONS: Final = ("session", "attempt", "rank")
UNFIT: Final = "unfit"
"""The column for what its own column cannot hold: a JSON object, by field; NULL nearly always."""
_RESERVED: Final = frozenset(("source", *ENVELOPE, *PARTITIONS, UNFIT))


@attrs.frozen
class Column:
    """One field of an event type as a column."""

    field: str
    kind: Kind
    nesting: str = ""
    """``list`` or ``map`` (by text) of *kind*; empty for a single value."""

    @property
    def name(self) -> str:
        """What the column is called: as the field, with an underscore behind it where that name is taken."""
        return f"{self.field}_" if self.field in _RESERVED else self.field

    def prepared(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return *values* as the column holds them; NULL for None."""
        if self.kind == "json" and not self.nesting:
            return [_json(value) for value in values]
        return values

    def holds(self, values: Iterable[Any]) -> bool:
        """Return whether all of *values* are of the column's type; one may still be too large."""
        if self.nesting:
            kind, told = (dict if self.nesting == "map" else list), [value for value in values if value is not None]
            if any(type(value) is not kind for value in told):
                return False
            values = [entry for value in told for entry in (value.values() if kind is dict else value)]
        # A set of types is made in C, whatever the number of values.
        return self.kind == "json" or (_TYPES[self.kind] | _NONE).issuperset(map(type, values))


def _json(value: Any) -> str | None:
    if value is None:
        return None
    return "{}" if value == {} else value_to_json(value)


def columns_of(cls: type[Event]) -> list[Column]:
    """Return the columns for the fields of *cls*, by their declared types."""
    hints = hints_of(cls)
    return [_column(name, hints[name]) for name in own_fields(cls)]


def _column(name: str, hint: Any) -> Column:
    options = [option for option in typing.get_args(hint) if option is not type(None)] if is_union(hint) else [hint]
    if len(options) != 1:
        return Column(name, "float" if set(options) == {int, float} else "json")
    (hint,) = options
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and inner[0] in _KINDS:
        return Column(name, _KINDS[inner[0]], "list")
    if origin is dict and inner[0] is str and inner[1] in _KINDS:
        return Column(name, _KINDS[inner[1]], "map")
    return Column(name, _KINDS.get(hint, "json"))


def columns_in(rows: Sequence[dict[str, Any]]) -> list[Column]:
    """Return columns for fields of which nothing is declared, by the values that *rows* have."""
    seen: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            seen.setdefault(name, set()).add(type(value))
    return [Column(name, _kind(types - _NONE)) for name, types in seen.items()]


def _kind(types: set[type]) -> Kind:
    fits: list[Kind] = [kind for kind, allowed in _TYPES.items() if types and allowed.issuperset(types)]
    return fits[0] if fits else "json"
