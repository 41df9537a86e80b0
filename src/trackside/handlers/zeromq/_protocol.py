"""
What is said over a socket: the messages, and the limits within which they are believed.

`docs/remote-protocol.md` says who sends which when. A message is one part, or two: a head of at most 64 KiB, which is a
msgpack list of its kind and its fields, and for some kinds a body of at most 1 MiB, carried as it is. Decoding looks at
sizes first, then at types and ranges; what is wrong in any of them is a `DecodeError`, and nothing of it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import msgpack

from trackside.events import DecodeError
from trackside.events._values import is_sound, unpack

PROTOCOL_VERSION: Final = 1

MAX_HEAD_BYTES: Final = 64 << 10
MAX_BODY_BYTES: Final = 1 << 20
"""Of one part of a message; every socket is told to refuse larger ones."""
MAX_PARTS: Final = 2
MAX_TEXT: Final = 1024
MAX_NAMES: Final = 64
"""Type names in a filter, models in a request, sources in a verb's target."""
MAX_PEERS: Final = 64
"""Of one publisher. A collector may have more."""

WINDOW_BYTES: Final = 4 << 20
"""What may be on its way to one viewer and not yet acknowledged."""
MIN_WINDOW_BYTES: Final = 1 << 20
CHUNK_BYTES: Final = 512 << 10
"""Of a snapshot, in one message."""
MAX_SNAPSHOT_BYTES: Final = 64 << 20

BEAT_S: Final = 1.0
"""Between two beats of a source end, and between two pings of a viewer end."""
SILENT_AFTER_BEATS: Final = 3
FORGET_AFTER_S: Final = 30.0
"""A viewer not heard of for so long is forgotten, and what was kept for it with it."""

SOURCE_END: Final = "source"
VIEWER_END: Final = "viewer"

VERBS: Final = ("status", "detail", "sample", "pause", "resume", "flush")
"""All that can be asked of a job from outside; nothing else is understood."""

_MOST: Final = 1 << 62

Check: TypeAlias = Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_number(value: Any) -> bool:
    return type(value) is int and -_MOST < value < _MOST


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


def _is_table(value: Any) -> bool:
    return type(value) is dict and is_sound(value)


def _is_texts(value: Any) -> bool:
    return type(value) is list and len(value) <= MAX_NAMES and all(map(_is_text, value))


def _is_rule(value: Any) -> bool:
    return value is None or (type(value) is list and is_sound(value))


def _is_bytes(value: Any) -> bool:
    return type(value) is bytes


def _one(check: Check) -> Any:
    return attrs.field(metadata={"check": check})


@attrs.frozen
class Message:
    """What every message is."""

    kind: ClassVar[int]
    has_body: ClassVar[bool] = False
    """Whether its last field is a part of its own."""


# --- getting to know each other ---------------------------------------------------------------------------------------


@attrs.frozen
class Hello(Message):
    """First from whoever connects, and again until it is answered."""

    kind = 1
    version: int = _one(_is_whole)
    end: str = _one(_is_text)
    """`SOURCE_END` or `VIEWER_END`."""
    id: str = _one(_is_text)
    """Of this end, random, the same after it has reconnected."""
    text: str = _one(_is_text)
    """Who that is, for people: program, host, process."""


@attrs.frozen
class Welcome(Message):
    """The answer to `Hello`, with the same fields about the other end."""

    kind = 2
    version: int = _one(_is_whole)
    end: str = _one(_is_text)
    id: str = _one(_is_text)
    text: str = _one(_is_text)


@attrs.frozen
class Reset(Message):
    """To a peer that is not known here: begin again with `Hello`."""

    kind = 3


@attrs.frozen
class Refused(Message):
    """Something that was asked for is not done."""

    kind = 4
    request: int = _one(_is_whole)
    """The number of what was asked; 0 for none."""
    code: str = _one(_is_text)
    """``version``, ``busy``, ``malformed``, ``forbidden`` or ``unsupported``; only ``busy`` may be asked again."""
    text: str = _one(_is_text)


@attrs.frozen
class Bye(Message):
    """This end leaves in good order; nothing more comes from it, and nothing need be kept for it."""

    kind = 5
    reason: str = _one(_is_text)


