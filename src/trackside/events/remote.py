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
    """The time when it was last heard of, by the collector's clock, in ns since the epoch."""
    silent_s: float
    """The time since then, in seconds."""
    span: str = ""
    """The innermost span open at its last heartbeat, of the main thread if it had one; empty if none is known."""
    open_spans: dict[str, list[Any]] = attrs.field(factory=dict)
    """By thread name, as in its last `Heartbeat`: id, name and start of the innermost open span."""


@event("trackside.rank.spoke", priority=LIFECYCLE)
class RankSpokeAgain(Event):
    """A rank that had fallen silent was heard of again. Published by the collector."""

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
    """The numbers that are missing, both ends included."""
    reason: str = ""


@event("trackside.peer.cut", priority=LIFECYCLE)
class PeerCut(Event):
    """A peer sent more than its share, and what was beyond it was not read. Published by the collector."""

    peer: str
    """Role and fingerprint of its key, or its address in the collector; and the name that it gives itself."""
    reason: str
    messages: int
    """The number that were passed over since it was cut."""
    size_bytes: int
    since_ns: int


@event("trackside.control.used", priority=LIFECYCLE)
class ControlUsed(Event):
    """Something was asked of the job from outside. Published by whom it was asked of, whether it was done or not."""

    verb: str
    arguments: dict[str, Any] = attrs.field(factory=dict)
    targets: list[str] = attrs.field(factory=list)
    """Ids of sources, or ``rank:N``; empty for all."""
    by: str = ""
    """The sender: role and fingerprint of the key, or ``this machine`` where the file system lets only this user in."""
    done: bool = True
    outcome: str = ""


@event("trackside.clock.compared", priority=LIFECYCLE)
class ClockCompared(Event):
    """
    A source's clock was compared with the collector's. Published by the collector, when it is known better than before.

    An event with the source's time ``at_ns`` happened at ``at_ns − offset_ns`` by the collector's clock. Nothing
    applies this; readers may, to put several ranks on one line.
    """

    source_id: str
    offset_ns: int
    """The time by which the source's ``at_ns`` is ahead of the collector's."""
    uncertainty_ns: int
    """The true offset lies within this of *offset_ns*: half the shortest round trip (D. L. Mills, RFC 5905, 8)."""
    exchanges: int
    """Round trips looked at."""


@event("trackside.process.exited", priority=LIFECYCLE)
class ProcessExited(Event):
    """
    A process of the program that `trackside run` started is gone, at the time of this event.

    Published by `trackside run` on Linux, into the logs of its job: a process that is killed records no end.
    """

    source_id: str
    exit_status: int | None = None
    """Its exit code; of a process that a signal ended, the signal's number negated; None if it is not known."""


@event("trackside.program.ended", priority=LIFECYCLE)
class ProgramEnded(Event):
    """The program that `trackside run` started has ended. Published by `trackside run`, into the logs of its job."""

    exit_status: int
    """Its exit code; of a program that a signal ended, the signal's number negated."""
