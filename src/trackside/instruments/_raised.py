"""Exceptions: their records, published once each, and the innermost of the spans that each left."""

from __future__ import annotations

import contextlib
import traceback
from types import CodeType
from typing import Final, NamedTuple

from trackside.bus import Bus, default_bus
from trackside.core import is_from_signal_handler
from trackside.events import ExceptionRaised, ambient, clock, span_names
from trackside.events._ambient import next_id

NO_ERRORS: Final = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that mean that something has ended, not that it failed."""

_MAX_MESSAGE: Final = 2_000
_MAX_TRACEBACK: Final = 16_000
_MAX_FRAMES: Final = 64
_REMEMBERED: Final = 64


class _Exit(NamedTuple):
    """The instruction, inside a span's block, through which an exception left the span."""

    code: CodeType | None
    """None for an exception that was never raised, only given to the span as the cause of its end."""
    instruction: int
    span_id: int
    """The span that raised."""
    serial: int
    """Higher than the id of every span opened before, and lower than the id of every span opened since."""


_exits: dict[int, _Exit] = {}


def describe(error: BaseException, span_id: int, *, name: str, step: int, at_ns: int) -> dict[str, str]:
    """
    Return the record of *error*, which is leaving the span *span_id*, and publish it if this is the first span.

    The innermost span gets type, message and traceback. The spans around it, through which the exception only passes,
    get ``raised_in``, the innermost span's id, instead of the traceback.
    """
    described = {"type": type_name(error), "message": message_of(error)}
    origin = _origin(error, span_id)
    if origin is None or origin == span_id:
        described["traceback"] = _traceback_of(error)
    else:
        described["raised_in"] = str(origin)
    if origin is None:
        _publish(error, default_bus, described, span_id=span_id, span_name=name, step=step, at_ns=at_ns)
    _remember(error, span_id if origin is None else origin)
    return described


def record_exception(error: BaseException, bus: Bus = default_bus) -> None:
    """
    Publish that *error* was raised, unless a span that it left, or this function, published it before.

    For exceptions that leave no span, because a framework caught them or nothing did.
    """
    if is_good_end(error) or _origin(error, 0) is not None:
        return
    span_id, step = ambient.get()
    described = {"type": type_name(error), "message": message_of(error), "traceback": _traceback_of(error)}
    with contextlib.suppress(Exception):  # a strict bus raises errors of handlers; the program's own comes first
        _publish(error, bus, described, span_id=span_id, span_name="", step=step, at_ns=clock.now_ns())
    _remember(error, span_id)


def is_good_end(error: BaseException) -> bool:
    """Return whether *error* is an end without a failure: a generator ended, or ``sys.exit(0)``."""
    return isinstance(error, NO_ERRORS) or (isinstance(error, SystemExit) and not error.code)


def withhold(error: BaseException) -> None:
    """Let *error* leave spans without being published: it is trackside's own, or stands in for the program's."""
    _remember(error, ambient.get()[0])


def _publish(
    error: BaseException, bus: Bus, described: dict[str, str], *, span_id: int, span_name: str, step: int, at_ns: int
) -> None:
    if not bus.wants(ExceptionRaised) or (isinstance(error, SystemExit) and not error.code):
        return
    bus.log(
        ExceptionRaised(
            at_ns=at_ns,
            span_id=span_id,
            step=step,
            **described,
            span_name=span_name,
            is_out_of_memory=is_out_of_memory(error),
        )
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether *error* means that the host or a device has no memory left, also for torch, CUDA, HIP and XLA."""
    if isinstance(error, MemoryError) or any(cls.__name__ == "OutOfMemoryError" for cls in type(error).__mro__):
        return True
    message = message_of(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in message or "alloc_failed" in message)


def event_attributes(described: dict[str, str]) -> dict[str, str]:
    """Return *described* as the attributes of an event named ``error``."""
    attributes = {
        span_names.ERROR_MESSAGE: f"{described['type']}: {described['message']}",
        span_names.EXCEPTION_TYPE: described["type"],
        span_names.EXCEPTION_MESSAGE: described["message"],
    }
    if "traceback" in described:
        attributes[span_names.EXCEPTION_TRACEBACK] = described["traceback"]
    return attributes


def type_name(error: BaseException) -> str:
    """Return the qualified name of the class of *error*, without ``builtins``."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def message_of(error: BaseException) -> str:
    """Return the text of *error*, cut to 2,000 characters; if its ``__str__`` raises, the name of that exception."""
    try:
        return str(error)[:_MAX_MESSAGE]
    except Exception as another:
        if is_from_signal_handler(another):
            raise
        return f"(no message: str() raised {type(another).__name__})"


def _traceback_of(error: BaseException) -> str:
    """Return the traceback's innermost frames as text; if that is too long, its end."""
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-_MAX_FRAMES))[
            -_MAX_TRACEBACK:
        ]
    except Exception as another:
        if is_from_signal_handler(another):
            raise
        return f"(no traceback: formatting it raised {type(another).__name__})"


def _origin(error: BaseException, span_id: int) -> int | None:
    """
    Return the innermost span that *error* left before *span_id*, or None if *span_id* is the first.

    An exception is remembered by its address: it must not be marked, and a reference would keep its frames alive. The
    address may belong to another exception by now. So the remembered exception must have left its span while this span
    was open, and the instruction through which it left must be in the traceback of *error*: an exception that passes an
    instruction inside a span's block also leaves that span.
    """
    left = _exits.get(id(error))
    if left is None or left.serial < span_id:
        return None
    entry = error.__traceback__
    if entry is None and left.code is None:
        return left.span_id
    while entry is not None:
        if entry.tb_frame.f_code is left.code and entry.tb_lasti == left.instruction:
            return left.span_id
        entry = entry.tb_next
    return None


def _remember(error: BaseException, span_id: int) -> None:
    entry = error.__traceback__
    code, instruction = (None, -1) if entry is None else (entry.tb_frame.f_code, entry.tb_lasti)
    _exits.pop(id(error), None)
    _exits[id(error)] = _Exit(code, instruction, span_id, next_id())
    for old in list(_exits)[:-_REMEMBERED]:
        _exits.pop(old, None)