# --- alive, and at what time ------------------------------------------------------------------------------------------


@attrs.frozen
class Ping(Message):
    """Asked by either end, once a second by a viewer's."""

    kind = 6
    sent_ns: int = _one(_is_number)
    """The asker's clock."""


@attrs.frozen
class Pong(Message):
    """Answered at once. Offset of the other clock: ``((received - sent) + (replied - now)) / 2``."""

    kind = 7
    sent_ns: int = _one(_is_number)
    received_ns: int = _one(_is_number)
    replied_ns: int = _one(_is_number)


@attrs.frozen
class Beat(Message):
    """From a source end once a second: where the stream stands, also when nothing is in it."""

    kind = 8
    stream: str = _one(_is_text)
    next_index: int = _one(_is_whole)
    """Of the next entry that this peer will be sent: a viewer that has fewer has lost some."""
    before: int = _one(_is_whole)
    """Events in all entries before that one."""
    status: dict[str, Any] = _one(_is_table)  # noqa: RUF009
    """What the job says of itself: ``seq``, ``counts``, ``open_spans``; of a collector what it likes."""


# --- asking for a stream ----------------------------------------------------------------------------------------------


@attrs.frozen
class Subscribe(Message):
    """From a viewer end: let me have this; repeated until `Subscribed` or `Refused`. Replaces what was asked before."""

    kind = 9
    request: int = _one(_is_whole)
    names: list[str] = _one(_is_texts)  # noqa: RUF009
    """Wire names or globs; a name also means the types derived from it."""
    detail: int = _one(_is_number)
    """The lowest level of detail."""
    rule: list[Any] | None = _one(_is_rule)  # noqa: RUF009
    """As a rule's ``to_wire`` gives it."""
    models: list[str] = _one(_is_texts)  # noqa: RUF009
    """Whose dumped states are wanted."""
    resume_stream: str = _one(_is_text)
    """The stream that broke off; empty for none."""
    resume_index: int = _one(_is_whole)
    """What is due of it."""
    window_bytes: int = _one(_is_whole)


@attrs.frozen
class Subscribed(Message):
    """The answer to `Subscribe`: what follows begins with *next_index*, as of the snapshot if there is one."""

    kind = 10
    request: int = _one(_is_whole)
    stream: str = _one(_is_text)
    next_index: int = _one(_is_whole)
    before: int = _one(_is_whole)
    resumed: bool = _one(_is_flag)
    """Whether it goes on where *resume_index* was; then there is no snapshot."""
    window_bytes: int = _one(_is_whole)
    snapshot_bytes: int = _one(_is_whole)
    snapshot_chunks: int = _one(_is_whole)


@attrs.frozen
class Fetch(Message):
    """From a viewer end: send me these chunks of the snapshot, at most 4; repeated if they do not come."""

    kind = 11
    request: int = _one(_is_whole)
    """The number of the `Subscribe` whose snapshot it is."""
    first: int = _one(_is_whole)
    count: int = _one(_is_whole)


@attrs.frozen
class Chunk(Message):
    """One chunk of a snapshot, numbered from 0."""

    kind = 12
    has_body = True
    request: int = _one(_is_whole)
    number: int = _one(_is_whole)
    data: bytes = _one(_is_bytes)


# --- the stream -------------------------------------------------------------------------------------------------------


@attrs.frozen
class FrameEntry(Message):
    """An entry of a stream: one frame of one source."""

    kind = 13
    has_body = True
    stream: str = _one(_is_text)
    index: int = _one(_is_whole)
    """Entries before it: without a hole, whatever the sources' own numbers are."""
    before: int = _one(_is_whole)
    """Events in all entries before it."""
    events: int = _one(_is_whole)
    """Rows in the frame."""
    frame: bytes = _one(_is_bytes)


@attrs.frozen
class LossEntry(Message):
    """An entry of a stream: events of one source that were lost on the way to this source end."""

    kind = 14
    stream: str = _one(_is_text)
    index: int = _one(_is_whole)
    before: int = _one(_is_whole)
    source_id: str = _one(_is_text)
    first_seq: int = _one(_is_whole)
    last_seq: int = _one(_is_whole)
    """The numbers that are missing, both ends included."""
    reason: str = _one(_is_text)


