"""A viewer of a running job: its events, and models with the states that they have in the job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from trackside.core import Closing, RateLimitedLog, described, is_from_signal_handler
from trackside.events import ConfigError, DecodeError, Event, Priority, Source, UnknownEvent, UnreadableError, clock
from trackside.events._selected import EventTypes, checked_rule
from trackside.events._settings import suggests_settings
from trackside.handlers.eventlog import is_stream, stream_module
from trackside.handlers.zeromq._connection import Connection
from trackside.handlers.zeromq._protocol import (
    BEAT_S,
    MAX_NAMES,
    MAX_SOURCES,
    SILENT_AFTER_BEATS,
    Beat,
    Bye,
    Filter,
    LossEntry,
    Message,
    Ping,
    Refused,
    Snapshot,
    Welcome,
    decode_snapshot,
    model_name,
)
from trackside.handlers.zeromq._receiver import Entry, StreamConsumer
from trackside.handlers.zeromq._server import find_endpoints
from trackside.handlers.zeromq._session import Action, Role, Sent, Sessions, State
from trackside.wire import Frame, FrameDecoder, SequenceTracker, deliver, views

_MESSAGES_AT_ONCE: Final = 64
_BYTES_AT_ONCE: Final = 128 << 10
"""The most bytes that are decoded before they are delivered: they stay in a processor's cache until they are read."""


class ViewerSession:
    """
    One connection of a viewer. Only one thread may use it.

    Args:
        connection: The socket, connected.
        wanted: The events to ask for.
        models: The models whose states to ask for.
        deliver: Called with each entry, in order.
        introduce: Called with a snapshot's bytes, before the first entry and after a loss that cannot be repaired.
        own_id: The id of this end; random unless given.
        monotonic_s: The clock.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        wanted: Filter,
        models: Sequence[str],
        deliver: Callable[[Entry], object],
        introduce: Callable[[bytes], object],
        own_id: str | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = monotonic_s
        self.connection = connection
        self.peer = ""
        """The name that the other end gives itself; empty before its `Welcome`."""
        self.ended = ""
        """The reason why the other end said goodbye; empty if it did not."""
        self.busy = ""
        """The reason why this end has to wait, and greets again each second; empty if it need not."""
        self.refused: Refused | None = None
        """The refusal of the other end to serve this viewer; None if it did not refuse."""
        self.status: dict[str, object] = {}
        """The latest status that the other end sent."""
        self.malformed = 0
        self._trouble = RateLimitedLog()
        self.consumer = StreamConsumer(self.send, deliver, introduce, stream="", wanted=wanted, models=models)
        self._sessions: Sessions[Any] = Sessions(Role.VIEWER, connection.send, own_id=own_id)
        self._pinged_s = -1e9
        self._heard_s = self._now()

    @property
    def is_silent(self) -> bool:
        """Whether nothing has been received for three beats."""
        return self._now() - self._heard_s > SILENT_AFTER_BEATS * BEAT_S

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be received."""
        return bool(self.ended) or self.refused is not None

    def send(self, message: Message) -> bool:
        """Send *message* if there is room; return whether it was sent."""
        return self._sessions.post(b"", message) is Sent.QUEUED

    @property
    def _is_met(self) -> bool:
        return self._sessions.state_of(b"") is State.MET

    def tick(self) -> None:
        """Send the greetings, pings and repeated requests that are due."""
        now_s = self._now()
        if not self.is_over and self.connection.renew(now_s):
            self._sessions.greet_again()
        self._sessions.tick(now_s)
        if not self._is_met:
            return
        if now_s - self._pinged_s >= BEAT_S:
            self._pinged_s = now_s
            self.send(Ping(clock.now_ns()))
        self.consumer.tick(now_s)

    def receive(self) -> int:
        """Receive a bounded number of the messages that have come; return their number."""
        count = taken_bytes = 0
        for _, parts, _ in self.connection.receive(_MESSAGES_AT_ONCE):
            count += 1
            size_bytes = sum(map(len, parts))
            taken_bytes += size_bytes
            self._heard_s = self._now()
            try:
                self._on(parts, size_bytes)
            except DecodeError:
                self.malformed += 1
            except Exception as error:  # whatever this message holds, the next one may be readable
                if is_from_signal_handler(error):
                    raise
                self.malformed += 1
                self._trouble.complain("a message from %s could not be dealt with: %s", self.peer, described(error))
            if taken_bytes >= _BYTES_AT_ONCE:
                break
        return count

    def _on(self, parts: Sequence[bytes], size_bytes: int) -> None:
        action, message = self._sessions.receive(b"", parts, "", clock.now_ns())
        if isinstance(message, Welcome) and action is Action.MEET:
            self.busy = ""
            self.peer = message.text
            self.consumer.restart()
            self.consumer.tick(self._heard_s)
        elif isinstance(message, Refused) and action is Action.NOTE_REFUSAL:
            if message.code == "busy":
                self.busy = message.text
            else:
                self.refused = message
        elif isinstance(message, Bye) and action is Action.PART:
            self.ended = message.reason or "closed"
        elif action is Action.DELIVER:
            if isinstance(message, Beat):
                self.status = message.status
            self.consumer.on(message, size_bytes, self._heard_s)

    def wait(self, timeout_s: float) -> None:
        """Wait until a message has arrived, at most *timeout_s* seconds."""
        self.connection.wait(timeout_s)

    def close(self) -> None:
        """Say goodbye and close the connection."""
        if self._is_met and not self.is_over:
            self.send(Bye("closed"))
        self.connection.close()


