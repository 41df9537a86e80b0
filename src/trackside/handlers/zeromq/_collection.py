"""What a collector makes of what it hears: one account of every source, its log, models over all, and what is said."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from trackside.events import (
    ClockCompared,
    DecodeError,
    Event,
    EventsLost,
    Frame,
    FrameDecoder,
    PeerCut,
    RankFellSilent,
    RankSpokeAgain,
    Source,
    clock,
)
from trackside.handlers.zeromq._feed import Entry
from trackside.handlers.zeromq._intake import Giver
from trackside.handlers.zeromq._keeper import Keeper
from trackside.handlers.zeromq._own_stream import OwnStream
from trackside.handlers.zeromq._protocol import Beat, Bye, LossEntry, Message, Result
from trackside.handlers.zeromq._relay import Keep, Relay
from trackside.handlers.zeromq._restore import Restored, restore
from trackside.handlers.zeromq._ring import Lost
from trackside.handlers.zeromq._roll import GRACE_S, RELAYS, SOURCE, Member, Roll
from trackside.handlers.zeromq._snapshot import Place, decode_snapshot

MOST_SOURCES: Final = 1 << 18
_LOOK_EVERY_S: Final = 0.25
_TELL_CUTS_EVERY_S: Final = 10.0
_LEAST_EXCHANGES: Final = 8

_logger = logging.getLogger("trackside")


class Collection:
    """
    Takes entries from an `Intake`; does no input or output of its own but logs. For one thread.

    Args:
        source: This process.
        models: Fed with every event of every source, each once.
        keeper: Writes the logs; None for none.
        roll: Who is there.
        read_rule: Makes a viewer's rule from its wire form.
        monotonic_s: The clock.
    """

    def __init__(
        self,
        source: Source,
        models: Sequence[Any],
        keeper: Keeper | None,
        roll: Roll,
        *,
        read_rule: Callable[[list[Any]], Keep] | None,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.roll = roll
        self.models = list(models)
        self.counts: Counter[str] = Counter()
        """``malformed`` frames, ``excess`` sources, ``failed`` calls of models."""
        self.on_verb_result: Callable[[Result], object] = lambda _: None
        self.relay = Relay(self.models, self._places, self.status, read_rule)
        self._keeper = keeper
        self._now = monotonic_s
        self._decoder = FrameDecoder()
        self._looked_s = -1e9
        self.own = OwnStream(source, self._add_own)

    def restore(self, directory: str | os.PathLike[str]) -> Restored:
        """Bring everything to where the logs below *directory* end, as if it had just been heard."""
        heard_s = self._now() + GRACE_S
        silent: set[str] = set()

        def take(frame: Frame) -> None:
            member = self._member(frame, heard_s)
            member.is_restored = True
            for event in self._learn(frame, member):
                if isinstance(event, RankFellSilent):
                    silent.add(event.source_id)
                elif isinstance(event, RankSpokeAgain):
                    silent.discard(event.source_id)

        found = restore(directory, self._decoder, take)
        for name in silent & self.roll.members.keys():
            self.roll.members[name].silent_s = heard_s  # it was said before
        return found

    # --- what an intake tells -----------------------------------------------------------------------------------------

    def on_entry(self, giver: Giver, entry: Entry) -> None:
        """Take a frame, or the news that something was lost on its way."""
        if isinstance(entry, LossEntry):
            self._on_loss(entry)
            return
        try:
            frame = self._decoder.decode(entry.frame)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        giver.purse.charge(len(frame.events))
        if frame.source.id not in self.roll.members and len(self.roll.members) >= MOST_SOURCES:
            self.counts["excess"] += 1
            return
        now_s = self._now()
        member = self._member(frame, now_s)
        member.address = giver.address
        giver.sources.add(frame.source.id)
        self._say(self.roll.hear(member, now_s))
        self._add(frame, entry.frame, member)

    def on_introduction(self, giver: Giver, snapshot: bytes) -> None:  # noqa: ARG002  the listener's
        """Learn who the sources are whose first events are no longer to be had."""
        try:
            places = decode_snapshot(snapshot).places
        except DecodeError:
            self.counts["malformed"] += 1
            return
        for place in places:
            if place.source.id not in self.roll.members:
                self._decoder.introduce(place.source)

    def on_heard(self, giver: Giver, message: Message | None) -> None:
        """Note that the sources behind *giver* are alive: all of a rank's, of a forwarder's those that it names."""
        if giver.status.get(RELAYS):
            if isinstance(message, Beat):
                for event in list(self.roll.hear_all(self.roll.alive_over((), message.status), self._now())):
                    self._say(event)
            return
        now_s = self._now()
        for name in giver.sources:
            self._say(self.roll.hear(self.roll.members[name], now_s))
        if isinstance(message, Bye):
            for name in giver.sources:
                member = self.roll.members[name]
                member.ended = member.ended if member.ended is not None else message.reason

    def on_result(self, giver: Giver, result: Result) -> None:  # noqa: ARG002  the listener's
        """Pass on what came of a verb."""
        self.on_verb_result(result)

    def tick(self, givers: Iterable[Giver]) -> None:
        """Say what time has brought: silences, the clocks of *givers*, and who of them was cut."""
        now_s = self._now()
        if now_s - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now_s
        for event in list(self.roll.silent(now_s, clock.now_ns())):
            self._say(event)
        for giver in givers:
            self._compare_clock(giver)
            self._tell_cut(giver, now_s)

    def status(self) -> dict[str, Any]:
        """Return what to say of this process in beats."""
        return {SOURCE: self.own.source.id, "totals": self.roll.totals()}

    # --- frames -------------------------------------------------------------------------------------------------------

    def _member(self, frame: Frame, now_s: float) -> Member:
        return self.roll.member(frame.source, now_s)

    def _add(self, frame: Frame, data: bytes, member: Member, reason: str = "given up by its sender") -> None:
        due = member.ledger.next_seq
        if frame.first_seq > due:
            self._lose(member, due, frame.first_seq - 1, reason)
        elif frame.first_seq <= frame.last_seq < due:
            member.ledger.admit(frame)
            return
        events = self._learn(frame, member)
        if self._keeper is not None:
            self._keeper.take(member.source, data, len(frame.events))
            if member.ended is not None:
                self._keeper.end(member.source)
        self.relay.add(frame, data, events)

    def _learn(self, frame: Frame, member: Member) -> list[Event]:
        missing = member.ledger.missing
        events = member.admit(frame)
        lost = member.ledger.missing - missing
        if lost:
            for model in self.models:
                miss = getattr(model, "miss", None)
                if miss is not None:
                    miss(lost)
        self._feed(events)
        return events

    def _feed(self, events: Sequence[Event]) -> None:
        for model in self.models:
            try:
                for event in events:
                    if not event.derived:
                        model(event)
            except Exception as error:  # a model that fails must not take the others, or the logs, with it
                self.counts["failed"] += 1
                with contextlib.suppress(Exception):
                    _logger.warning("a model failed: %s: %s", type(error).__name__, error)

    def _on_loss(self, entry: LossEntry) -> None:
        member = self.roll.members.get(entry.source_id)
        if member is None:
            member = self.roll.member(Source.unknown(entry.source_id), self._now())
        due = member.ledger.next_seq
        if entry.last_seq >= due:
            first = max(due, entry.first_seq)
            if first > due:
                return  # the frames in between are to come, and will show what is missing
            self._lose(member, first, entry.last_seq, entry.reason)
            self._learn(Frame(member.source, entry.last_seq + 1, entry.last_seq, {}, []), member)

    def _lose(self, member: Member, first_seq: int, last_seq: int, reason: str) -> None:
        if self._keeper is not None:
            self._keeper.lose(member.source, last_seq - first_seq + 1, reason)
        self.relay.lose(Lost(member.source.id, first_seq, last_seq, reason))
        self._say(
            EventsLost(
                source_id=member.source.id,
                first_seq=first_seq,
                last_seq=last_seq,
                reason=reason,
                span_id=0,
                step=-1,
            )
        )

    # --- what it says itself ------------------------------------------------------------------------------------------

    def publish(self, event: Event) -> None:
        """Say *event* in this process's own stream."""
        self.own.publish(event)

    def _say(self, event: Event | None) -> None:
        if event is not None:
            self.own.publish(event)

    def _add_own(self, event: Event, data: bytes, seq: int) -> None:
        if not event.derived:
            self._feed([event])
        if self._keeper is not None:
            self._keeper.take(event.source, data, 1)
        self.relay.add(Frame(event.source, seq, seq, {}, [event]), data, [event])

    def _compare_clock(self, giver: Giver) -> None:
        if not giver.is_known:
            return
        named = giver.status.get(SOURCE) if giver.status.get(RELAYS) else None
        names = [named] if isinstance(named, str) else sorted(giver.sources)[:64]
        if giver.clock.exchanges < _LEAST_EXCHANGES or not names:  # news is told once: not before we know of whom
            return
        news = giver.clock.news()
        if news is None:
            return
        for name in names:
            self._say(
                ClockCompared(
                    source_id=name,
                    offset_ns=news.offset_ns,
                    uncertainty_ns=news.uncertainty_ns,
                    exchanges=giver.clock.exchanges,
                    span_id=0,
                    step=-1,
                )
            )

    def _tell_cut(self, giver: Giver, now_s: float) -> None:
        purse = giver.purse
        if purse.cut_messages == giver.cut_told or now_s - giver.cut_told_s < _TELL_CUTS_EVERY_S:
            return
        giver.cut_since_ns = giver.cut_since_ns or clock.now_ns()
        giver.cut_told, giver.cut_told_s = purse.cut_messages, now_s
        self._say(
            PeerCut(
                peer=giver.name,
                reason="it sent more than its quota",
                messages=purse.cut_messages,
                size_bytes=purse.cut_bytes,
                since_ns=giver.cut_since_ns,
                span_id=0,
                step=-1,
            )
        )

    def _places(self) -> Iterator[Place]:
        for member in self.roll.members.values():
            yield Place(member.source, member.ledger.next_seq, member.shed)
        yield Place(self.own.source, self.own.next_seq, 0)
