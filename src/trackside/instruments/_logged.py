"""What a framework logs: its numbers, as the script or its trainer hands them over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trackside.bus import counter, default_bus
from trackside.events import SpanEventAdded, ambient

LOGGED: Final = "logged"
"""The name of the span event that holds it."""


def publish_logged(values: Mapping[str, Any], step: int, *, name: str = LOGGED, counts: bool = True) -> None:
    """
    Publish *values*: one event with all of them, and the numbers among them as counters of the same names.

    Args:
        values: What is logged, by name.
        step: The iteration that it belongs to; -1 for none.
        name: What the event is called.
        counts: Whether the numbers become counters.
    """
    if default_bus.wants(SpanEventAdded):
        told = {str(key): value for key, value in values.items()}
        default_bus.log(SpanEventAdded(span_id=ambient.get()[0], step=step, name=name, attributes=told))
    for key, value in values.items() if counts else ():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            counter(str(key)).add(value)