_LOOK_S: Final = 0.1
_FULL_S: Final = 0.01
_MOST_GAPS: Final = 1000
_MOST_KINDS: Final = 10_000
_TOO_SLOW: Final = "this viewer was too slow"
_NOT_STORED: Final = "not in the stream"


@attrs.frozen
class Gap:
    """Events that did not arrive here."""

    events: int
    reason: str
    source_id: str = ""
    """The id of their source; empty if it is unknown, or if they are of several."""


@attrs.define
class Joined:
    """The relation of a model's state here to its state in the job."""

    model: Any
    complete: bool = False
    """Whether its state is that of the job's own model; else it covers only later events."""
    since_ns: int = 0
    """The time at which its state begins or was taken over, in ns since the epoch by the job's clock."""
    reason: str = "nothing has come yet"
    """The reason why it is not complete; empty if it is."""


class Attachment(Closing):
    """
    The result of `attach`: an iterator over events, each with its ``source`` and its ``seq``. For use by one thread.

    It ends when all other ends have said goodbye; a stream in NATS never does. While it waits for events, it reconnects
    by itself.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        to: object,
        min_priority: Priority | None,
        keep: Any,
        models: Sequence[Any],
        keys: str | os.PathLike[str] | None,
        insecure: bool,
    ) -> None:
        self.models: dict[str, Joined] = {model_name(model): Joined(model) for model in models}
        """The models that get the events, by name, and whether each is complete."""
        self.sources: dict[str, Source] = {}
        """The sources that events may come from, by id."""
        self.lost: int = 0
        """Events that should have come and did not: skipped because this viewer was slow or away, or lost before."""
        self.gaps: list[Gap] = []
        """The first thousand gaps."""
        self.dropped: int = 0
        """Events that the jobs dropped for lack of room before they had a number, since this viewer came."""
        self._malformed = 0
        self._asked = Filter.of(to, min_priority, None)
        self._decide, rule = _split(keep)
        streams = [endpoint for endpoint in endpoints if is_stream(endpoint)]
        _check(endpoints, streams, self.models, models)
        # Models read all events, and a stream in NATS delivers all. In both cases the user's selection is applied here.
        is_chosen_here = bool(models or streams)
        wanted = Filter() if is_chosen_here else Filter.of(to, min_priority, rule)
        self._decide = keep.start() if is_chosen_here and keep is not None else self._decide
        self._is_wanted: dict[type[Event] | str, bool] = {}
        """Whether the user asked for a type, by its class, or by its name if it is not known here."""
        self._is_all = self._asked.is_open
        self._is_whole = wanted.is_open
        """Whether every event comes, so that each source's own numbers show what is missing."""
        self._joins_midway = bool(streams) and not models
        """Whether no snapshot gives the sources' positions, so that each begins with its first frame here."""
        self._decoder = FrameDecoder()
        self._trackers: dict[str, SequenceTracker] = {}
        self._dropped_before: dict[str, int] = {}
        self._skipped_before: dict[int, int] = {}
        self._fresh: list[Event] = []
        self._lines: list[ViewerSession] = []
        self._streams: list[Any] = []
        """The `StreamSession` of each stream; if there are streams, `_lines` is empty."""
        names = list(self.models)
        try:
            for stream in streams:
                make = stream_module().StreamSession
                self._streams.append(make(stream, models=names, begin=self._begin, deliver=self._receive))
            for endpoint in () if streams else endpoints:
                connection = Connection(endpoint, binds=False, role="viewer", keys=keys, insecure=insecure)
                self._lines.append(
                    ViewerSession(
                        connection, wanted=wanted, models=names, deliver=self._deliver, introduce=self._introduce
                    )
                )
        except BaseException:
            self.close()
            raise

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(self, timeout_s: float | None = None) -> list[Event]:
        """
        Return the events that have come; wait for the first one at most *timeout_s* seconds, or for ever if it is None.

        Returns:
            Events in the order of each source's numbers, each once; none if time ran out or nothing more will come.

        Raises:
            UnreadableError: The other end refuses to serve.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._fresh and not self.is_over:
            self._turn(_LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - time.monotonic()))
            if deadline_s is not None and time.monotonic() >= deadline_s:
                break
        if not self._fresh:
            self._complain()
        fresh, self._fresh = self._fresh, []
        return fresh

    def deliver_to(self, deliver: Callable[[Sequence[Event]], bool]) -> None:
        """
        Deliver every event to the handlers of a bus in this process, until the iteration would end.

        With ``viewer.deliver_to(bus.inject)`` the events keep their sources and numbers; the bus numbers its own events
        independently. Event logs and publishers of that bus do not get these events. It waits while the bus is behind.
        """
        while not self.is_over or self._fresh:
            events = self.read()
            while events and not deliver(events):
                time.sleep(_FULL_S)

    def wait(self, timeout_s: float = 5.0) -> bool:
        """Return whether every other end introduces its stream within *timeout_s*; events that come are kept."""
        deadline_s = time.monotonic() + timeout_s
        while not all(line.consumer.is_introduced for line in self._lines):
            if self.is_over or time.monotonic() >= deadline_s:
                return False
            self._turn(min(_LOOK_S, deadline_s - time.monotonic()))
            self._complain()
        return True

    def _turn(self, timeout_s: float) -> int:
        """Receive once from each end; return the number of messages."""
        for line in self._lines:
            line.tick()
        sessions = [*self._lines, *self._streams]
        count: int = sum(session.receive() for session in sessions)
        if not count and timeout_s > 0:
            # Several connections share the time; with one, this is where a viewer sleeps.
            for session in sessions:
                session.wait(timeout_s / len(sessions))
            count = sum(session.receive() for session in sessions)
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
        """Whether every other end has said goodbye or refused to serve; a stream never does."""
        return not self._streams and all(line.is_over for line in self._lines)

    @property
    def is_silent(self) -> bool:
        """Whether an end that did not say goodbye, or a stream's server, has sent nothing for three seconds."""
        lines = [line for line in self._lines if not line.is_over]
        return any(session.is_silent for session in (*lines, *self._streams))

    @property
    def peers(self) -> list[str]:
        """The names that the other ends give themselves, and the addresses of streams."""
        return [session.peer for session in (*self._lines, *self._streams)]

    @property
    def busy(self) -> str:
        """The reason why the server makes this viewer wait, for example too many viewers; empty if it does not."""
        return next((line.busy for line in self._lines if line.busy), "")

    @property
    def status(self) -> list[dict[str, Any]]:
        """The latest status that each other end sent: the job's counts and open spans."""
        return [dict(line.status) for line in self._lines]

    @property
    def malformed(self) -> int:
        """The number of frames and snapshots that could not be read."""
        of_streams: int = sum(stream.malformed for stream in self._streams)
        return self._malformed + of_streams

    @property
    def repeated(self) -> int:
        """The number of entries that came twice and were skipped."""
        return sum(line.consumer.repeated for line in self._lines)

    @property
    def replays(self) -> int:
        """The number of times that entries had to be sent again."""
        return sum(line.consumer.replays for line in self._lines)

    # --- taking -------------------------------------------------------------------------------------------------------

    def _introduce(self, data: bytes) -> None:
        try:
            self._begin(decode_snapshot(data))
        except DecodeError:
            self._malformed += 1

    def _begin(self, snapshot: Snapshot) -> None:
        """Begin, or begin anew, from a snapshot."""
        for place in snapshot.places:
            source = place.source
            self.sources[source.id] = source
            self._decoder.introduce(source)
            known = self._trackers.get(source.id)
            if known is not None and place.next_seq > known.next_seq:
                reason = "passed while this viewer was away or behind"
                self._lose(
                    place.next_seq - known.next_seq, reason if self._is_whole else f"{reason}, of all types", source.id
                )
            if known is None or place.next_seq > known.next_seq:
                self._trackers[source.id] = SequenceTracker(next_seq=place.next_seq)
            self._dropped_before[source.id] = max(place.dropped, self._dropped_before.get(source.id, 0))
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
            except Exception as error:  # the state may be of another version, or from anybody
                if is_from_signal_handler(error):
                    raise
                joined.complete, joined.reason = False, f"its state could not be read: {error}"
            else:
                joined.complete, joined.reason = True, ""
            joined.since_ns = snapshot.taken_ns

    def _deliver(self, entry: Entry) -> None:
        if isinstance(entry, LossEntry):
            self._deliver_loss(entry)
            return
        try:
            frame = self._decoder.decode(entry.frame)
        except DecodeError:
            self._malformed += 1
            self._lose(entry.events, "a frame that cannot be read")
        else:
            self._receive(frame)

    def _receive(self, frame: Frame) -> None:
        source = frame.source
        if source.id not in self._trackers:
            if len(self._trackers) >= MAX_SOURCES:
                self._lose(len(frame.events), f"of more than {MAX_SOURCES} sources", source.id)
                return
            if self._joins_midway and frame.first_seq:
                self._dropped_before[source.id] = sum(frame.dropped.values())
        self.sources[source.id] = source
        tracker = self._tracker_of(source.id, frame.first_seq)
        missing = tracker.missing
        events = tracker.admit(frame)
        if self._is_whole and tracker.missing > missing:
            reason = _NOT_STORED if self._streams else _TOO_SLOW
            self._lose(tracker.missing - missing, reason, source.id)
        self._note_dropped(frame)
        if self.models:
            self._drive(events)
        self._fresh += self._chosen(events)

    def _deliver_loss(self, entry: LossEntry) -> None:
        tracker = self._tracker_of(entry.source_id, entry.first_seq)
        fresh = entry.last_seq - max(entry.first_seq, tracker.next_seq) + 1
        if fresh > 0:
            tracker.next_seq = entry.last_seq + 1
            self._lose(fresh, entry.reason, entry.source_id)

    def _tracker_of(self, source_id: str, first_seq: int) -> SequenceTracker:
        """
        Return the tracker of a source.

        A source that was in no snapshot has begun since, with number 0; if not all events come, or no snapshot did, it
        begins with *first_seq*.
        """
        tracker = self._trackers.get(source_id)
        if tracker is None:
            is_from_start = self._is_whole and not self._joins_midway
            tracker = self._trackers[source_id] = SequenceTracker(next_seq=0 if is_from_start else first_seq)
        return tracker

    def _drive(self, events: Sequence[Event]) -> None:
        for view in views(events):
            for joined in self.models.values():
                deliver(joined.model, view)

    def _chosen(self, events: Sequence[Event]) -> Iterable[Event]:
        """Return the *events* that the user asked for; without models they are nearly always all of them."""
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

    def _note_dropped(self, frame: Frame) -> None:
        total = sum(frame.dropped.values())
        before = self._dropped_before.get(frame.source.id, 0)
        if total > before:
            self._dropped_before[frame.source.id] = total
            self.dropped += total - before
            self._miss(total - before, frame.source.id)

    def _account(self, place: int, line: ViewerSession) -> None:
        """Record the events that the other end skipped."""
        skipped = line.consumer.skipped_events - self._skipped_before.get(place, 0)
        if skipped:
            self._skipped_before[place] = line.consumer.skipped_events
            if not self._is_whole:
                self._lose(skipped, _TOO_SLOW)
            if any(joined.complete for joined in self.models.values()):
                line.consumer.refresh()  # they get their present states, rather than states with a hole

    def _lose(self, events: int, reason: str, source_id: str = "") -> None:
        self.lost += events
        if len(self.gaps) < _MOST_GAPS:
            self.gaps.append(Gap(events, reason, source_id))
        self._miss(events, source_id)

    def _miss(self, events: int, source_id: str) -> None:
        for joined in self.models.values():
            missed = getattr(joined.model, "missed", None)
            if missed is not None:
                missed(self.sources.get(source_id) or Source.unknown(source_id), events)

    def _complain(self) -> None:
        for line in self._lines:
            if line.refused is not None:
                refused = line.refused
                raise UnreadableError(
                    line.connection.endpoint, f"{refused.code}: {refused.text}", "nothing can be read there"
                )

    # --- leaving ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye, so that the other ends keep nothing for this viewer; safe to call twice."""
        for line in self._lines:
            line.close()
            line.ended = line.ended or "closed here"
        for stream in self._streams:
            stream.close()
        self._streams = []


