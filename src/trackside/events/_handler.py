"""The protocols of handlers, and the threads on which they run."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.events._event import Event
    from trackside.events._source import Source


class RunsOn(enum.Enum):
    """
    The thread on which a handler reads its events.

    The subscriber chooses it with ``subscribe(..., runs_on=)``, else the handler by its class attribute ``runs_on``.
    """

    INLINE = "inline"
    """At once, in the thread that logs. What a plain callable gets."""
    DISPATCHER = "dispatcher"
    """On the bus's own thread, over the numbered stream. For models: quick, and never foreign code."""
    WORKER = "worker"
    """On a thread of its own behind a bounded queue. For sinks that may be slow, or stall."""


class FrameSink(Protocol):
    """
    A sink of whole encoded frames: the event log, a socket. The bus recognises it by its methods.

    It may have an attribute ``lost``: how many events it accepted and then lost, on a full disk for example.
    """

    def open(self, source: Source) -> None:
        """
        Learn whose frames will come; called before the first frame.

        Called again where the same source is described anew, as by a framework that is configured after telemetry was
        turned on: the id is the same, and the frames from then on are that one's.
        """

    def accept(self, frame: bytes, *, events: int) -> bool:
        """
        Accept one frame of *events* rows, on the dispatcher's thread.

        Must not block and must not raise.

        Returns:
            False to refuse it: the dispatcher counts its events as dropped.
        """

    def flush(self, timeout_s: float) -> bool:
        """Bring what was taken to where it survives this process; False if time ran out or it was lost."""

    def close(self, timeout_s: float) -> bool:
        """Flush, stop and release everything within *timeout_s*; safe to call twice."""

    def after_fork(self, source: Source) -> bool | None:
        """
        In a forked child: forget the parent's threads, locks, buffers and files; start as *source*.

        Returns:
            False to stay with the parent: the child's bus leaves it out.
        """


Handler: TypeAlias = "Callable[[Any], object] | FrameSink"
"""Anything that can be subscribed."""

Publish: TypeAlias = "Callable[[Event], None]"
"""The function by which a model publishes what it derives."""
