"""The sources that a collector or forwarder knows, and the stream of its own events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside.core import complain, described
from trackside.events import Event, Heartbeat, RankFellSilent, RankSpokeAgain, Source, SourceEnded, SourceStarted
from trackside.handlers.models.liveness import LifeSigns, died_after_ns, silent_after_ns
from trackside.handlers.zeromq._limits import BEAT_S, MAX_COUNT, MAX_OPEN_SPANS_BYTES
from trackside.wire import Frame, RowEncoder, SequenceTracker, encode_frame, pack

if TYPE_CHECKING:
    from trackside.handlers.zeromq._receiver import Producer

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
class SourceState:
    """One source."""

    source: Source
    heard_s: float
    tracker: SequenceTracker = attrs.field(factory=SequenceTracker)
    """Which of its numbers came, which are missing, which came twice."""
    events: int = 0
    """That came, each once."""
    dropped: int = 0
    """Events that it gave up before they had a number."""
    producer: Producer | None = None
    """The peer through which it was heard last; None if it is known from the log alone."""
    silent_s: float | None = None
    """When it was found silent; None while it is not."""
    signs: LifeSigns = attrs.field(factory=LifeSigns)
    """What is known of its life; times are by its own clock."""
    is_restored: bool = False
    """Whether it is known from the log alone."""
    last_step: int = -1
    open_spans: dict[str, list[Any]] = attrs.field(factory=dict)

    def admit(self, frame: Frame) -> list[Event]:
        """Return the events of *frame* that did not come before, and learn from them."""
        self.source = frame.source
        self.dropped = min(sum(frame.dropped.values()), MAX_COUNT)
        events = self.tracker.admit(frame)
        self.events += len(events)
        for event in events:
            self.last_step = max(self.last_step, event.step)
            self.signs.read(event)
            if type(event) is Heartbeat:
                self.open_spans = _bounded(event.open_spans)
        return events

    @property
    def ended(self) -> str | None:
        """Why it ended, as it said; None if it did not."""
        return self.signs.end_reason

    @property
    def last_ns(self) -> int:
        """The time of its latest event, by its own clock; in ns since the epoch."""
        return self.signs.last_ns or 0

    @property
    def span(self) -> str:
        """The name of the innermost span open at the last heartbeat, of the main thread if it had one."""
        threads = self.open_spans
        found = threads.get(_MAIN_THREAD) or next(iter(threads.values()), [])
        return str(found[1]) if len(found) > 1 else ""


def _bounded(open_spans: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return *open_spans*, or those of the main thread, or none: a collector records them in its own stream."""
    main = {_MAIN_THREAD: open_spans.get(_MAIN_THREAD, [])}
    return next((spans for spans in (open_spans, main) if len(pack(spans)) <= MAX_OPEN_SPANS_BYTES), {})