@attrs.frozen
class Skipped(Message):
    """Entries from *index* to before *next_index* are no longer here: this peer was too slow, or away too long."""

    kind = 15
    stream: str = _one(_is_text)
    index: int = _one(_is_whole)
    next_index: int = _one(_is_whole)
    before: int = _one(_is_whole)
    """Events in all entries before *next_index*; less those before *index*, what was skipped."""


@attrs.frozen
class Ack(Message):
    """From a viewer end: everything below *next_index* was taken."""

    kind = 16
    stream: str = _one(_is_text)
    next_index: int = _one(_is_whole)


@attrs.frozen
class Replay(Message):
    """From a viewer end: *next_index* is due and has not come; send from there again."""

    kind = 17
    stream: str = _one(_is_text)
    next_index: int = _one(_is_whole)


# --- control ----------------------------------------------------------------------------------------------------------


@attrs.frozen
class Verb(Message):
    """From whoever may: do this. Understood only where control was allowed."""

    kind = 18
    request: int = _one(_is_whole)
    verb: str = _one(_is_text)
    """One of `VERBS`."""
    targets: list[str] = _one(_is_texts)  # noqa: RUF009
    """Ids of sources, or ``rank:N``; empty for all."""
    arguments: dict[str, Any] = _one(_is_table)  # noqa: RUF009


@attrs.frozen
class Result(Message):
    """The answer to `Verb`: one from each source that it reached."""

    kind = 19
    request: int = _one(_is_whole)
    source_id: str = _one(_is_text)
    done: bool = _one(_is_flag)
    values: dict[str, Any] = _one(_is_table)  # noqa: RUF009


_KINDS: Final[dict[int, type[Message]]] = {cls.kind: cls for cls in Message.__subclasses__()}
_FIELDS: Final = {
    cls: tuple((field.name, field.metadata["check"]) for field in attrs.fields(cls)) for cls in _KINDS.values()
}


def encode(message: Message) -> list[bytes]:
    """
    Return the parts of *message*.

    Raises:
        ValueError: if it would be larger than any reader accepts.
        TypeError: if it holds what is no plain data.
    """
    values = [getattr(message, name) for name, _ in _FIELDS[type(message)]]
    body = [values.pop()] if message.has_body else []
    head: bytes = msgpack.packb([message.kind, *values])
    if len(head) > MAX_HEAD_BYTES or (body and len(body[0]) > MAX_BODY_BYTES):
        raise ValueError(f"a {type(message).__name__} of {len(head)} bytes and {sum(map(len, body))} in its body")
    return [head, *body]


def decode(parts: Sequence[bytes]) -> Message:
    """
    Return the message that *parts* are.

    Raises:
        DecodeError: if they are none; they may come from anybody.
    """
    if not 1 <= len(parts) <= MAX_PARTS:
        raise DecodeError(f"a message of {len(parts)} parts; it has 1 or 2")
    values = unpack(parts[0], MAX_HEAD_BYTES)
    if type(values) is not list or not values or type(values[0]) is not int:
        raise DecodeError("a message begins with its kind")
    cls = _KINDS.get(values.pop(0))
    if cls is None:
        raise DecodeError("a message of no known kind")
    if cls.has_body != (len(parts) == MAX_PARTS):
        raise DecodeError(f"a {cls.__name__} of {len(parts)} parts")
    if cls.has_body:
        if len(parts[1]) > MAX_BODY_BYTES:
            raise DecodeError(f"a {cls.__name__} of {len(parts[1])} bytes; at most {MAX_BODY_BYTES}")
        values.append(parts[1])
    fields = _FIELDS[cls]
    if len(values) != len(fields):
        raise DecodeError(f"a {cls.__name__} has {len(fields)} fields")
    for (name, check), value in zip(fields, values, strict=True):
        if not check(value):
            raise DecodeError(f"the {name} of a {cls.__name__} is not what it should be")
    return cls(*values)
