"""
The messages of the remote stream, and the limits within which they are accepted.

`docs/remote-protocol.md` describes which end sends which message when. A message has one part or two: a head of at most
64 KiB, which is a msgpack list of its kind and its fields, and for some kinds a body of at most 1 MiB, which is sent
unchanged. Decoding checks sizes first, then types and ranges. If one of them is wrong, it raises a `DecodeError`, and
nothing of the message is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, TypeAlias, get_origin, get_type_hints

import attrs
import msgpack

from trackside.core import RateLimitedLog, described
from trackside.events import ConfigError, DecodeError, Event, Priority, Source, SourceEnded, SourceStarted, UnknownEvent
from trackside.events._selected import EVERYTHING, SelectedTypes, checked_priority
from trackside.wire import pack, saturated
from trackside.wire._sequence import MAX_COUNT, count_of
from trackside.wire._values import is_sound, unpack

MAX_PARTS: Final = 2
MAX_HEAD_BYTES: Final = 64 << 10
MAX_VERB_BYTES: Final = 4 << 10
"""The largest head of a verb: every job that a verb reaches records it."""
MAX_BODY_BYTES: Final = 1 << 20
"""The largest part of a message; every socket refuses larger ones."""
MAX_TEXT: Final = 1024
"""The most characters of one text in a message."""
MAX_NAMES: Final = 64
"""The most type names in a filter, models in a request, and sources in a verb's target."""
MAX_RULE_BYTES: Final = 16 << 10
"""The largest wire form of a filter's rule."""

# --- time -------------------------------------------------------------------------------------------------------------

BEAT_S: Final = 1.0
"""The time between two beats of a source end, and between two pings of a viewer end."""
SILENT_AFTER_BEATS: Final = 3
FORGET_AFTER_S: Final = 30.0
"""A peer that was silent for this long is forgotten, with all that was kept for it."""
RENEW_AFTER_S: Final = 8.0
"""A connection that was silent for eight beats is replaced."""
RENEW_AT_MOST_S: Final = 30.0
"""The longest time between two attempts to replace a connection."""

# --- connections ------------------------------------------------------------------------------------------------------

MAX_VIEWERS: Final = 64
"""The viewers that one publisher accepts."""
MAX_COLLECTOR_VIEWERS: Final = 256
MAX_PRODUCERS: Final = 8192
"""The most ranks and forwarders that one collector or forwarder serves."""
MAX_PRODUCERS_OF_ADDRESS: Final = 4096
"""The most ranks and forwarders behind one address with one key."""


@attrs.frozen
class ConnectionLimits:
    """The most connections that a bound socket keeps."""

    of_address: int
    """
    The most connections from one address. More may come at the same moment; the socket's thread ends them a moment
    later.
    """
    of_all: int


PUBLISHER_CONNECTIONS: Final = ConnectionLimits(128, 256)
"""Two to four times the number of viewers: new connections have not greeted yet."""
COLLECTOR_VIEWER_CONNECTIONS: Final = ConnectionLimits(512, 1024)
PRODUCER_CONNECTIONS: Final = ConnectionLimits(MAX_PRODUCERS_OF_ADDRESS + 512, MAX_PRODUCERS + 2048)
"""More than the number of producers: one may connect again before its former connection is known to be gone."""
SEND_MESSAGES: Final = 1024
"""The most messages that may wait for one peer. Their bytes are bounded by the window."""
RECEIVE_MESSAGES: Final = 1024
"""The most messages of one peer that may wait to be read."""
WAITING_MESSAGES: Final = 32
"""The same for a socket with thousands of producers: further messages wait in the producers' rings."""

# --- streams ----------------------------------------------------------------------------------------------------------