class SourceRegistry:
    """
    The states, by source id, and who of them has fallen silent.

    Args:
        silent_after_s: How long a state that did not end may be unheard; as `liveness` says unless given.
    """

    def __init__(self, silent_after_s: float | None = None) -> None:
        self.states: dict[str, SourceState] = {}
        self._silent_after_s = silent_after_s

    def state_of(self, source: Source, now_s: float) -> SourceState:
        """Return the state that is *source*, a new one if it was not known."""
        state = self.states.get(source.id)
        if state is None:
            state = self.states[source.id] = SourceState(source, now_s)
        return state

    def hear(self, state: SourceState, now_s: float) -> RankSpokeAgain | None:
        """Note that *state* was heard of; return what there is to say of it."""
        silent_s, heard_s = state.silent_s, state.heard_s
        state.heard_s = max(state.heard_s, now_s)
        state.silent_s = None
        is_news = silent_s is not None and not state.is_restored
        state.is_restored = False
        if not is_news:
            return None
        source = state.source
        return RankSpokeAgain(
            source_id=source.id,
            run_id=source.run_id,
            rank=source.rank,
            attempt=source.attempt,
            silent_s=round(now_s - heard_s, 3),
            span_id=0,
            step=state.last_step,
        )

    def hear_all(self, names: Iterable[str], now_s: float) -> Iterator[RankSpokeAgain]:
        """Note that those of *names* that are known were heard of; yield what there is to say of it."""
        for name in names:
            state = self.states.get(name)
            if state is not None and (said := self.hear(state, now_s)) is not None:
                yield said

    def is_gone(self, state: SourceState, now_s: float) -> bool:
        """Return whether *state* is silent for as long as a process is taken for dead, or since its log was read."""
        interval_ns = state.signs.heartbeat_interval_ns or round(BEAT_S * 1e9)
        is_dead = state.producer is None or now_s - state.heard_s > died_after_ns(interval_ns) / 1e9
        return state.silent_s is not None and is_dead

    def silent(self, now_s: float, now_ns: int) -> Iterator[RankFellSilent]:
        """
        Yield what there is to say of each state that has just been silent for too long.

        Args:
            now_s: The time now, by the clock of `hear`.
            now_ns: The time now, in ns since the epoch.
        """
        for state in self.states.values():
            unheard_s = now_s - state.heard_s
            after_s = self._silent_after_s
            if after_s is None:
                # A job without heartbeats is known from its connection, which is heard of every second.
                interval_ns = state.signs.heartbeat_interval_ns or round(BEAT_S * 1e9)
                after_s = silent_after_ns(interval_ns) / 1e9
            if unheard_s < after_s or state.ended is not None or state.silent_s is not None:
                continue
            state.silent_s = now_s
            source = state.source
            if source.role == _COLLECTOR:
                continue
            last_ns = state.last_ns if state.is_restored else now_ns - int(unheard_s * 1e9)
            yield RankFellSilent(
                source_id=source.id,
                run_id=source.run_id,
                rank=source.rank,
                attempt=source.attempt,
                host=source.host,
                pid=source.pid,
                last_seq=state.tracker.next_seq - 1,
                last_heard_ns=last_ns,
                silent_s=round((now_ns - last_ns) / 1e9, 3),
                span=state.span,
                open_spans=state.open_spans,
                span_id=0,
                step=state.last_step,
            )

    def alive_over(self, sources: Iterable[str], status: Mapping[str, Any]) -> list[str]:
        """
        Return who is alive if something was heard over a connection.

        Args:
            sources: Those whose entries came over it.
            status: What the other end last said of itself. Behind a forwarder only those that it names are.
        """
        if not status.get(RELAYS):
            return list(sources)
        quiet = status.get(QUIET)
        return [name for name in quiet if type(name) is str] if type(quiet) is list else []

    def totals(self) -> dict[str, int]:
        """Return the counts over all states but collectors."""
        states = [state for state in self.states.values() if state.source.role != _COLLECTOR]
        counts = {
            "sources": len(states),
            "silent": sum(state.silent_s is not None for state in states),
            "ended": sum(state.ended is not None for state in states),
            "events": sum(state.events for state in states),
            "lost": sum(state.tracker.missing for state in states),
            "repeated": sum(state.tracker.repeated for state in states),
            "dropped": sum(state.dropped for state in states),
        }
        return {name: min(count, MAX_COUNT) for name, count in counts.items()}


COLLECTORS: Final = "collectors"
"""The run id of collectors and forwarders: they belong to none of those they hear."""


class OwnStream:
    """
    Numbers and frames what a collector itself has to say; each event is a frame of its own, because there are few.

    Args:
        source: Who it is.
        take: Given each event, its frame, and its number.
    """

    def __init__(self, source: Source, take: Callable[[Event, bytes, int], object]) -> None:
        self.source = source
        self.next_seq = 0
        self.invalid = 0
        """Events that could not be encoded; they have no number."""
        self._take = take
        self._encoder = RowEncoder()
        self._is_ended = False
        self.publish(SourceStarted(identity=source.to_wire(), span_id=0, step=-1))

    def publish(self, event: Event) -> None:
        """Say *event*."""
        if self._is_ended:
            return
        seq = self.next_seq
        try:
            schema, row = self._encoder.encode(event, 0)
            frame = encode_frame(self.source.id, seq, seq, dropped={}, schemas=[schema.entry], rows=[row])
        except Exception as error:  # it quotes what some peer sent
            self.invalid += 1
            complain("an event of %s cannot be recorded: %s", type(event).__name__, described(error))
            return
        self.next_seq += 1
        event._source = self.source  # noqa: SLF001  as the decoder does: the event is numbered here
        event._seq = seq  # noqa: SLF001
        self._take(event, frame, seq)

    def end(self, reason: str) -> None:
        """Say the last: that the stream ends, and why."""
        self.publish(SourceEnded(reason=reason, span_id=0, step=-1))
        self._is_ended = True
