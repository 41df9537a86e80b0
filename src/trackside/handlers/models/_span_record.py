"""A span as `SpanBuilder` remembers it."""

from __future__ import annotations

import base64
from typing import Any, Final

import attrs

from trackside.events._values import mended

_SCALARS: Final = frozenset((bool, int, float, str, type(None)))


@attrs.define
class Record:
    """A span, open or ended."""

    id: int
    parent_id: int
    name: str
    detail: str
    step: int
    start_ns: int
    duration_ns: int | None = None
    attributes: dict[str, Any] = attrs.field(factory=dict)
    error: dict[str, str] | None = None
    failed: bool = False
    events: list[list[Any]] = attrs.field(factory=list)
    """``[name, at_ns, attributes]`` each."""


def plain(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return *attributes* as a replay would read them, and as JSON takes them."""
    if _SCALARS.issuperset(map(type, attributes.values())):
        return attributes
    kept: dict[str, Any] = {}
    for name, value in attributes.items():
        try:
            kept[name] = _json(mended(value)[0])
        except (TypeError, ValueError):
            kept[name] = None
    return kept


def _json(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, dict):
        return {key: _json(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_json(entry) for entry in value]
    return value
