"""Values of all kinds as the few kinds that attributes of spans may have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from trackside.events._values import mended

Attribute: TypeAlias = "str | bool | int | float | list[str] | list[bool] | list[int] | list[float]"

_SCALARS: Final = (bool, int, float, str)
_MOST: Final = 1 << 63


def attributes_of(given: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return *given* with scalars and lists of one kind of scalar as they are, None left out, and the rest as text."""
    kept: dict[str, Attribute] = {}
    for name, value in given.items():
        if value is not None:
            kept[str(name)] = value if type(value) in (bool, float, str) else _fit(value)
    return kept


def _fit(value: Any) -> Attribute:
    try:
        plain = mended(value)[0]
    except (TypeError, ValueError):
        return str(value)
    if isinstance(plain, int):
        return plain if -_MOST <= plain < _MOST else str(plain)
    if (
        isinstance(plain, list)
        and plain
        and type(plain[0]) in _SCALARS
        and {type(one) for one in plain} == {type(plain[0])}
    ):
        return plain if type(plain[0]) is not int or all(-_MOST <= one < _MOST for one in plain) else json.dumps(plain)
    if isinstance(plain, (list, dict)):
        return json.dumps(plain, default=str)
    return plain if type(plain) in _SCALARS else str(plain)