def _check(endpoints: Sequence[str], streams: Sequence[str], by_name: dict[str, Joined], models: Sequence[Any]) -> None:
    if not endpoints:
        raise ConfigError("endpoint", endpoints, "give at least one")
    if 0 < len(streams) < len(endpoints):
        other = next(endpoint for endpoint in endpoints if endpoint not in streams)
        raise ConfigError("endpoint", other, "give endpoints of jobs or streams, not both")
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
    """Return a predicate, if the rule is applied here, and the rule's wire form, if it is applied at the source."""
    if keep is None:
        return None, None
    if checked_rule(keep).portable:
        return None, keep.to_wire()
    return keep.start(), None


@suggests_settings()
def attach(
    *endpoints: str,
    to: EventTypes = Event,
    min_priority: Priority | None = None,
    keep: Any = None,
    models: Sequence[Any] = (),
    keys: str | os.PathLike[str] | None = None,
    insecure: bool = False,
) -> Attachment:
    """
    Watch a running job: iterate over its events as they happen, each with its ``source`` and its ``seq``.

    ::

        with trackside.attach("ipc:///run/user/1000/trackside/demo.0") as events:
            for event in events:
                print(event)

    It may begin at any time and never slows the job. Events that are not asked for do not leave the job, and are not
    even built there if no other subscriber wants them. The iteration ends when the job does.

    Args:
        endpoints: The endpoints of one or several jobs' publishers, or of a collector, which has them all; or the
            directory that a job on this machine writes to, for all its ranks; or streams in NATS, as
            ``nats://HOST:PORT/STREAM``, where ``/RUN`` or ``/RUN/RANK`` may follow. A stream begins with what is
            published from now on, or, if ``?since=TIME`` follows, with what was stored from then on. It never ends.
        to: The event type, or several; or their wire names, or globs of wire names.
        min_priority: The lowest priority wanted; all unless given.
        keep: The rule that selects the events to keep. It is applied in the job; here if it is a `where`, and with
            models or streams.
        models: Models to bring into the states that they have in the job, and to update from there on. For a run in a
            stream they begin with the states that its collectors have stored; without such, with its first message.
        keys: A directory of keys, if the endpoint requires keys.
        insecure: Allow an endpoint without keys where they would be required.

    Raises:
        ConfigError: An argument is wrong, or the endpoint is not safe.
        UnreadableError: No job in that directory can be watched, or the stream cannot be read.
        MissingExtraError: For a stream: nats-py is not installed.
    """
    found = [one for given in endpoints for one in ([given] if "://" in given else find_endpoints(given))]
    return Attachment(
        found, to=to, min_priority=min_priority, keep=keep, models=tuple(models), keys=keys, insecure=insecure
    )
