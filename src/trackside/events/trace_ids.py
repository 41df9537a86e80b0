"""The ids under which the W3C and OpenTelemetry know our spans: unique in the world, and the same in every reader."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from trackside.events._source import Source

PADDING: Final = "0" * 16
"""The suffix that makes a source id a trace id; a trace id with this suffix is read as a source id."""

_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_SOURCE_ID: Final = re.compile(r"[0-9a-f]{16}")
_NO_SOURCES: Final[Mapping[str, Source]] = {}
_DEEPEST: Final = 16
_LARGEST_ID: Final = (1 << 64) - 1


def is_traceable(source: Source) -> bool:
    """Return whether the trace of *source* follows from its ids alone, so that it can be passed on to others."""
    parent = source.parent
    return bool(_SOURCE_ID.fullmatch(source.id)) or (parent is not None and bool(_TRACE_ID.fullmatch(parent.source_id)))


def trace_of(source: Source, known: Mapping[str, Source] = _NO_SOURCES) -> str:
    """
    Return the trace that the spans of *source* belong to, in 32 hexadecimal digits.

    It is the trace in which the process was started, else the trace of the process that started it, else its own.

    Args:
        source: The source of the spans.
        known: Other sources by id: a parent among them may itself have a parent.
    """
    for _ in range(_DEEPEST):
        parent = source.parent
        if parent is None:
            return _trace(source.id)
        if parent.source_id not in known:
            return _trace(parent.source_id)
        source = known[parent.source_id]
    return _trace(source.id)


def global_id(source: Source, span_id: int) -> int:
    """
    Return the number of a span of *source*, unique among all spans of its trace.

    A process with a trace of its own uses its span ids unchanged; a process that shares a trace mixes its source id in.
    Only the lowest 64 bits of *span_id* count, so an invalid id, for example a negative one, has a number too.
    """
    span_id &= _LARGEST_ID
    return span_id if source.parent is None else (span_id ^ _mask(source.id)) or span_id


def parent_id(source: Source, known: Mapping[str, Source] = _NO_SOURCES) -> int:
    """Return the number, as `global_id` returns it, of the span under which *source* was started; 0 for none."""
    parent = source.parent
    if parent is None or not parent.span_id:
        return 0
    starter = known.get(parent.source_id)
    return parent.span_id & _LARGEST_ID if starter is None else global_id(starter, parent.span_id)


def _trace(source_id: str) -> str:
    if _TRACE_ID.fullmatch(source_id):
        return source_id
    if _SOURCE_ID.fullmatch(source_id) and source_id != PADDING:
        return source_id + PADDING
    import hashlib  # noqa: PLC0415  brings OpenSSL along, and only ids that are not ours need it

    return hashlib.sha256(source_id.encode()).hexdigest()[:32]


def _mask(source_id: str) -> int:
    return int(source_id if _SOURCE_ID.fullmatch(source_id) else _trace(source_id)[:16], 16)
