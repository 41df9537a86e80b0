"""Events of collectors about the ranks that they hear, and of control commands from outside the job."""

from __future__ import annotations

from typing import Any

import attrs

from trackside.events._event import LIFECYCLE, Event, event


@event("trackside.rank.silent", priority=LIFECYCLE)
class RankFellSilent(Event):
    """Nothing was heard of a rank for three heartbeat intervals. Published by the collector, once for each silence."""

    source_id: str
    run_id: str
    rank: int
    attempt: int = 0
    host: str = ""
    pid: int = 0
    last_seq: int = -1
    """The number of its last event that arrived; -1 if none did."""
    last_heard_ns: int
    """The time when it was last heard, by the collector's clock, in ns since the epoch."""
    silent_s: float
    """The time since then, in seconds."""
    span: str = ""
    """The innermost span open at its last heartbeat, of the main thread if it had one; empty if none is known."""
    open_spans: dict[str, list[Any]] = attrs.field(factory=dict)
    """By thread name, as in its last `Heartbeat`: id, name and start of the innermost open span."""


@event("trackside.rank.spoke", priority=LIFECYCLE)
class RankSpokeAgain(Event):
    """A rank that had fallen silent was heard again. Published by the collector."""

    source_id: str
    run_id: str
    rank: int
    attempt: int = 0
    silent_s: float
    """The length of the silence, in seconds."""


@event("trackside.events.lost", priority=LIFECYCLE)
class EventsLost(Event):
    """
    Events did not arrive and can no longer be had. Published by the collector.

    Their number is ``last_seq − first_seq + 1``.
    """

    source_id: str
    first_seq: int
    last_seq: int
    """The missing numbers are those from ``first_seq`` to this one, both included."""
    reason: str = ""


@event("trackside.peer.cut", priority=LIFECYCLE)
class PeerCut(Event):
    """A peer sent more than its share, and the excess was not read. Published by the collector."""

    peer: str
    """Role and fingerprint of its key, or its address in the collector; and the name that it gives itself."""
    reason: str
    messages: int
    """Messages that were skipped since it was cut."""
    size_bytes: int
    since_ns: int


@event("trackside.control.used", priority=LIFECYCLE)
class ControlUsed(Event):
    """The job got a control command from outside. Published by the receiver, whether the command was done or not."""

    verb: str
    arguments: dict[str, Any] = attrs.field(factory=dict)
    targets: list[str] = attrs.field(factory=list)
    """Ids of sources, or ``rank:N``; empty for all."""
    by: str = ""
    """The sender: role and fingerprint of the key, or ``this machine`` if the file system admits only this user."""
    done: bool = True
    outcome: str = ""


@event("trackside.clock.compared", priority=LIFECYCLE)
class ClockCompared(Event):
    """
    A source's clock was compared with the collector's. Published by the collector, when the result is more exact.

    An event with the source's time ``at_ns`` happened at ``at_ns − offset_ns`` by the collector's clock. The collector
    does not change ``at_ns``; readers may apply the offset, to show several ranks on one time axis.
    """

    source_id: str
    offset_ns: int
    """The time by which the source's ``at_ns`` is ahead of the collector's."""
    uncertainty_ns: int
    """The true offset lies within this of *offset_ns*: half the shortest round trip (D. L. Mills, RFC 5905, 8)."""
    exchanges: int
    """Round trips that were compared."""


@event("trackside.process.exited", priority=LIFECYCLE)
class ProcessExited(Event):
    """
    A process of the program that `trackside run` started has exited, at the time of this event.

    Published by `trackside run` on Linux, into the logs of its job: a process that is killed records no end.
    """

    source_id: str
    exit_status: int | None = None
    """Its exit code, or the negated number of the signal that ended it; None if it is not known."""


@event("trackside.program.ended", priority=LIFECYCLE)
class ProgramEnded(Event):
    """The program that `trackside run` started has ended. Published by `trackside run`, into the logs of its job."""

    exit_status: int
    """Its exit code, or the negated number of the signal that ended it."""
