"""The control verbs that a job accepts from outside: a fixed list; each use is recorded as an event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside.bus import Bus
from trackside.core import described
from trackside.events import LIFECYCLE, ControlUsed, Event, Priority, Source
from trackside.handlers.zeromq import Result, is_target, may_command
from trackside.instruments import open_spans

if TYPE_CHECKING:
    from trackside.handlers.zeromq import Publisher, Verb

_FLUSH_S: Final = 2.0
_MOST_S: Final = 86_400.0
MOST_WAITING: Final = 8
"""Verbs that wait or are being done; each is a thread."""
_MOST_SAMPLED: Final = 1_000_000

Answer = tuple[bool, dict[str, Any]]
"""Whether the verb was carried out, and the values of the answer."""


@attrs.frozen
class Restriction:
    """What a job records while verbs restrict it; LIFECYCLE events are always recorded."""

    min_priority: Priority = Priority.PROFILE
    """The lowest priority that is recorded."""
    every: int = 1
    """Of the events that belong to a step, only those of each n-th step are recorded."""
    is_paused: bool = False
    until_s: float | None = None
    """When it ends by itself, in seconds of the monotonic clock; None if it does not."""

    def admits(self, event: Event) -> bool:
        """Return whether *event* is recorded."""
        if event.priority >= LIFECYCLE:
            return True
        if self.has_ended():
            return True
        if self.is_paused or event.priority < self.min_priority:
            return False
        return event.step < 0 or event.step % self.every == 0

    def has_ended(self) -> bool:
        """Return whether it ended by itself."""
        return self.until_s is not None and time.monotonic() >= self.until_s


NOTHING: Final = Restriction()


class Controls:
    """
    Carries out verbs on one bus.

    No verb runs code, names a file, or makes the job record more than it logs. A verb can only read the status, reduce
    what is recorded for a while, or flush. The events that it excludes are left out before events are numbered, so the
    stream has no gap, and are counted as filtered.
    """

    def __init__(self, bus: Bus, source: Source) -> None:
        self.restriction = NOTHING
        self._bus = bus
        self._source = source
        self._redact = bus.redact
        self._is_installed = False
        self._is_closed = False
        self._restricting = threading.RLock()
        self._performing = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)

    def perform(self, verb: str, arguments: Mapping[str, Any], by: str) -> Answer:
        """Carry out *verb*, and publish its use and its sender *by*."""
        act = _VERBS.get(verb)
        try:
            done, values = act(self, arguments) if act is not None else (False, {"error": f"no verb {verb[:40]!r}"})
        except _ArgumentError as error:
            done, values = False, {"error": str(error)}
        self.record(verb, arguments, by, done=done, outcome=str(values.get("error", "")))
        return done, values

    def on_verb(self, publisher: Publisher, address: bytes, verb: Verb, user: str) -> None:
        """
        Carry out a request to *publisher*, if it is meant for this process and its sender may ask, and answer.

        Args:
            publisher: The publisher that received the request and sends the answer.
            address: The sender's address on *publisher*.
            verb: The request.
            user: The role and fingerprint of the sender's key; empty without a key.
        """
        source = self._source
        if not is_target(source.id, source.rank, verb.targets):
            return
        if publisher.connects:  # to a collector, which decides who may command; its key proves who it is
            is_allowed, by = publisher.safety.takes_control, "the collector"
        else:
            is_allowed, by = may_command(publisher.safety, user), user or "this machine"

        if not self._waiting.acquire(blocking=False):
            busy = {"rank": source.rank, "error": f"{MOST_WAITING} verbs are being done already; ask again"}
            publisher.server.answer(address, Result(verb.request, source.id, done=False, values=busy))
            return

        def work() -> None:
            # Not on the publisher's thread, because a flush waits for that thread; and one verb at a time.
            try:
                with self._performing:
                    done, values = self.perform(verb.verb, verb.arguments, by) if is_allowed else self._refuse(verb, by)
            except Exception as error:  # the sender gets an answer in any case
                done, values = False, {"error": described(error)}
            finally:
                self._waiting.release()
            values = {"rank": source.rank, **values}
            publisher.server.answer(address, Result(verb.request, source.id, done, values))

        try:
            threading.Thread(target=work, name="trackside-control", daemon=True).start()
        except RuntimeError as error:  # no thread can be started now
            self._waiting.release()
            failure = {"rank": source.rank, "error": described(error)}
            publisher.server.answer(address, Result(verb.request, source.id, done=False, values=failure))

    def _refuse(self, verb: Verb, by: str) -> Answer:
        reason = "it takes the control key, or a socket of this user's own"
        self.record(verb.verb, verb.arguments, by, done=False, outcome=reason)
        return False, {"error": reason}

    def record(self, verb: str, arguments: Mapping[str, Any], by: str, *, done: bool, outcome: str) -> None:
        """Publish the use of a verb."""
        self._bus.log(
            ControlUsed(
                verb=verb[:40], arguments=dict(arguments), by=by, done=done, outcome=outcome, span_id=0, step=-1
            )
        )

    def close(self) -> None:
        """Lift all restrictions for good, even if a verb comes later or is still being carried out."""
        with self._restricting:
            self._is_closed = True
            self._install(NOTHING)

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def _status(self, arguments: Mapping[str, Any]) -> Answer:  # noqa: ARG002  the verbs'
        stats, restriction = self._bus.stats(), self._in_force()
        source = self._source
        return True, {
            "run": source.run_id,
            "host": source.host,
            "pid": source.pid,
            "published": stats.published,
            "in_queue": stats.in_queue,
            "dropped": sum(stats.dropped_by_type.values()),
            "failed": stats.failed,
            "min_priority": restriction.min_priority.name,
            "every": restriction.every,
            "paused": restriction.is_paused,
            "open_spans": open_spans(),
        }

    def _min_priority(self, arguments: Mapping[str, Any]) -> Answer:
        level = arguments.get("level")
        if level not in Priority.__members__:
            raise _ArgumentError(f"a level is one of {', '.join(Priority.__members__)}, not {str(level)[:40]!r}")
        self._restrict(attrs.evolve(self._in_force(), min_priority=Priority[str(level)], until_s=_until(arguments)))
        return True, {"min_priority": level}

    def _sample(self, arguments: Mapping[str, Any]) -> Answer:
        every = arguments.get("every")
        if type(every) is not int or not 1 <= every <= _MOST_SAMPLED:
            raise _ArgumentError(f"give every as a whole number from 1 to {_MOST_SAMPLED:,}")
        self._restrict(attrs.evolve(self._in_force(), every=every, until_s=_until(arguments)))
        return True, {"every": every}

    def _pause(self, arguments: Mapping[str, Any]) -> Answer:
        self._restrict(attrs.evolve(self._in_force(), is_paused=True, until_s=_until(arguments)))
        return True, {"paused": True}

    def _resume(self, arguments: Mapping[str, Any]) -> Answer:  # noqa: ARG002  the verbs'
        self._restrict(NOTHING)
        return True, {"paused": False}

    def _flush(self, arguments: Mapping[str, Any]) -> Answer:  # noqa: ARG002  the verbs'
        done = self._bus.flush(_FLUSH_S)
        return done, {"flushed": done, **({} if done else {"error": f"not done within {_FLUSH_S:g} s"})}

    def _in_force(self) -> Restriction:
        return NOTHING if self.restriction.has_ended() else self.restriction

    def _restrict(self, restriction: Restriction) -> None:
        with self._restricting:
            if self._is_closed:
                raise _ArgumentError("the job is closing")
            self._install(restriction)

    def _install(self, restriction: Restriction) -> None:
        self.restriction = restriction
        if restriction == NOTHING:
            if self._is_installed:
                self._bus.redact, self._is_installed = self._redact, False
        elif not self._is_installed:
            self._redact = self._bus.redact
            self._bus.redact, self._is_installed = self._gate, True

    def _gate(self, event: Event) -> Event | None:
        if not self.restriction.admits(event):
            return None
        return self._redact(event) if self._redact is not None else event


_VERBS: Final[dict[str, Callable[[Controls, Mapping[str, Any]], Answer]]] = {
    "status": Controls._status,  # noqa: SLF001  its own verbs
    "priority": Controls._min_priority,  # noqa: SLF001
    "sample": Controls._sample,  # noqa: SLF001
    "pause": Controls._pause,  # noqa: SLF001
    "resume": Controls._resume,  # noqa: SLF001
    "flush": Controls._flush,  # noqa: SLF001
}


class _ArgumentError(ValueError):
    """A verb was asked with arguments that make no sense."""


def _until(arguments: Mapping[str, Any]) -> float | None:
    seconds = arguments.get("seconds")
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not 0 < seconds <= _MOST_S:
        raise _ArgumentError(f"give seconds from above 0 to {_MOST_S:,.0f}")
    return time.monotonic() + float(seconds)
