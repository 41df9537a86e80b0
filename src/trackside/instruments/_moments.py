"""The spans that callbacks have opened and not closed yet, and the loops that end with the job."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from trackside._platform import after_fork_in_child
from trackside.bus import default_bus
from trackside.events import ConfigError, span_names
from trackside.instruments._iteration import Iteration
from trackside.instruments._raised import record_exception
from trackside.instruments._span import Span, is_innermost, is_within, report_out_of_order, tolerated

S = TypeVar("S", bound=Span)

_get_ident: Final = threading.get_ident
_open: Final[dict[tuple[str, int], Span]] = {}
"""By name and thread: a thread may have one open span of each name."""
watched_loops: Final[list[Callable[[BaseException | None], object]]] = []
"""
For each loop that an integration watches without a hook for its end, the function that ends its open spans.

It is called when the job ends, with the exception that ends the job or None.
"""


def begin(span: S, start_time_msec: float | None) -> S:
    """Open *span*; a span of the same name that is still open in this thread is closed first."""
    at_ns = to_ns(span.name, start_time_msec)
    key = (span.name, _get_ident())
    earlier = _open.pop(key, None)
    if earlier is not None:
        report_out_of_order(span.name, "was started again while open", span_id=earlier.id)
        _abandon(earlier)
        end(earlier, at_ns)
    _open[key] = span
    return span.open(at_ns=at_ns)


def pop_open(*names: str) -> Span | None:
    """
    Return the open span of one of *names*, to be ended: this thread's, else any other's.

    If there is none, report that and return None.
    """
    ident = _get_ident()
    for name in names:
        found = _open.pop((name, ident), None)
        if found is not None:
            return found
    for name, other in list(_open):
        if name in names:
            return _open.pop((name, other), None)
    if not default_bus.is_idle:
        report_out_of_order(names[0], "ended without a start")
    return None


def end(span: Span, at_ns: int | None) -> None:
    """Close *span*, and before it the spans that callbacks opened inside it and left open."""
    if not is_innermost(span):
        for key, inner in sorted(_open.items(), key=lambda item: -item[1].id):
            if is_within(inner, span):
                _report_left_open(inner, f"{span.name} ended")
                _open.pop(key, None)
                _abandon(inner)
                inner.close(at_ns=at_ns)
    span.close(at_ns=at_ns)


def end_all(reason: str, at_ns: int | None) -> None:
    """Close all spans that callbacks have left open, the innermost first."""
    for key, span in sorted(_open.items(), key=lambda item: -item[1].id):
        _open.pop(key, None)
        _report_left_open(span, reason)
        _abandon(span)
        span.close(at_ns=at_ns)


def end_with(error: BaseException) -> None:
    """
    Close all spans that callbacks have left open in this thread, as ended by *error*, which ended a framework's run.

    The application stays open, because it may continue.
    """
    ident = _get_ident()
    for key, span in sorted(_open.items(), key=lambda item: -item[1].id):
        if key[1] == ident and span.name != span_names.APPLICATION:
            _open.pop(key, None)
            span.close(error=error)
    record_exception(error)


def end_loops(error: BaseException | None) -> None:
    """End the watched loops at the end of the job; with an *error*, also the spans that callbacks have left open."""
    with contextlib.suppress(Exception):  # a strict bus raises errors of handlers; the program's own comes first
        for end_loop in watched_loops[::-1]:
            end_loop(error)
        if error is not None:
            end_with(error)


def _report_left_open(span: Span, when: str) -> None:
    """Report that *span* was left open, but raise nothing: an error here would leave the other spans open, too."""
    report_out_of_order(span.name, f"was still open when {when}", span_id=span.id, may_raise=False)


def _abandon(span: Span) -> None:
    """Count an iteration that was not ended as failed."""
    if isinstance(span, Iteration):
        span.fail()


def to_ns(name: str, time_msec: float | None) -> int | None:
    """Return milliseconds since the epoch as nanoseconds; None for now, and for an invalid time, which is reported."""
    if time_msec is None:
        return None
    try:
        fraction, whole = math.modf(time_msec)
        return int(whole) * 1_000_000 + round(fraction * 1e6)
    except (TypeError, ValueError, OverflowError):
        tolerated(name, ConfigError("time in milliseconds", time_msec, "give a number, or None for now"))
        return None


after_fork_in_child(_open.clear)
