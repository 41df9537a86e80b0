"""Subscribers behind the queue: what the porter knows of each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from trackside.bus._patience import Patience
from trackside.bus._siding import Siding
from trackside.bus._stats import HandlerStats
from trackside.events import PORTER, SIDING, Event, HandlerRested, RunsOn

if TYPE_CHECKING:
    from trackside.bus._cutter import Audience
    from trackside.bus._lane import Lane, Lanes
    from trackside.bus._rules import Decide, Rule


class _FromLanes(NamedTuple):
    """What happened, before it could reach a seat, to the events meant for it."""

    logged: int = 0
    shed: int = 0
    invalid: int = 0
    redacted: int = 0


class QueuedSeat:
    """
    A model, a siding's sink or a taker of frames.

    Its counts are plain numbers: each is written by one thread alone. What it was meant to get is known from the
    lanes of its types, counted by others.
    """

    def __init__(
        self,
        handler: Any,
        *,
        name: str,
        runs_on: RunsOn,
        wants: Callable[[type[Event]], bool],
        keep: Rule | None,
        audience_key: object,
        publish: Callable[[Event], None],
    ) -> None:
        self.handler = handler
        self.runs_on = runs_on
        self.wants = wants
        self.audience_key = audience_key
        """Frame takers with equal keys share their frames."""
        self._keep = keep
        self._publish = publish
        self.name = name
        self.forget()

    def forget(self) -> None:
        """Begin with nothing counted, as a forked child does."""
        self.patience = Patience(self.name)
        self._trust = Patience(self.name)
        """In the rule, whose predicate is foreign code."""
        self._decided = 0
        self.decide = self._keep.start() if self._keep is not None else None
        self.audience: Audience | None = None
        self.siding = Siding(self.handler, self.patience, self.deliver) if self.runs_on is SIDING else None
        self.in_hand = 0
        """Rows of the frame that is being handed over, which may take a taker that blocks for ever."""
        self.handled = 0
        self.brought = 0
        """Events of other processes, which no lane has counted."""
        self.filtered = 0
        self.sampled = 0
        self.shed = 0
        self.rested = 0
        self.refused: dict[str, int] = {}
        """What the full siding refused since that was last published, by wire name."""
        self.joined = False
        self.closing = False
        self.opened = False
        """Whether a taker of frames knows whose they are."""
        self._shed_before: dict[Lane, int] = {}
        self._shed_until: dict[Lane, int] | None = None
        self._taken_before: dict[Lane, tuple[int, int, int]] = {}
        self._told_missed = 0
        self._at_leave: _FromLanes | None = None

    def start(self) -> None:
        """Start what thread of its own the handler has, in the thread that logs the first event for it."""
        if self.siding is not None:
            self.siding.start()

    def subscribe(self, lanes: Lanes) -> None:
        """Remember what was shed before this seat was there; in the thread that subscribes."""
        self._shed_before = {lane: lane.shed.value for lane in list(lanes.values())}

    def unsubscribe(self, lanes: Lanes) -> None:
        """Be blind to what is shed from now on; in the thread that unsubscribes."""
        self._shed_until = {lane: lane.shed.value for lane in list(lanes.values())}
        self.closing = True

    def join(self, lanes: Lanes) -> None:
        """Begin at this place of the queue; on the porter."""
        self._taken_before = {lane: (lane.taken, lane.invalid, lane.redacted) for lane in list(lanes.values())}
        self.joined = True

    def admits(self, event: Event) -> bool:
        """Return whether the rules keep *event* and a model is not resting, counting it if not."""
        if self.decide is not None and not self._keeps(event, self.decide):
            return False
        # A sink rests on its siding: asked twice, the one event that tries it again would be refused there.
        if self.runs_on is PORTER and self.patience.is_resting():
            self.rested += 1
            return False
        return True

    def _keeps(self, event: Event, decide: Decide) -> bool:
        # Apart from the handler, which may run and fail on another thread; and a taker of frames never rests.
        if self._trust.is_resting():
            self.rested += 1
            return False
        try:
            reason = decide(event)
        except BaseException as error:
            self._publish_rest(self._trust.fail(error, self._decided))
            return False
        self._decided += 1
        if self._trust.resting_until_ns is not None:
            self._trust.recover()
        if reason == "sampled":
            self.sampled += 1
        elif reason is not None:
            self.filtered += 1
        return reason is None

    def deliver(self, event: Event) -> None:
        """Call the handler, in the one thread that runs it."""
        try:
            self.handler(event)
        except BaseException as error:
            self._publish_rest(self.patience.fail(error, self.handled))
            return
        self.handled += 1
        if self.patience.resting_until_ns is not None:
            self.patience.recover()

    def give(self, event: Event) -> None:
        """Do what `admits` and `deliver` do for a model, in one call: every event comes through here."""
        if self.decide is not None or self.patience.resting_until_ns is not None:
            if self.admits(event):
                self.deliver(event)
            return
        try:
            self.handler(event)
        except BaseException as error:
            self._publish_rest(self.patience.fail(error, self.handled))
        else:
            self.handled += 1

    def settle(self, *, taken: bool) -> None:
        """Count the frame that was handed over."""
        if taken:
            self.handled += self.in_hand
        else:
            self.shed += self.in_hand
        self.in_hand = 0

    def _publish_rest(self, rested: HandlerRested | None) -> None:
        if rested is not None:
            with contextlib.suppress(BaseException):  # a strict bus raises, and this thread has nobody to tell
                self._publish(rested)

    def tell_missed(self, lanes: Lanes) -> None:
        """Let a model know how many events it should have had and did not get."""
        miss = getattr(self.handler, "miss", None)
        if miss is None or self.runs_on is not PORTER:
            return
        stats = self.stats(lanes, in_queue=0)
        missed = stats.lost + stats.filtered + stats.sampled
        if missed > self._told_missed:
            try:
                miss(missed - self._told_missed)
            except BaseException as error:
                self.patience.report(error)
            self._told_missed = missed

    def leave(self, lanes: Lanes) -> None:
        """End at this place of the queue; on the porter."""
        self._at_leave = self._from_lanes(lanes, in_queue=0)

    def stats(self, lanes: Lanes, in_queue: int) -> HandlerStats:
        """
        Return the counts so far.

        Args:
            lanes: The bus's lanes.
            in_queue: Events for this seat that wait in the queue.
        """
        if self._at_leave is not None:
            in_queue = 0
        met = self._at_leave or self._from_lanes(lanes, in_queue)
        lost_by_sink = self._lost_by_sink()
        batched = len(self.audience.rows) if self.audience is not None and self._at_leave is None else 0
        # Each count is read once: what the siding's thread does meanwhile moves an event from one to another.
        handled, failed, rested = self.handled, self.patience.failed.value, self.rested
        waiting = abandoned = 0
        if self.siding is not None:
            at_the_siding = self.siding.rested
            rested += at_the_siding
            left = self.siding.accepted - handled - failed - at_the_siding
            waiting, abandoned = (0, left) if self.siding.is_over else (left, 0)
        return HandlerStats(
            name=self.name,
            runs_on=self.runs_on.value,
            logged=met.logged + self.brought,
            handled=handled - lost_by_sink,
            failed=failed + self._trust.failed.value,
            filtered=self.filtered + met.redacted,
            sampled=self.sampled,
            shed=met.shed + self.shed + lost_by_sink + abandoned,
            rested=rested,
            invalid=met.invalid,
            in_queue=in_queue + batched + self.in_hand + waiting,
            last_error=self.patience.last_error or self._trust.last_error,
            unfinished=self.siding is not None and self.siding.is_unfinished,
        )

    def _lost_by_sink(self) -> int:
        """Return how many events the sink took, and then its disk or network did not."""
        if self.runs_on is PORTER:
            return 0
        try:
            lost = getattr(self.handler, "lost", 0)
        except Exception as error:
            self.patience.report(error)
            return 0
        return lost if isinstance(lost, int) else 0

    def _from_lanes(self, lanes: Lanes, in_queue: int) -> _FromLanes:
        logged = shed = invalid = redacted = 0
        for lane in list(lanes.values()):
            if not self.wants(lane.cls):
                continue
            shed_before = self._shed_before.get(lane, 0)
            until = lane.shed.value if self._shed_until is None else self._shed_until.get(lane, shed_before)
            lane_shed = until - shed_before
            shed += lane_shed
            if not self.joined or self.closing:
                # The queue also holds events that are not for this seat: before its place, or behind it.
                logged += lane_shed
            if self.joined:
                taken, invalid_before, redacted_before = self._taken_before.get(lane, (0, 0, 0))
                invalid += lane.invalid - invalid_before
                redacted += lane.redacted - redacted_before
                if self.closing:
                    logged += lane.taken - taken
                else:
                    logged += lane.offered.value - taken - shed_before
        if not self.joined or self.closing:
            logged += in_queue
        return _FromLanes(logged, shed, invalid, redacted)
