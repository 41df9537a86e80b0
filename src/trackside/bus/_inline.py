"""Subscribers that run at once, in the thread that logs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from trackside.bus._patience import Patience
from trackside.bus._stats import HandlerStats
from trackside.bus._tally import Tally
from trackside.events import INLINE, Event, HandlerRested

if TYPE_CHECKING:
    from types import CodeType

    from trackside.bus._rules import Rule

    Step: TypeAlias = tuple[Callable[[], float], Callable[[Any], object], Callable[[], float] | None, "Stop"]
    """One step of a route: count the arrival, call, count the success (None if it cannot log), and at whose stop."""

DEEPEST: Final = 16
"""How deep handlers may log from within handlers."""

SUSPICIOUS: Final = 4
"""
Calls of one handler in progress that make it worth a look at the stack.

Less than `DEEPEST`, because handlers may log in turns, and each is then less deep than all of them together.
"""

uncounted: Final[Callable[[], int]] = int
"""Stands for a count of arrivals that is kept elsewhere; ``int()`` is the cheapest call that returns a number."""


class Stop(Protocol):
    """What `Bus.log` needs to know of whoever is on a route."""

    ceiling: float
    """
    Where arrivals mean that handlers may be logging too deep: a few more than calls that have returned.

    A first test that costs one comparison. Threads that log at once can pass it without being deep, so whoever passes
    it looks at its own stack.
    """

    suppressed: Tally

    def fault(self, error: BaseException) -> HandlerRested | None:
        """Note that the handler raised *error*; return what to publish if it rests from now on."""


def is_too_deep(log: CodeType) -> bool:
    """Return whether this thread is inside more than 16 calls of *log*; too dear to ask without cause."""
    depth = 0
    frame = sys._getframe(1)  # noqa: SLF001  the only way to see one's own stack
    while frame is not None:
        depth += frame.f_code is log
        frame = frame.f_back  # type: ignore[assignment]
    return depth > DEEPEST


class Recovered(Exception):  # noqa: N818  a signal to the bus, not an error
    """A resting handler succeeded: its route can be the short one again."""


def ignore(_event: object) -> None:
    """Do nothing with an event that came after the bus was closed."""


class InlineSeat:
    """A plain callable on the bus."""

    __slots__ = (
        "_decide",
        "_keep",
        "_log",
        "arrived",
        "ceiling",
        "filtered",
        "finished",
        "handle",
        "name",
        "patience",
        "relayed",
        "rested",
        "sampled",
        "shed",
        "suppressed",
        "unrelayed",
        "wants",
    )

    runs_on = INLINE

    def __init__(
        self,
        handle: Callable[[Any], object],
        *,
        name: str,
        wants: Callable[[type[Event]], bool],
        keep: Rule | None,
        log: CodeType,
    ) -> None:
        self.handle = handle
        self.wants = wants
        self._keep = keep
        self._log = log
        self.name = name
        self.forget()

    def forget(self) -> None:
        """Begin with nothing counted, as a forked child does."""
        self.patience = Patience(self.name)
        self.arrived = Tally()
        self.finished = Tally(ahead=SUSPICIOUS)
        """Arrivals that are over, one way or another."""
        self.filtered = Tally()
        self.sampled = Tally()
        self.rested = Tally()
        self.shed = Tally()
        self.suppressed = Tally()
        self.relayed = Tally()
        """Events on their way from the porter, which plain callables get from the relay."""
        self.unrelayed = Tally()
        """Of those, the ones that arrived."""
        self.ceiling: float = SUSPICIOUS - 1
        self._decide = self._keep.start() if self._keep is not None else None

    def step(self) -> Step:
        """Return this seat's step: the bare handler where nothing has to be asked before."""
        if self._decide is None and self.patience.resting_until_ns is None:
            return self.arrived.add, self.handle, self.finished.add, self
        return uncounted, self._deliver, self._latest, self

    def _latest(self) -> float:
        return self.ceiling

    def _deliver(self, event: Event) -> None:
        """Deliver with rules and rest; what the handler raises comes out."""
        if self.arrived.add() > self.ceiling and is_too_deep(self._log):
            self._drop(self.suppressed)
            return
        resting = self.patience.resting_until_ns is not None
        if resting and self.patience.is_resting():
            self._drop(self.rested)
            return
        if self._decide is not None:
            reason = self._decide(event)
            if reason is not None:
                self.patience.put_off()
                self._drop(self.sampled if reason == "sampled" else self.filtered)
                return
        self.handle(event)
        self.ceiling = self.finished.add()
        if resting:
            self.patience.recover()
            raise Recovered

    def _drop(self, reason: Tally) -> None:
        reason.add()
        self.ceiling = self.finished.add()

    def refuse(self) -> None:
        """Count an event that was meant for this seat and that the relay could not bring."""
        self.arrived.add()
        self._drop(self.shed)

    def fault(self, error: BaseException) -> HandlerRested | None:
        """Note that the handler raised *error*; return what to publish if it rests from now on."""
        self.ceiling = self.finished.add()
        return self.patience.fail(error, self.handled)

    @property
    def handled(self) -> int:
        """Calls of the handler that returned."""
        dropped = (self.patience.failed, self.filtered, self.sampled, self.rested, self.shed, self.suppressed)
        return self.finished.value - sum(tally.value for tally in dropped)

    def stats(self) -> HandlerStats:
        """Return the counts so far."""
        on_the_way = self.relayed.value - self.unrelayed.value
        return HandlerStats(
            name=self.patience.name,
            runs_on=self.runs_on.value,
            logged=self.arrived.value - self.suppressed.value + on_the_way,
            handled=self.handled,
            failed=self.patience.failed.value,
            filtered=self.filtered.value,
            sampled=self.sampled.value,
            shed=self.shed.value,
            rested=self.rested.value,
            in_queue=on_the_way,
            last_error=self.patience.last_error,
        )


class Nobody:
    """The stop of a step that has no handler: it counts what nobody gets."""

    ceiling: float = math.inf

    def __init__(self) -> None:
        self.suppressed = Tally()

    def fault(self, error: BaseException) -> None:  # noqa: ARG002  the protocol's
        """Do nothing."""
        return


NOBODY: Final = Nobody()