WINDOW_BYTES: Final = 4 << 20
"""The most bytes on their way to one viewer that are not yet acknowledged."""
MIN_WINDOW_BYTES: Final = 1 << 20
LEAST_WINDOW_BYTES: Final = 128 << 10
ALL_WINDOWS_BYTES: Final = 8 << 20
"""The most such bytes for all viewers of a stream server together."""
ALL_RECEIVE_WINDOWS_BYTES: Final = 64 << 20
"""The most such bytes for all producers of a receiver together."""
MAX_IN_FLIGHT: Final = 900
"""The most entries that are sent and not acknowledged; the socket has room for more, so it refuses none of them."""
MAX_OUT_OF_ORDER: Final = 4096
"""The most entries of one stream that are kept because they came before their turn."""
VIEWER_MESSAGES_PER_S: Final = 1000.0
NEW_STREAMS_PER_S: Final = 16.0
"""Each stream is one of the job's handlers, so a viewer that keeps asking for another stream has to wait."""
VERBS_PER_S: Final = 2.0
"""The verbs per second that one key may send: each is recorded, allowed or not."""
VERBS_AT_ONCE: Final = 20.0
MAX_ANSWERS: Final = 1 << 16
"""The most results of verbs that wait for room on the way to their viewers."""

# --- snapshots --------------------------------------------------------------------------------------------------------

CHUNK_BYTES: Final = 512 << 10
"""The most bytes of a snapshot in one message."""
MAX_CHUNKS: Final = 4
"""The most chunks that are sent for one request."""
MAX_SNAPSHOT_BYTES: Final = 64 << 20
"""The most bytes of one snapshot, of all snapshots that wait at a source end, and of all that a viewer end fetches."""
MAX_SOURCES_BYTES: Final = 32 << 20
"""The most bytes of one producer's snapshot, which lists the sources behind it; enough for 60,000 of them."""
DISTRUSTED_SNAPSHOT_BYTES: Final = 1 << 20
"""The same for a producer that announced a snapshot before and did not send it."""
SNAPSHOT_WITHIN_S: Final = 30.0
"""The time in which a snapshot must be fetched; then its room is released."""

# --- sources ----------------------------------------------------------------------------------------------------------

MAX_SOURCES: Final = 1 << 18
MAX_SOURCES_OF_ONE: Final = 1 << 15
"""The most sources behind one producer: a rank and its workers, or all ranks of a forwarder."""
MAX_UNHEARD_SOURCES: Final = 1024
"""The most sources of which only losses have been reported."""
EVENTS_PER_SOURCE: Final = 200
"""
A new source is charged to its producer as this number of events: it costs a file, and a line in every snapshot.
"""
MAX_OPEN_SPANS_BYTES: Final = 4 << 10
"""The most bytes of the open spans of a heartbeat, which are kept in case the source falls silent."""

# --- what one producer may use ----------------------------------------------------------------------------------------

BURST_S: Final = 4.0
"""The largest burst, in seconds of the allowance: a rank sends its whole ring when the network is back."""
_USUAL_S_PER_EVENT: Final = 50e-6
_USUAL_S_PER_BYTE: Final = 50e-9
"""The processor time per event and per byte that a message may take without a charge: several times the usual."""


@attrs.frozen
class PeerLimits:
    """The limits of what one producer may use in each second."""

    events: float = 200_000.0
    size_bytes: float = float(32 << 20)
    messages: float = 2_000.0
    extra_cpu_s: float = 0.1
    """Processor time beyond the usual for messages of their size and number of events."""

    def times(self, volume: float, messages: float, extra_cpu: float) -> PeerLimits:
        """Return limits that are larger by these factors; *volume* is for events and bytes."""
        return PeerLimits(
            self.events * volume, self.size_bytes * volume, self.messages * messages, self.extra_cpu_s * extra_cpu
        )


SETTLED_AFTER_S: Final = 3.0
"""A producer that still sends this long after its greeting gets an allowance of its own."""


def limits_of_newcomers(limits: PeerLimits) -> PeerLimits:
    """
    Return the limits that all new producers of one address share: as many messages as *limits* allow one producer.

    They allow eight times the events and bytes, because the ranks of a node come back with full rings at the same
    moment.
    """
    return limits.times(8, 1, 1)


def limits_of_address(limits: PeerLimits) -> PeerLimits:
    """
    Return the limits of all producers of one address together.

    Thousands of ranks behind one address send a few messages a second each.
    """
    return limits.times(16, 16, 4)


