"""What a handler is, and where it says it runs."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from trackside.events._event import Event
    from trackside.events._source import Source


class RunsOn(enum.Enum):
    """The thread on which a handler reads its events; a class attribute ``runs_on`` of the handler says it."""

    INLINE = "inline"
    """At once, in the thread that logs. What a plain callable gets."""
    PORTER = "porter"
    """On the bus's own thread, over the numbered stream. For models: quick, and never foreign code."""
    SIDING = "siding"
    """On a thread of its own behind a bounded queue. For sinks that may be slow, or stall."""
    FRAMES = "frames"
    """Takes encoded frames from the porter and has its own thread for I/O; see `FrameHandler`."""


INLINE = RunsOn.INLINE
PORTER = RunsOn.PORTER
SIDING = RunsOn.SIDING
FRAMES = RunsOn.FRAMES


class FrameHandler(Protocol):
    """What carries whole frames out: the event log, a socket."""

    runs_on: RunsOn

    @property
    def lost(self) -> int:
        """Events taken since the start and then lost, on a full disk for example; their number never shrinks."""

    def open(self, source: Source) -> None:
        """Learn whose frames will come; called once, before the first frame."""

    def take(self, frame: bytes, *, events: int) -> bool:
        """
        Accept one frame of *events* rows, on the porter's thread.

        Must not block and must not raise.

        Returns:
            False to refuse it: the porter counts its events as shed.
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


Handler: TypeAlias = "Callable[[Any], object] | FrameHandler"
"""What can be subscribed."""

Publish: TypeAlias = "Callable[[Event], None]"
"""How a model publishes what it derives."""
