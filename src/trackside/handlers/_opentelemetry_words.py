"""What our events are called in OpenTelemetry: its conventions' names where there are any, ours where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trackside.events import LIFECYCLE, Event, Source, fields_of, span_names, wire_name_of
from trackside.handlers._assembly import WholeSpan

_WARNINGS: Final = (
    "trackside.checkpoint.failed",
    "trackside.events.lost",
    "trackside.events.shed",
    "trackside.gpu_timing.unavailable",
    "trackside.handler.rested",
    "trackside.peer.cut",
    "trackside.rank.silent",
    "trackside.span.misplaced",
)
_EXCEPTION: Final = {
    span_names.EXCEPTION_TYPE: "exception.type",
    span_names.EXCEPTION_MESSAGE: "exception.message",
    span_names.EXCEPTION_TRACEBACK: "exception.stacktrace",
}
"""One Logger's names."""
_ERRORS: Final = ("trackside.one_logger.telemetry_data_error",)


def severity_of(event: Event) -> str:
    """Return the name of the severity of *event*."""
    name = wire_name_of(event)
    if name in _ERRORS:
        return "ERROR"
    if name in _WARNINGS:
        return "WARN"
    return "INFO" if event.detail == LIFECYCLE else "DEBUG"


def resource_attributes(source: Source) -> dict[str, Any]:
    """Describe *source*; what is not known is left out."""
    told = {
        "service.name": source.application or "trackside",
        "service.instance.id": source.id,
        "host.name": source.host,
        "process.pid": source.pid,
        "process.runtime.version": source.versions.get("python", ""),
        **{
            f"trackside.{name}": getattr(source, name)
            for name in ("run_id", "session_tag", "attempt", "role", "rank", "local_rank", "world_size")
        },
    }
    return {name: value for name, value in told.items() if value != ""}


def span_attributes(span: WholeSpan) -> dict[str, Any]:
    """Return the attributes of *span* under the names that the conventions have for them, or we."""
    attributes = dict(span.attributes)
    if span_names.THREAD in attributes:
        attributes["thread.name"] = attributes.pop(span_names.THREAD)
    if span.step >= 0:
        attributes["trackside.step"] = span.step
    if span.error is not None:
        attributes["error.type"] = span.error.get("type")
    if not span.finished:
        attributes["trackside.unfinished"] = True
    return attributes


def happenings_of(span: WholeSpan) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Yield name, attributes and time of what happened within *span*, the exception that ended it last."""
    for happening in span.happenings:
        if happening.name == span_names.ERROR:
            named = {_EXCEPTION.get(name, name): value for name, value in happening.attributes.items()}
            yield "exception", named, happening.at_ns
        else:
            yield happening.name, happening.attributes, happening.at_ns
    error = span.error or {}
    if "traceback" in error:
        named = {"type": error.get("type"), "message": error.get("message"), "stacktrace": error["traceback"]}
        yield "exception", {f"exception.{name}": value for name, value in named.items()}, span.end_ns


def failure_of(span: WholeSpan) -> str | None:
    """Return why *span* failed, if that is known."""
    error = span.error or {}
    return ": ".join(filter(None, (error.get("type"), error.get("message")))) or None


def log_attributes(event: Event) -> dict[str, Any]:
    """Return what *event* says."""
    return {**fields_of(event), "trackside.step": event.step if event.step >= 0 else None}
