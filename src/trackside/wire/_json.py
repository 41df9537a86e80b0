"""The fields of events by name, and events as JSON."""

from __future__ import annotations

import binascii
import functools
import math
from collections.abc import Callable
from typing import Any

from trackside.events._event import Event
from trackside.events._fields import own_fields
from trackside.events.vocabulary import UnknownEvent
from trackside.wire import _values as values


def fields_of(event: Event) -> dict[str, Any]:
    """Return the fields of *event* beyond its envelope, by name."""
    if isinstance(event, UnknownEvent):
        return event.fields
    return {name: getattr(event, name) for name in own_fields(type(event))}


def wire_name_of(event: Event) -> str:
    """Return the wire name of *event*; of an unknown one the name it was read under."""
    return event.name if isinstance(event, UnknownEvent) else event.wire_name


def to_json(event: Event) -> str:
    """
    Return *event* as one line of JSON, with the values that a file would hold.

    Its keys are ``source``, ``rank``, ``seq``, ``time_ns``, ``span_id``, ``step``, ``type`` and ``fields``. NaN and
    the infinities become texts, bytes base64; control characters and all beyond ASCII are escaped.

    Raises:
        Exception: any that its values raise, as when it is encoded.
    """
    source = event.source
    line = {
        "source": source.id,
        "rank": source.rank,
        "seq": event.seq,
        "time_ns": event.at_ns,
        "span_id": event.span_id,
        "step": event.step,
        "type": wire_name_of(event),
    }
    fields = fields_of(event)
    try:
        values.check_plain([*line.values(), *fields.values()])
        text = _writer()({**line, "fields": fields})
    except (TypeError, ValueError):
        pass  # perhaps it can be mended
    else:
        # JSON writes an emoji as a pair of surrogates; no other reader accepts a single one.
        if len(text) <= values.MAX_STRING_BYTES and "\\ud" not in text:
            return text
    line, _ = values.mended_map(line)
    fields = {name: values.mended(value)[0] for name, value in fields.items()}
    return _writer()(_readable({**line, "fields": fields}))


def value_to_json(value: Any) -> str:
    """
    Return one *value* as JSON, written as `to_json` writes a field.

    Raises:
        Exception: any, if it cannot be recorded, as when it is encoded.
    """
    try:
        values.check_plain([value])
        text = _writer()(value)
    except (TypeError, ValueError):
        pass
    else:
        if len(text) <= values.MAX_STRING_BYTES and "\\ud" not in text:
            return text
    return _writer()(_readable(values.mended(value)[0]))


@functools.cache
def _writer() -> Callable[[Any], str]:
    import json  # noqa: PLC0415  most processes that emit write none

    return json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


def _readable(value: Any) -> Any:
    """Return a plain *value* whose NaN, infinities and bytes are texts, since JSON has none of them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    if isinstance(value, dict):
        return {key: _readable(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_readable(entry) for entry in value]
    return value