@attrs.define
class TokenBucket:
    """
    An allowance that fills with time, up to *burst*.

    Args:
        per_s: Tokens that come in each second.
        burst: The most tokens, and their number at the beginning.
    """

    per_s: float
    burst: float
    tokens: float = attrs.field(init=False)
    _at_s: float | None = None

    def __attrs_post_init__(self) -> None:
        self.tokens = self.burst

    def take(self, now_s: float) -> bool:
        """Take one token; False if there is none."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self.tokens = min(self.burst, self.tokens + passed_s * self.per_s)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@attrs.define
class PeerBuckets:
    """
    The rest of one producer's allowance. It fills with time, and may fall below zero; then nothing is admitted.

    Args:
        limits: The limits of the producer, which are also the rates at which the allowance fills.
        now_s: The time now, by any clock that only goes forward.
        within: An allowance shared with others, from which everything is taken as well.
    """

    _limits: PeerLimits
    _at_s: float
    within: PeerBuckets | None = None
    _events: float = attrs.field(init=False)
    _bytes: float = attrs.field(init=False)
    _messages: float = attrs.field(init=False)
    _extra_cpu_s: float = attrs.field(init=False)
    charged_events: float = attrs.field(default=0.0, init=False)
    cut_messages: int = attrs.field(default=0, init=False)
    """Messages that were not admitted so far."""
    cut_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._events = self._limits.events * BURST_S
        self._bytes = self._limits.size_bytes * BURST_S
        self._messages = self._limits.messages * BURST_S
        self._extra_cpu_s = self._limits.extra_cpu_s * BURST_S

    def admit(self, size_bytes: int, now_s: float) -> bool:
        """Charge a message of *size_bytes* to the allowance; if nothing is left, count the message and return False."""
        if self._is_spent(now_s) or (self.within is not None and not self.within.admit(size_bytes, now_s)):
            self.cut_messages += 1
            self.cut_bytes += size_bytes
            return False
        self._bytes -= size_bytes
        self._messages -= 1
        return True

    def charge(self, events: int) -> None:
        """Charge the *events* of an admitted message to the allowance."""
        self._events -= events
        self.charged_events += events
        if self.within is not None:
            self.within.charge(events)

    def charge_cpu(self, spent_s: float, size_bytes: int, events: float) -> None:
        """Charge the processor time of a message beyond the usual for its size."""
        extra_s = spent_s - _USUAL_S_PER_EVENT * (1 + events) - _USUAL_S_PER_BYTE * size_bytes
        self._extra_cpu_s -= max(0.0, extra_s)
        if self.within is not None:
            self.within.charge_cpu(spent_s, size_bytes, events)

    def settle(self, within: PeerBuckets | None, now_s: float) -> None:
        """
        Take from *within* too from now on, and keep at most one second's allowance, so that reconnecting gains nothing.
        """
        self._fill(now_s)
        self.within = within
        limits = self._limits
        self._events = min(self._events, limits.events)
        self._bytes = min(self._bytes, limits.size_bytes)
        self._messages = min(self._messages, limits.messages)
        self._extra_cpu_s = min(self._extra_cpu_s, limits.extra_cpu_s)

    def is_empty(self, now_s: float) -> bool:
        """Return whether no message would be admitted now."""
        return self._is_spent(now_s) or (self.within is not None and self.within.is_empty(now_s))

    def _is_spent(self, now_s: float) -> bool:
        self._fill(now_s)
        return min(self._events, self._bytes, self._messages, self._extra_cpu_s) <= 0

    def _fill(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0:
            limits = self._limits
            self._at_s = now_s
            self._events = min(self._events + limits.events * passed_s, limits.events * BURST_S)
            self._bytes = min(self._bytes + limits.size_bytes * passed_s, limits.size_bytes * BURST_S)
            self._messages = min(self._messages + limits.messages * passed_s, limits.messages * BURST_S)
            self._extra_cpu_s = min(self._extra_cpu_s + limits.extra_cpu_s * passed_s, limits.extra_cpu_s * BURST_S)


PROTOCOL_VERSION: Final = 2


SOURCE_END: Final = "source"
VIEWER_END: Final = "viewer"

OLDEST: Final = "*"
"""A stream to resume that stands for all entries that are still kept, from the oldest on."""

VERBS: Final = ("status", "priority", "sample", "pause", "resume", "flush")
"""The verbs that a job accepts from outside; it accepts no others."""


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


# The types of fields, each with the check of the value that a peer sent.
Whole: TypeAlias = Annotated[int, lambda value: type(value) is int and 0 <= value < MAX_COUNT]
Number: TypeAlias = Annotated[int, lambda value: type(value) is int and -MAX_COUNT < value < MAX_COUNT]
Flag: TypeAlias = Annotated[bool, lambda value: type(value) is bool]
Text: TypeAlias = Annotated[str, _is_text]
Texts: TypeAlias = Annotated[
    list[str], lambda value: type(value) is list and len(value) <= MAX_NAMES and all(map(_is_text, value))
]
Table: TypeAlias = Annotated[dict[str, Any], lambda value: type(value) is dict and is_sound(value)]
WireRule: TypeAlias = Annotated[
    "list[Any] | None", lambda value: value is None or (type(value) is list and is_sound(value))
]
Body: TypeAlias = Annotated[bytes, lambda value: type(value) is bytes]


@attrs.frozen
class Message:
    """The base of all messages."""

    kind: ClassVar[int]
    has_body: ClassVar[bool] = False
    """Whether its last field is sent as a second part."""
    max_head_bytes: ClassVar[int] = MAX_HEAD_BYTES


# --- getting to know each other ---------------------------------------------------------------------------------------


@attrs.frozen
class Hello(Message):
    """The first message of an end that connects, sent again until it is answered."""

    kind = 1
    version: Whole
    end: Text
    """`SOURCE_END` or `VIEWER_END`."""
    id: Text
    """The id of this end: random, and the same after it has reconnected."""
    text: Text
    """A description of the sender for people: program, host, process."""


@attrs.frozen
class Welcome(Message):
    """The answer to `Hello`, with the same fields about the other end."""

    kind = 2
    version: Whole
    end: Text
    id: Text
    text: Text


@attrs.frozen
class Reset(Message):
    """The answer to an unknown peer: begin again with `Hello`."""

    kind = 3


@attrs.frozen
class Refused(Message):
    """A request was refused."""

    kind = 4
    request: Whole
    """The number of the request; 0 for none."""
    code: Text
    """``version``, ``busy``, ``malformed``, ``forbidden`` or ``unsupported``; only after ``busy`` may one ask again."""
    text: Text


@attrs.frozen
class Bye(Message):
    """This end leaves in good order; nothing more comes from it, and nothing needs to be kept for it."""

    kind = 5
    reason: Text


# --- alive, and at what time ------------------------------------------------------------------------------------------


@attrs.frozen
class Ping(Message):
    """A question to the other end; a viewer end sends it once a second."""

    kind = 6
    sent_ns: Number
    """The asker's clock."""


