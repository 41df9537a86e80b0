"""One event as one line that fits the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from trackside.core import text
from trackside.events import Event, Priority
from trackside.wire import fields_of, wire_name_of

PIPE_WIDTH: Final = 200
"""Where neither a terminal nor ``COLUMNS`` says how wide a line may be."""
NARROW: Final = 60
"""With fewer columns the date's place, the milliseconds and the words for rank and step are left out."""
_PREFIX: Final = "trackside."
_BAD: Final = ("dropped", "suspended", "failed", "lost", "silent", "raised", "stall", "cut", "unavailable", "disorder")
_DIM, _BOLD, _RED, _CYAN, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[31m", "\x1b[36m", "\x1b[0m"
_HIDDEN: Final = frozenset({"parent_span_id", "open_spans", "sketch", "traceback"})
_DATES_NS: Final = 10**17
"""From here on, in 1973, nanoseconds are a time and no duration."""
_FIRST: Final = ("duration_ns", "loss", "type", "message", "goodput")
_AGGREGATES: Final = ("mean", "last", "sum", "min", "max")


class EventLines:
    """
    Events as lines of the width that there is, in colour in a terminal, and not with ``NO_COLOR``.

    Args:
        width: Columns; those of the terminal or of ``COLUMNS`` unless given, and 200 where there is neither.
    """

    def __init__(self, *, width: int | None = None) -> None:
        is_terminal = sys.stdout.isatty()
        self._width = width or shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
        self._has_colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, event: Event) -> str:
        """Return *event* as one line: time, rank, step, name, and of its fields what is not as always."""
        name = text.printable(wire_name_of(event).removeprefix(_PREFIX))
        rest = text.printable("  ".join(said(event)))
        is_narrow = self._width < NARROW
        clock = text.clock(event.at_ns, has_ms=True).partition(" ")[2]
        role = "" if event.source.role == "main" else f"/{text.printable(event.source.role)}"
        if is_narrow:
            head = f"{clock[:8]} {event.source.rank}{role} "
        else:
            step = f"step {event.step}" if event.step >= 0 else ""
            head = f"{clock}  rank {event.source.rank}{role}  {step:<9}  "
        line = f"{head}{name}  {rest}".rstrip()
        if len(line) > self._width:
            line = line[: self._width - 1] + "…"
        if not self._has_colour:
            return line
        style = _style(event, name)
        shown_name = line[len(head) : len(head) + len(name)]
        return f"{_DIM}{line[: len(head)]}{_RESET}{style}{shown_name}{_RESET}{line[len(head) + len(name) :]}"


def globs(chosen: Iterable[str]) -> tuple[str, ...]:
    """Return the patterns of ``--type``, also for types that are given as they are shown, without ``trackside.``."""
    return tuple(given for glob in chosen for given in (glob, _PREFIX + glob))


def said(event: Event) -> Iterator[str]:
    """Yield what *event* says, the most informative first; what has its default value is left out."""
    fields = dict(fields_of(event))
    identity = fields.get("identity")
    if isinstance(identity, Mapping):
        yield f"rank {identity.get('rank')} of {identity.get('world_size')}"
        yield f"{identity.get('application', '')} on {identity.get('host')}, process {identity.get('pid')}".strip()
        return
    if "total_count" in fields and isinstance(fields.get("values"), Mapping):  # a counter's window
        unit, values = str(fields.get("unit") or ""), fields["values"]
        yield f"{fields.get('name')}  {fields.get('count')} values"
        for key in sorted(values, key=lambda key: _AGGREGATES.index(key) if key in _AGGREGATES else len(_AGGREGATES)):
            if key != "count":
                yield f"{key}={_value(values[key])} {unit}".rstrip()
        return
    defaults = _defaults(type(event))
    for plain in ("name", "kind"):
        if isinstance(fields.get(plain), str) and fields[plain] and fields[plain] != defaults.get(plain):
            yield fields.pop(plain)
    for key in sorted(fields, key=_place):
        value = fields[key]
        if key in _HIDDEN or _is_empty(value) or (key in defaults and value == defaults[key]):
            continue
        if key == "duration_ns":
            yield text.duration(value) if isinstance(value, int) else f"{key}={value}"
        elif isinstance(value, Mapping):
            if key in {"values", "attributes", "counts"}:
                yield from (_field(str(inner), given) for inner, given in value.items() if key != "counts" or given)
            else:
                yield f"{key}: {', '.join(f'{inner} {_value(given)}' for inner, given in value.items())}"
        elif value is True:
            yield key
        else:
            yield _field(key, value)


def _place(key: str) -> int:
    """Return where a field stands: before the others, among them, or behind them, as what only a program compares."""
    return _FIRST.index(key) if key in _FIRST else len(_FIRST) + key.endswith("_id")


def _defaults(kind: type[Event]) -> dict[str, Any]:
    fields: tuple[attrs.Attribute[Any], ...] = kind.__attrs_attrs__
    return {field.name: field.default for field in fields if isinstance(field.default, (int, float, str))}


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, (str, bytes, list, tuple, dict)) and not value)


def _field(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if key.endswith("_ns"):
            return f"{key[:-3]}={text.duration(value) if abs(value) < _DATES_NS else text.clock(int(value))}"
        if key.endswith("_bytes"):
            return f"{key[:-6]}={text.amount(value, 'bytes')}"
    return f"{key}={_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    return str(value)


def _style(event: Event, name: str) -> str:
    if any(word in name for word in _BAD) or getattr(event, "failed", False) or getattr(event, "error", None):
        return _BOLD + _RED
    return _BOLD + _CYAN if event.priority is Priority.LIFECYCLE else _BOLD
