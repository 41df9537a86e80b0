"""Who is there: every source a collector knows, what it had from it, and since when it is silent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from trackside.events import (
    Event,
    Frame,
    Heartbeat,
    RankFellSilent,
    RankSpokeAgain,
    Source,
    SourceEnded,
)
from trackside.handlers.eventlog._ledger import Ledger

SILENT_AFTER_S: Final = 3.0
"""Three heartbeats, which come every second unless the job says otherwise."""
GRACE_S: Final = 10.0
"""What a source that is known from the log alone is given to come back to a collector that was restarted."""
RELAYS: Final = "relays"
"""In the status of a beat: whether this end is a forwarder, whose sources are others."""
QUIET: Final = "quiet"
"""In a forwarder's: ids of sources that are alive and had nothing to send since the last beat."""
SOURCE: Final = "source"
"""In a status: the id of this end's own source."""
_MAIN_THREAD: Final = "MainThread"
_COLLECTOR: Final = "collector"


@attrs.define(eq=False)
class Member:
    """One source."""

    source: Source
    heard_s: float
    ledger: Ledger = attrs.field(factory=Ledger)
    """Which of its numbers came, which are missing, which came twice."""
    events: int = 0
    """That came, each once."""
    shed: int = 0
    """Events that it gave up before they had a number."""
    address: bytes = b""
    """Of the link over which it was heard last."""
    silent_s: float | None = None
    """When it was found silent; None while it is not."""
    last_ns: int = 0
    """When its latest event was, by its own clock; in ns since the epoch."""
    is_restored: bool = False
    """Whether it is known from the log alone."""
    last_step: int = -1
    open_spans: dict[str, list[Any]] = attrs.field(factory=dict)
    ended: str | None = None
    """Why it ended, as it said; None if it did not."""

    def admit(self, frame: Frame) -> list[Event]:
        """Return the events of *frame* that did not come before, and learn from them."""
        self.source = frame.source
        self.shed = sum(frame.shed.values())
        events = self.ledger.admit(frame)
        self.events += len(events)
        for event in events:
            self.last_step = max(self.last_step, event.step)
            self.last_ns = max(self.last_ns, event.at_ns)
            if type(event) is Heartbeat:
                self.open_spans = event.open_spans
            elif type(event) is SourceEnded:
                self.ended = event.reason
        return events

    @property
    def span(self) -> str:
        """The name of the innermost span open at the last heartbeat, of the main thread if it had one."""
        threads = self.open_spans
        found = threads.get(_MAIN_THREAD) or next(iter(threads.values()), [])
        return str(found[1]) if len(found) > 1 else ""


class Roll:
    """
    The members, by source id, and who of them has fallen silent.

    Args:
        silent_after_s: How long a member that did not end may be unheard.
    """

    def __init__(self, silent_after_s: float = SILENT_AFTER_S) -> None:
        self.members: dict[str, Member] = {}
        self._silent_after_s = silent_after_s

    def member(self, source: Source, now_s: float) -> Member:
        """Return the member that is *source*, a new one if it was not known."""
        member = self.members.get(source.id)
        if member is None:
            member = self.members[source.id] = Member(source, now_s)
        return member

    def hear(self, member: Member, now_s: float) -> RankSpokeAgain | None:
        """Note that *member* was heard of; return what there is to say of it."""
        silent_s, heard_s = member.silent_s, member.heard_s
        member.heard_s = max(member.heard_s, now_s)
        member.silent_s = None
        is_news = silent_s is not None and not member.is_restored
        member.is_restored = False
        if not is_news:
            return None
        source = member.source
        return RankSpokeAgain(
            source_id=source.id,
            run_id=source.run_id,
            rank=source.rank,
            attempt=source.attempt,
            silent_s=round(now_s - heard_s, 3),
            span_id=0,
            step=member.last_step,
        )

    def hear_all(self, names: Iterable[str], now_s: float) -> Iterator[RankSpokeAgain]:
        """Note that those of *names* that are known were heard of; yield what there is to say of it."""
        for name in names:
            member = self.members.get(name)
            if member is not None and (said := self.hear(member, now_s)) is not None:
                yield said

    def silent(self, now_s: float, now_ns: int) -> Iterator[RankFellSilent]:
        """
        Yield what there is to say of each member that has just been silent for too long.

        Args:
            now_s: The time now, by the clock of `hear`.
            now_ns: The time now, in ns since the epoch.
        """
        for member in self.members.values():
            unheard_s = now_s - member.heard_s
            if unheard_s < self._silent_after_s or member.ended is not None or member.silent_s is not None:
                continue
            member.silent_s = now_s
            source = member.source
            if source.role == _COLLECTOR:
                continue
            last_ns = member.last_ns if member.is_restored else now_ns - int(unheard_s * 1e9)
            yield RankFellSilent(
                source_id=source.id,
                run_id=source.run_id,
                rank=source.rank,
                attempt=source.attempt,
                host=source.host,
                pid=source.pid,
                last_seq=member.ledger.next_seq - 1,
                last_heard_ns=last_ns,
                silent_s=round((now_ns - last_ns) / 1e9, 3),
                span=member.span,
                open_spans=member.open_spans,
                span_id=0,
                step=member.last_step,
            )

    def alive_over(self, sources: Iterable[str], status: Mapping[str, Any]) -> list[str]:
        """
        Return who is alive if something was heard over a link.

        Args:
            sources: Those whose entries came over it.
            status: What the other end last said of itself. Behind a forwarder only those that it names are.
        """
        if not status.get(RELAYS):
            return list(sources)
        quiet = status.get(QUIET)
        return [name for name in quiet if type(name) is str] if type(quiet) is list else []

    def totals(self) -> dict[str, int]:
        """Return the counts over all members but collectors."""
        members = [member for member in self.members.values() if member.source.role != _COLLECTOR]
        return {
            "sources": len(members),
            "silent": sum(member.silent_s is not None for member in members),
            "ended": sum(member.ended is not None for member in members),
            "events": sum(member.events for member in members),
            "lost": sum(member.ledger.missing for member in members),
            "repeated": sum(member.ledger.repeated for member in members),
            "shed": sum(member.shed for member in members),
        }