@attrs.frozen
class Pong(Message):
    """The answer to `Ping`, sent at once. The other clock's offset: ``((received - sent) + (replied - now)) / 2``."""

    kind = 7
    sent_ns: Number
    received_ns: Number
    replied_ns: Number


@attrs.frozen
class Beat(Message):
    """From a source end once a second: the position of its stream, also while the stream is empty."""

    kind = 8
    stream: Text
    next_index: Whole
    """The index of the next entry that this peer will get: a viewer with fewer entries has lost some."""
    before: Whole
    """Events in all entries before that one."""
    status: Table
    """The job's description of itself: ``seq``, ``counts``, ``open_spans``; a collector's has any keys."""


# --- asking for a stream ----------------------------------------------------------------------------------------------


@attrs.frozen
class Subscribe(Message):
    """
    From a viewer end: a request for events, repeated until `Subscribed` or `Refused`. It replaces the previous request.
    """

    kind = 9
    request: Whole
    names: Texts
    """Wire names or globs; a name also means the types derived from it."""
    min_priority: Number
    """The lowest priority."""
    rule: WireRule
    """The result of a rule's ``to_wire``."""
    models: Texts
    """The models whose dumped states are wanted."""
    resume_stream: Text
    """The stream that broke off; empty for none."""
    resume_index: Whole
    """The index of the entry of that stream that comes next."""
    window_bytes: Whole


@attrs.frozen
class Subscribed(Message):
    """The answer to `Subscribe`: entries follow from *next_index* on, and a snapshot is ready if it has chunks."""

    kind = 10
    request: Whole
    stream: Text
    next_index: Whole
    before: Whole
    resumed: Flag
    """Whether the stream continues at *resume_index*; then there is no snapshot."""
    window_bytes: Whole
    snapshot_bytes: Whole
    snapshot_chunks: Whole


