"""A job, watched from outside: its events, and models in the states that they have there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside.events import (
    ConfigError,
    DecodeError,
    Detail,
    Event,
    Frame,
    FrameDecoder,
    Source,
    UnknownEvent,
    UnreadableError,
)
from trackside.handlers.eventlog._ledger import Ledger
from trackside.handlers.zeromq._feed import Entry
from trackside.handlers.zeromq._filter import Filter
from trackside.handlers.zeromq._line import Line
from trackside.handlers.zeromq._link import Link
from trackside.handlers.zeromq._protocol import MAX_NAMES, LossEntry
from trackside.handlers.zeromq._snapshot import Snapshot, decode_snapshot, model_name

if TYPE_CHECKING:
    from typing_extensions import Self

_LOOK_S: Final = 0.1
_FULL_S: Final = 0.01
_MOST_GAPS: Final = 1000
_MOST_KINDS: Final = 10_000
_TOO_SLOW: Final = "this viewer was too slow"


@attrs.frozen
class Gap:
    """Events that did not get here."""

    events: int
    reason: str
    source_id: str = ""
    """Whose they were; empty if of several."""


@attrs.define
class Joined:
    """How far a model here can be compared with the job's."""

    model: Any
    complete: bool = False
    """Whether its state is that of the job's own, from the beginning; else it knows what came since."""
    since_ns: int = 0
    """When its state begins or was taken over, in ns since the epoch of the job's clock."""
    reason: str = "nothing has come yet"
    """Why it is not complete; empty if it is."""


