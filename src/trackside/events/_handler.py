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
    """At once, in the thread that logs. The default of a plain callable."""
    DISPATCHER = "dispatcher"
    """On the bus's own thread, over the numbered stream. For models, which are quick and call no foreign code."""
    WORKER = "worker"
    """On a thread of its own behind a bounded queue. For sinks that may be slow, or stall."""


class FrameSink(Protocol):
    """
    A sink of whole encoded frames: the event log, a socket. The bus recognises it by its methods.

    It may have an attribute ``lost``: how many events it accepted and then lost, on a full disk for example.
    """

    def open(self, source: Source) -> None:
        """
        Receive the source of the frames that follow; called before the first frame.

        Called again if the source gets a new description, for example when a framework is configured after telemetry
        was turned on. The id stays the same, and the frames from then on are of the newly described source.
        """

    def accept(self, frame: bytes, *, events: int) -> bool:
        """
        Accept one frame of *events* rows, on the dispatcher's thread.

        Must not block and must not raise.

        Returns:
            False to refuse it: the dispatcher counts its events as dropped.
        """

    def flush(self, timeout_s: float) -> bool:
        """Store the accepted frames where they survive this process; False if time ran out or frames were lost."""

    def close(self, timeout_s: float) -> bool:
        """Flush, stop and release everything within *timeout_s*; safe to call twice."""

    def after_fork(self, source: Source) -> bool | None:
        """
        In a forked child: forget the parent's threads, locks, buffers and files; start as *source*.

        Returns:
            False if the sink stays with the parent: then the child's bus does not use it.
        """


class FrameConsumer(Protocol):
    """A handler that reads events in frames, as every `Model` does; the dispatcher calls it."""

    def consume(self, frame: Any) -> object:
        """Read a `FrameView`: one frame, or a part of one, of one source."""


Handler: TypeAlias = "Callable[[Any], object] | FrameSink | FrameConsumer"
"""Anything that can be subscribed."""

Publish: TypeAlias = "Callable[[Event], None]"
"""The function by which a model publishes the events that it derives."""