@attrs.frozen
class Fetch(Message):
    """From a viewer end: a request for at most 4 chunks of the snapshot, repeated if they do not come."""

    kind = 11
    request: Whole
    """The number of the `Subscribe` whose snapshot it is."""
    first: Whole
    count: Whole


@attrs.frozen
class Chunk(Message):
    """One chunk of a snapshot, numbered from 0."""

    kind = 12
    has_body = True
    request: Whole
    number: Whole
    data: Body


# --- the stream -------------------------------------------------------------------------------------------------------


@attrs.frozen
class FrameEntry(Message):
    """An entry of a stream: one frame of one source."""

    kind = 13
    has_body = True
    stream: Text
    index: Whole
    """The number of entries before it; it has no holes, whatever the sources' own numbers are."""
    before: Whole
    """Events in all entries before it."""
    events: Whole
    """Rows in the frame."""
    frame: Body


@attrs.frozen
class LossEntry(Message):
    """An entry of a stream: events of one source that were lost on the way to this source end."""

    kind = 14
    stream: Text
    index: Whole
    before: Whole
    source_id: Text
    first_seq: Whole
    last_seq: Whole
    """The numbers that are missing, both ends included."""
    reason: Text


@attrs.frozen
class Skipped(Message):
    """
    The entries from *index* up to the one before *next_index* are not sent: this peer was too slow, or away too long.
    """

    kind = 15
    stream: Text
    index: Whole
    next_index: Whole
    before: Whole
    """Events in all entries before *next_index*. The difference to those before *index* is the number skipped."""


@attrs.frozen
class Ack(Message):
    """From a viewer end: everything below *next_index* was received."""

    kind = 16
    stream: Text
    next_index: Whole


@attrs.frozen
class ReplayRequest(Message):
    """From a viewer end: entry *next_index* is missing; a request to send the entries from it on again."""

    kind = 17
    stream: Text
    next_index: Whole


# --- control ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Verb(Message):
    """A request to do something. Accepted only where control is allowed."""

    kind = 18
    max_head_bytes = MAX_VERB_BYTES  # each job that it reaches records who asked what
    request: Whole
    verb: Text
    """One of `VERBS`."""
    targets: Texts
    """Ids of sources, or ``rank:N``; empty for all."""
    arguments: Table
    within_ms: Whole = 5000
    """The time for which the asker waits for results. An end that passes the verb on reports a failure before that."""


@attrs.frozen
class Result(Message):
    """The answer to `Verb`: one for each source that it is meant for, from that source or from an end on the way."""

    kind = 19
    request: Whole
    source_id: Text
    done: Flag
    values: Table


_KINDS: Final[dict[int, type[Message]]] = {cls.kind: cls for cls in Message.__subclasses__()}
_CHECKS: Final = {
    cls: {
        name: hint.__metadata__[0]
        for name, hint in get_type_hints(cls, include_extras=True).items()
        if get_origin(hint) is Annotated
    }
    for cls in _KINDS.values()
}
"""For each kind of message, the check of each field."""


def encode(message: Message) -> list[bytes]:
    """
    Return the parts of *message*.

    Raises:
        ValueError: if it would be larger than any reader accepts.
        TypeError: if it holds a value that is not plain data.
    """
    values = [getattr(message, name) for name in _CHECKS[type(message)]]
    body = [values.pop()] if message.has_body else []
    head = pack([message.kind, *values])
    if len(head) > message.max_head_bytes or (body and len(body[0]) > MAX_BODY_BYTES):
        raise ValueError(f"a {type(message).__name__} of {len(head)} bytes and {sum(map(len, body))} in its body")
    return [head, *body]