class Attachment:
    """
    What `attach` returns: an iterator over events, each with its ``source`` and its ``seq``. For one thread.

    It ends when everybody it listens to has said goodbye. Between two events it waits, and reconnects by itself.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        to: object,
        detail: Detail | None,
        keep: Any,
        models: Sequence[Any],
        keys: str | os.PathLike[str] | None,
        insecure: bool,
    ) -> None:
        self.models = {model_name(model): Joined(model) for model in models}
        """By name, the models that are driven, and whether each is complete."""
        self.sources: dict[str, Source] = {}
        """By id, whom events may come from."""
        self.lost = 0
        """Events that were meant to come and did not: skipped because this viewer was slow or away, or lost before."""
        self.gaps: list[Gap] = []
        """The first thousand of them."""
        self.shed = 0
        """Events that the jobs gave up for lack of room before they had a number, since this viewer came."""
        self.malformed = 0
        """Frames and snapshots that could not be read."""
        self._asked = Filter.of(to, detail, None)
        self._decide, rule = _split(keep)
        _check(endpoints, self.models, models)
        # Models read everything; what the user wants to see of it is then chosen here.
        wanted = Filter() if models else Filter.of(to, detail, rule)
        self._decide = keep.start() if models and keep is not None else self._decide
        self._is_wanted: dict[type[Event] | str, bool] = {}
        """By class, or by the name of a type that is not known here."""
        self._is_all = self._asked.is_open
        self._is_whole = wanted.is_open
        """Whether every event comes, so that each source's own numbers tell what is missing."""
        self._decoder = FrameDecoder()
        self._ledgers: dict[str, Ledger] = {}
        self._shed_before: dict[str, int] = {}
        self._skipped_before: dict[int, int] = {}
        self._fresh: list[Event] = []
        self._lines: list[Line] = []
        try:
            for endpoint in endpoints:
                link = Link(endpoint, binds=False, role="viewer", keys=keys, insecure=insecure)
                names = list(self.models)
                self._lines.append(Line(link, wanted=wanted, models=names, take=self._take, introduce=self._introduce))
        except BaseException:
            self.close()
            raise

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, timeout_s: float | None = None) -> list[Event]:
        """
        Return the events that have come; wait for the first of them at most *timeout_s* seconds, None for ever.

        Returns:
            Events in the order of each source's numbers, each once; none if time ran out or nothing more will come.

        Raises:
            UnreadableError: The other end refuses to serve.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._fresh and not self.is_over:
            if not self._turn(_LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - time.monotonic())):
                self._complain()
            if deadline_s is not None and time.monotonic() >= deadline_s:
                break
        fresh, self._fresh = self._fresh, []
        return fresh

    def deliver_to(self, deliver: Callable[[Sequence[Event]], bool]) -> None:
        """
        Bring every event to the handlers of a bus in this process, until the iteration would end.

        ``viewer.deliver_to(bus.deliver)``: they keep their sources and numbers; what the bus logs itself is numbered
        beside them. Event logs and publishers of that bus do not get them. It waits where the bus is behind.
        """
        while not self.is_over or self._fresh:
            events = self.read()
            while events and not deliver(events):
                time.sleep(_FULL_S)

    def wait(self, timeout_s: float = 5.0) -> bool:
        """Return whether, within *timeout_s*, every other end has told where its stream stands; events are kept."""
        deadline_s = time.monotonic() + timeout_s
        while not all(line.feed.is_introduced for line in self._lines):
            if self.is_over or time.monotonic() >= deadline_s:
                return False
            self._turn(min(_LOOK_S, deadline_s - time.monotonic()))
            self._complain()
        return True

    def _turn(self, timeout_s: float) -> int:
        """Receive once from everybody; return how many messages."""
        for line in self._lines:
            line.tick()
        count = sum(line.receive() for line in self._lines)
        if not count and timeout_s > 0:
            # Several links share the time; with one, this is where a viewer sleeps.
            for line in self._lines:
                line.link.wait(timeout_s / len(self._lines))
            count = sum(line.receive() for line in self._lines)
        for place, line in enumerate(self._lines):
            self._account(place, line)
        return count

    def __iter__(self) -> Iterator[Event]:
        while True:
            events = self.read()
            if not events and self.is_over:
                return
            yield from events

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether everybody has said goodbye."""
        return all(line.is_over for line in self._lines)

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come for three seconds from somebody who has not said goodbye: it died, or stopped."""
        return any(line.is_silent for line in self._lines if not line.is_over)

    @property
    def peers(self) -> list[str]:
        """Who is at the other ends, as they say."""
        return [line.peer for line in self._lines]

    @property
    def busy(self) -> str:
        """Why somebody makes us wait: too many are there already; empty if nobody does."""
        return next((line.busy for line in self._lines if line.busy), "")

    @property
    def status(self) -> list[dict[str, Any]]:
        """What each of them said of itself last: the job's counts and open spans."""
        return [dict(line.status) for line in self._lines]

    @property
    def repeated(self) -> int:
        """How many entries came twice and were passed over."""
        return sum(line.feed.repeated for line in self._lines)

    @property
    def replays(self) -> int:
        """How often something had to be sent again."""
        return sum(line.feed.replays for line in self._lines)

    # --- taking -------------------------------------------------------------------------------------------------------

    def _introduce(self, data: bytes) -> None:
        """Begin, or begin anew, from a snapshot."""
        try:
            snapshot = decode_snapshot(data)
        except DecodeError:
            self.malformed += 1
            return
        for place in snapshot.places:
            source = place.source
            self.sources[source.id] = source
            self._decoder.introduce(source)
            known = self._ledgers.get(source.id)
            if known is not None and place.next_seq > known.next_seq:
                reason = "passed while this viewer was away or behind"
                self._lose(
                    place.next_seq - known.next_seq, reason if self._is_whole else f"{reason}, of all types", source.id
                )
            if known is None or place.next_seq > known.next_seq:
                self._ledgers[source.id] = Ledger(next_seq=place.next_seq)
            self._shed_before[source.id] = max(place.shed, self._shed_before.get(source.id, 0))
        self._load(snapshot)

    def _load(self, snapshot: Snapshot) -> None:
        for name, joined in self.models.items():
            if name not in snapshot.models:
                if not joined.since_ns:
                    joined.since_ns = snapshot.taken_ns
                    joined.reason = "it is not run there"
                continue
            try:
                joined.model.load(snapshot.models[name])
            except Exception as error:  # it may be of another version, or from anybody
                joined.complete, joined.reason = False, f"its state could not be read: {error}"
            else:
                joined.complete, joined.reason = True, ""
            joined.since_ns = snapshot.taken_ns

    def _take(self, entry: Entry) -> None:
        if isinstance(entry, LossEntry):
            self._take_loss(entry)
            return
        try:
            frame = self._decoder.decode(entry.frame)
        except DecodeError:
            self.malformed += 1
            self._lose(entry.events, "a frame that cannot be read")
            return
        source = frame.source
        self.sources[source.id] = source
        ledger = self._ledger_of(source.id, frame.first_seq)
        missing = ledger.missing
        events = ledger.admit(frame)
        if self._is_whole and ledger.missing > missing:
            self._lose(ledger.missing - missing, _TOO_SLOW, source.id)
        self._note_shed(frame)
        if self.models:
            self._drive(events)
        self._fresh += self._chosen(events)

    def _take_loss(self, entry: LossEntry) -> None:
        ledger = self._ledger_of(entry.source_id, entry.first_seq)
        fresh = entry.last_seq - max(entry.first_seq, ledger.next_seq) + 1
        if fresh > 0:
            ledger.next_seq = entry.last_seq + 1
            self._lose(fresh, entry.reason, entry.source_id)

    def _ledger_of(self, source_id: str, first_seq: int) -> Ledger:
        """Return what is known of a source; one that was in no snapshot has begun since, with number 0."""
        ledger = self._ledgers.get(source_id)
        if ledger is None:
            ledger = self._ledgers[source_id] = Ledger(next_seq=0 if self._is_whole else first_seq)
        return ledger

    def _drive(self, events: Sequence[Event]) -> None:
        models = [joined.model for joined in self.models.values()]
        for event in events:
            if not event.derived:
                for model in models:
                    model(event)

    def _chosen(self, events: Sequence[Event]) -> Iterable[Event]:
        """Return those of *events* that the user asked for, which without models are nearly always all."""
        if self._decide is None and (self._is_all or all(map(self._is_wanted.get, _kinds(events)))):
            return events
        return filter(self._is_for_user, events)

    def _is_for_user(self, event: Event) -> bool:
        kind = event.name if isinstance(event, UnknownEvent) else type(event)
        wanted = self._is_wanted.get(kind)
        if wanted is None:
            wanted = self._asked.admits(event)
            if len(self._is_wanted) < _MOST_KINDS:
                self._is_wanted[kind] = wanted
        return wanted and (self._decide is None or self._decide(event) is None)

    def _note_shed(self, frame: Frame) -> None:
        total = sum(frame.shed.values())
        before = self._shed_before.get(frame.source.id, 0)
        if total > before:
            self._shed_before[frame.source.id] = total
            self.shed += total - before
            self._miss(total - before)

    def _account(self, place: int, line: Line) -> None:
        """Take note of what the other end skipped."""
        skipped = line.feed.skipped_events - self._skipped_before.get(place, 0)
        if skipped:
            self._skipped_before[place] = line.feed.skipped_events
            if not self._is_whole:
                self._lose(skipped, _TOO_SLOW)
            if any(joined.complete for joined in self.models.values()):
                line.feed.refresh()  # their states as of now, rather than states with a hole

    def _lose(self, events: int, reason: str, source_id: str = "") -> None:
        self.lost += events
        if len(self.gaps) < _MOST_GAPS:
            self.gaps.append(Gap(events, reason, source_id))
        self._miss(events)

    def _miss(self, events: int) -> None:
        for joined in self.models.values():
            miss = getattr(joined.model, "miss", None)
            if miss is not None:
                miss(events)

    def _complain(self) -> None:
        for line in self._lines:
            if line.refused is not None:
                refused = line.refused
                raise UnreadableError(
                    line.link.endpoint, f"{refused.code}: {refused.text}", "nothing can be read there"
                )

    # --- leaving ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye, so that nothing need be kept for this viewer; safe to call twice."""
        for line in self._lines:
            line.close()
            line.ended = line.ended or "closed here"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(endpoints: Sequence[str], by_name: dict[str, Joined], models: Sequence[Any]) -> None:
    if not endpoints:
        raise ConfigError("endpoint", endpoints, "give at least one")
    if len(by_name) < len(models) or len(models) > MAX_NAMES:
        raise ConfigError("models", models, f"give at most {MAX_NAMES}, each of another class")
    if models and len(endpoints) > 1:
        raise ConfigError("models", models, "over several ranks they need a collector: attach to that")


def _kinds(events: Sequence[Event]) -> set[type[Event] | str]:
    """Return the classes of *events*, and the names of the types that are not known here."""
    kinds: set[type[Event] | str] = set(map(type, events))
    if UnknownEvent in kinds:
        kinds.remove(UnknownEvent)
        kinds |= {event.name for event in events if type(event) is UnknownEvent}
    return kinds


def _split(keep: Any) -> tuple[Callable[[Event], object] | None, list[Any] | None]:
    """Return what of a rule is decided here, and the wire form of what is decided at the source."""
    if keep is None:
        return None, None
    if isinstance(keep, type) or not callable(getattr(keep, "start", None)):
        raise ConfigError("keep", keep, "give a rule: every(n), fraction(p), at_most(n, per=s), where(predicate) …")
    if keep.portable:
        return None, keep.to_wire()
    return keep.start(), None
