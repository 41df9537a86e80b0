"""
Liveness: whether a process runs, is silent, died or ended.

Every view uses this one rule, live and over logs.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Final

import attrs

from trackside._platform import may_run
from trackside.core.text import exit_words
from trackside.events import Event, Heartbeat, Source, SourceEnded, clock

RUNNING: Final = "running"
SILENT: Final = "silent"
DIED: Final = "died"
ENDED: Final = "ended"

SILENT_AFTER_INTERVALS: Final = 3
DIED_AFTER_INTERVALS: Final = 10
LEAST_SILENCE_NS: Final = 3 * 10**9
"""A process is not silent before this time has passed, however short its heartbeat interval is."""
LEAST_DEATH_NS: Final = 60 * 10**9
"""The least silence that counts as death: clocks differ, and a log may wait half as long after a refused write."""
GOOD_ENDS: Final = frozenset({"", "closed", "exit", "succeeded by another source", "job_end_time", "end of file"})
"""The reasons of a `SourceEnded` that are not the name of an exception; the last two are those of imported records."""


@attrs.frozen(kw_only=True)
class Liveness:
    """The state of a process at one moment, and the reason for this conclusion."""

    state: str
    """``running``, ``silent``, ``died`` or ``ended``."""
    reason: str
    silent_ns: int | None = None
    """The time since its last event; None if it ended, or if no event is known."""
    error: str = ""
    """The exception or the failing exit status that ended it; empty if there was none, or if it did not end."""

    @property
    def has_good_end(self) -> bool:
        """Whether it reported its end, and there was no error."""
        return self.state == ENDED and not self.error


@attrs.define(kw_only=True)
class LifeSigns:
    """The signs of life of one process. Times are in ns since the epoch."""

    last_ns: int | None = None
    """The time of its last event; None if it has none."""
    heartbeat_interval_ns: int | None = None
    """As in its heartbeats; None without them: it is then never dead by silence alone."""
    end_reason: str | None = None
    """As in its `SourceEnded`; None if there was none."""
    exit_status: int | None = None
    """
    The exit status of its process; without an end record, that of its launcher. Negative for a signal; None if it is
    not known.
    """

    def read(self, event: Event) -> None:
        """Read one event of the process."""
        if self.last_ns is None or event.at_ns > self.last_ns:
            self.last_ns = event.at_ns
        if isinstance(event, Heartbeat):
            self.heartbeat_interval_ns = clock.ns_of(event.interval_s)
        elif isinstance(event, SourceEnded):
            self.end_reason = event.reason


def silent_after_ns(heartbeat_interval_ns: int | None) -> int:
    """Return the time without any event after which a process is silent; a minute where no interval is known."""
    if heartbeat_interval_ns is None:
        return LEAST_DEATH_NS
    return max(LEAST_SILENCE_NS, SILENT_AFTER_INTERVALS * heartbeat_interval_ns)


def died_after_ns(heartbeat_interval_ns: int) -> int:
    """Return the time without any event after which a process that sends heartbeats counts as dead."""
    return max(LEAST_DEATH_NS, DIED_AFTER_INTERVALS * heartbeat_interval_ns)


def is_gone(source: Source) -> bool:
    """Return whether a process ran on this machine and no longer exists; for views, since models ask no machine."""
    return source.pid > 0 and source.host == platform.node() and not may_run(source.pid)


def liveness(signs: LifeSigns, now_ns: int, *, is_replaced: bool = False, is_gone: bool = False) -> Liveness:
    """
    Return the state of a process at *now_ns*.

    It has ended if it reported its end; this was not a good end if its process then exited with a failing status.
    Without a reported end, it has died if its launcher saw it exit, if its rank was launched again after it, if its
    process is gone, or if nothing came for a minute and for ten heartbeat intervals. It is silent after three intervals
    and at least three seconds. A process without heartbeats is silent after a minute, and never dead by silence alone.

    Args:
        signs: The signs of life of the process.
        now_ns: The time, in ns since the epoch: by the clock in a job, that of the newest of all events over logs.
        is_replaced: Whether a later process took its rank.
        is_gone: Whether it ran on this machine and no longer exists.
    """
    if signs.end_reason is not None:
        error = "" if signs.end_reason in GOOD_ENDS else signs.end_reason
        if not error and signs.exit_status:
            error = f"Exit with {exit_words(signs.exit_status)}"
        return Liveness(state=ENDED, reason=signs.end_reason or "closed", error=error)
    silent_ns = None if signs.last_ns is None else max(0, now_ns - signs.last_ns)
    interval_ns = signs.heartbeat_interval_ns
    if signs.exit_status is not None:
        state, reason = DIED, f"no end record, and its program ended with {exit_words(signs.exit_status)}"
    elif is_replaced:
        state, reason = DIED, "no end record, and its rank was launched again"
    elif is_gone:
        state, reason = DIED, "no end record, and its process is gone"
    elif silent_ns is None:
        state, reason = SILENT, "no event"
    elif interval_ns is not None and silent_ns > died_after_ns(interval_ns):
        state, reason = DIED, f"no end record, and no event for {_seconds(silent_ns)}"
    elif silent_ns > silent_after_ns(interval_ns):
        state, reason = SILENT, f"no end record, and no event for {_seconds(silent_ns)}"
        if interval_ns is None:
            reason += "; it sends no heartbeats, so it may be alive"
    else:
        state, reason = RUNNING, "no end record"
    return Liveness(state=state, reason=reason, silent_ns=silent_ns)


def worst(states: Iterable[str]) -> str:
    """Return the worst of the *states* of some processes; ``silent`` if there are none."""
    found = set(states)
    return next((state for state in (DIED, SILENT, RUNNING, ENDED) if state in found), SILENT)


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e9:,.0f} s"