def decode(parts: Sequence[bytes]) -> Message:
    """
    Decode a message from its *parts*.

    Raises:
        DecodeError: if they are not a message; they may come from anybody.
    """
    if not 1 <= len(parts) <= MAX_PARTS:
        raise DecodeError(f"a message of {len(parts)} parts; it has 1 or 2")
    values = unpack(parts[0], MAX_HEAD_BYTES)
    if type(values) is not list or not values or type(values[0]) is not int:
        raise DecodeError("a message begins with its kind")
    cls = _KINDS.get(values.pop(0))
    if cls is None:
        raise DecodeError("a message of no known kind")
    if len(parts[0]) > cls.max_head_bytes:
        raise DecodeError(f"a {cls.__name__} of {len(parts[0])} bytes; at most {cls.max_head_bytes}")
    if cls.has_body != (len(parts) == MAX_PARTS):
        raise DecodeError(f"a {cls.__name__} of {len(parts)} parts")
    if cls.has_body:
        if len(parts[1]) > MAX_BODY_BYTES:
            raise DecodeError(f"a {cls.__name__} of {len(parts[1])} bytes; at most {MAX_BODY_BYTES}")
        values.append(parts[1])
    checks = _CHECKS[cls]
    if len(values) != len(checks):
        raise DecodeError(f"a {cls.__name__} has {len(checks)} fields")
    for (name, check), value in zip(checks.items(), values, strict=True):
        if not check(value):
            raise DecodeError(f"the {name} of a {cls.__name__} is not what it should be")
    return cls(*values)


ALWAYS: Final = (SourceStarted.wire_name, SourceEnded.wire_name)
"""Types in every stream, asked for or not: they name the source of the events and the end of the stream."""


@attrs.frozen
class Filter:
    """The events that a viewer wants; equal filters are served by one stream."""

    names: tuple[str, ...] = (EVERYTHING,)
    """Wire names and globs; a name includes the types derived from it."""
    min_priority: int = int(Priority.PROFILE)
    """The lowest priority."""
    rule_bytes: bytes = b""
    """The rule's wire form, packed so that it can be compared; empty for none."""

    @property
    def rule(self) -> list[Any] | None:
        """The rule's wire form."""
        return msgpack.unpackb(self.rule_bytes) if self.rule_bytes else None

    @property
    def level(self) -> Priority:
        """The lowest priority, as a `Priority`."""
        return Priority(self.min_priority)

    @property
    def is_open(self) -> bool:
        """Whether it admits every event."""
        return EVERYTHING in self.names and self.min_priority <= int(Priority.PROFILE) and not self.rule_bytes

    @classmethod
    def from_wire(cls, names: list[str], min_priority: int, rule: list[Any] | None) -> Filter:
        """
        Read a filter that a peer sent.

        Raises:
            DecodeError: if it is not a filter.
        """
        if not names or any(not name or len(name) > MAX_TEXT for name in names):
            raise DecodeError("a filter names at least one type")
        if not 0 <= min_priority <= max(Priority):
            raise DecodeError(f"{min_priority} is no priority")
        packed = pack(rule) if rule is not None else b""
        if len(packed) > MAX_RULE_BYTES:
            raise DecodeError(f"a rule of {len(packed)} bytes; at most {MAX_RULE_BYTES}")
        return cls(tuple(sorted(set(names))), max(min_priority, int(Priority.PROFILE)), packed)

    @classmethod
    def of(cls, to: object, min_priority: Priority | None, rule: list[Any] | None) -> Filter:
        """
        Return the filter for a user's selection.

        Args:
            to: An event class, a wire name, a glob, or a tuple of these.
            min_priority: The lowest priority; all unless given.
            rule: A rule's wire form.

        Raises:
            ConfigError: if an argument is none of these.
        """
        types = SelectedTypes.of(to)
        names = [*types.names, *(one.wire_name or EVERYTHING for one in types.classes)]
        if len(names) > MAX_NAMES or any(len(name) > MAX_TEXT for name in names):
            raise ConfigError("to", to, f"give at most {MAX_NAMES} types, by names of at most {MAX_TEXT} characters")
        return cls.from_wire(names, int(checked_priority(min_priority)), rule)

    def admits(self, event: Event) -> bool:
        """Return whether *event* was asked for by its type and priority; the rule is not applied."""
        # The priority of a type that is not known here was checked where the event came from.
        if event.priority < self.min_priority and not isinstance(event, UnknownEvent):
            return False
        return SelectedTypes((), self.names).has(event)


_MAX_TEXT_BYTES: Final = 1 << 20
_MAX_LENGTH: Final = 1 << 24


