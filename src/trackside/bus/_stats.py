"""The counts of a bus, as plain values."""

from __future__ import annotations

import attrs

from trackside.events import Value


@attrs.frozen(kw_only=True, eq=False, repr=False)
class HandlerStats(Value):
    """
    What became of the events meant for one handler.

    Whenever no call is in progress,
    ``logged == handled + failed + filtered + sampled + shed + rested + invalid + in_queue``.
    """

    name: str
    runs_on: str
    logged: int = 0
    """Events of the handler's types, logged while it was subscribed."""
    handled: int = 0
    failed: int = 0
    """The handler raised."""
    filtered: int = 0
    """A predicate said no, or the redaction."""
    sampled: int = 0
    """A sampling rule said no."""
    shed: int = 0
    """There was no room, the sink lost it, or it was not delivered by the end."""
    rested: int = 0
    """The handler was resting after too many failures."""
    invalid: int = 0
    """A value could not be recorded."""
    in_queue: int = 0
    """Not yet read."""
    last_error: str = ""
    unfinished: bool = False
    """It did not come back from its last event, or was not closed, in time: what it then held may be lost too."""

    @property
    def balance(self) -> int:
        """What is unaccounted for: 0 whenever no call is in progress."""
        return self.logged - (
            self.handled
            + self.failed
            + self.filtered
            + self.sampled
            + self.shed
            + self.rested
            + self.invalid
            + self.in_queue
        )

    @property
    def lost(self) -> int:
        """Events the handler should have had and never will."""
        return self.failed + self.shed + self.rested + self.invalid

    def plus(self, other: HandlerStats) -> HandlerStats:
        """Return the sum of both, under this one's name."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in COUNTS}
        return attrs.evolve(
            self,
            **counts,
            last_error=other.last_error or self.last_error,
            unfinished=self.unfinished or other.unfinished,
        )


COUNTS = ("logged", "handled", "failed", "filtered", "sampled", "shed", "rested", "invalid", "in_queue")


@attrs.frozen(kw_only=True, eq=False, repr=False)
class BusStats(Value):
    """The counts of a bus and of each of its handlers."""

    handlers: tuple[HandlerStats, ...] = ()
    """Open ones by order of subscription, then the closed ones, merged by name."""
    published: int = 0
    """Events numbered so far: the length of this process's stream."""
    by_type: dict[str, int] = attrs.field(factory=dict)
    """Numbered events by wire name."""
    shed_by_type: dict[str, int] = attrs.field(factory=dict)
    """Events refused by the full queue, by wire name."""
    in_queue: int = 0
    queue_peak: int = 0
    """The most events the porter found waiting."""
    suppressed: int = 0
    """Logged more than 16 deep within handlers, and not delivered there."""
    after_close: int = 0
    """Logged after the bus was closed."""
    misfits: int = 0
    """Things logged that were no events."""
    strings_cut: int = 0
    """Strings shortened to 64 KiB."""

    @property
    def logged(self) -> int:
        """Deliveries asked for: an event meant for two handlers counts twice, here and below."""
        return self.total("logged")

    @property
    def handled(self) -> int:
        """Deliveries done."""
        return self.total("handled")

    @property
    def failed(self) -> int:
        """Deliveries in which the handler raised."""
        return self.total("failed")

    @property
    def shed(self) -> int:
        """Deliveries given up for lack of room."""
        return self.total("shed")

    @property
    def invalid(self) -> int:
        """Deliveries given up because a value could not be recorded."""
        return self.total("invalid")

    def total(self, count: str) -> int:
        """Return the sum over all handlers of the *count* of that name in `HandlerStats`."""
        return sum(getattr(handler, count) for handler in self.handlers)

    @property
    def lost(self) -> int:
        """Events that some handler should have had and never will; an event lost to two handlers counts twice."""
        return sum(handler.lost for handler in self.handlers)