@attrs.frozen
class SourcePosition:
    """The position that one source had reached."""

    source: Source
    next_seq: int
    """The number of its first event that is not in the states."""
    dropped: int
    """Its events that never got a number."""


@attrs.frozen
class Snapshot:
    """The state of all models between two events of each source."""

    places: Sequence[SourcePosition]
    models: Mapping[str, Any]
    """The dumped state of each model, by its name."""
    taken_ns: int
    """The time when it was taken, in ns since the epoch."""


def model_name(model: object) -> str:
    """Return the name under which a model's state is dumped and asked for: its class's name, without the module."""
    return type(model).__qualname__


def names_of(model: object) -> tuple[str, ...]:
    """Return the names under which a model's state can be asked for: its own, and those that it stands for."""
    return (model_name(model), *getattr(model, "stands_for", ()))


_log_of_states: Final = RateLimitedLog()
"""Rate-limited, because events of ranks can cause a state that cannot be sent, and each new viewer asks for it."""


def dump_models(models: Iterable[Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the states of the named *models*; if several have one name, that of the first."""
    wanted = set(names)
    states: dict[str, Any] = {}
    for model in models:
        asked = [name for name in names_of(model) if name in wanted and name not in states]
        if asked and callable(getattr(model, "dump", None)):
            try:
                states.update(dict.fromkeys(asked, model.dump()))
            except Exception as error:  # a model that fails must not affect the others' states
                _log_of_states.complain("the state of %s could not be dumped: %s", model_name(model), described(error))
    return states


def _packable(name: str, state: Any) -> dict[str, Any]:
    """Return the entry of one model: integers saturate at 64 bits, and a state that is not plain data is left out."""
    fitting = saturated(state)
    try:
        pack(fitting)
    except Exception as error:
        _log_of_states.complain("the state of %s is no plain data and is left out: %s", name, described(error))
        return {}
    if fitting != state:
        _log_of_states.complain(
            "a sum in the state of %s is larger than 64 bits hold; viewers are sent the largest number", name
        )
    return {name: fitting}


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """
    Return *snapshot* as bytes.

    Raises:
        ValueError: if it would be larger than any reader accepts.
    """
    table = {
        "sources": [
            [place.source.to_wire(), min(place.next_seq, MAX_COUNT), min(place.dropped, MAX_COUNT)]
            for place in snapshot.places
        ],
        "models": dict(snapshot.models),
        "taken_ns": snapshot.taken_ns,
    }
    try:
        data = pack(table)
    except (OverflowError, TypeError, ValueError):
        models = [_packable(name, state) for name, state in snapshot.models.items()]
        data = pack({**table, "models": {name: state for entry in models for name, state in entry.items()}})
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise ValueError(f"a snapshot of {len(data)} bytes; at most {MAX_SNAPSHOT_BYTES}")
    return data


def decode_snapshot(data: bytes) -> Snapshot:
    """
    Read a snapshot back.

    Raises:
        DecodeError: if *data* is not a snapshot. Each model checks its own state.
    """
    if len(data) > MAX_SNAPSHOT_BYTES:
        raise DecodeError(f"a snapshot of {len(data)} bytes; at most {MAX_SNAPSHOT_BYTES}")
    try:
        table = msgpack.unpackb(
            data,
            strict_map_key=False,
            max_str_len=_MAX_TEXT_BYTES,
            max_array_len=_MAX_LENGTH,
            max_map_len=_MAX_LENGTH,
            max_ext_len=0,
        )
        places = [
            SourcePosition(Source.from_wire(wire), count_of(seq), count_of(dropped))
            for wire, seq, dropped in table["sources"]
        ]
        models, taken_ns = table["models"], table["taken_ns"]
    except Exception as error:  # msgpack raises many kinds, and its result may have any shape
        raise DecodeError(f"no snapshot: {error}") from error
    if type(models) is not dict or not all(type(name) is str for name in models) or type(taken_ns) is not int:
        raise DecodeError("a snapshot has models by name, and a time")
    return Snapshot(places, models, taken_ns)


def chunk_count(size_bytes: int) -> int:
    """Return how many messages a snapshot of *size_bytes* takes."""
    return -(-size_bytes // CHUNK_BYTES)
