"""The event stream in NATS JetStream: a sink that publishes frames, and a reader that resumes from a cursor."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import os
import random
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import attrs
import msgpack
import nats
from nats.errors import MaxPayloadError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StoreCompression, StreamConfig
from nats.js.errors import NotFoundError

from trackside.core import Closing, described, wait_until_set
from trackside.core.times import time_ns
from trackside.events import ConfigError, DecodeError, Event, Source, SourceEnded, UnreadableError
from trackside.events._selected import EventTypes
from trackside.events._settings import suggests_settings
from trackside.handlers.export import (
    BatchExporter,
    Exporting,
    RefusedError,
    SourcedDecoder,
    StreamCursor,
    encoded_source,
)
from trackside.handlers.zeromq import MultiLogWriter, Result, Verb
from trackside.handlers.zeromq._protocol import VERBS_AT_ONCE, VERBS_PER_S, TokenBucket, decode, encode
from trackside.rules import EventSelection, Rule

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_MESSAGE_ID: Final = "Nats-Msg-Id"
_SOURCE: Final = "Trackside-Source"
_HEAD_BYTES: Final = 1_024
"""More bytes than precede the rows and schemas of a frame."""
KEEP_S: Final = 7 * 86_400.0
"""The time for which a stream that is created here keeps messages, in seconds."""
_DUPLICATE_WINDOW_S: Final = 600.0
"""The time for which the server remembers message ids, in a stream that is created here."""
_HEADERS: Final = b"NATS/1.0"
"""The first line of a message's headers. In the server's own messages a status follows it."""
_STORED: Final = b"$JS.ACK."
"""The beginning of the reply subject of a message that a stream delivers."""
_SEED: Final = re.compile(rb"SU[A-Z2-7]{56}\b")
_MOST_KEY_BYTES: Final = 1 << 16
_CREDENTIALS: Final = frozenset(
    {"nkeys_seed", "nkeys_seed_str", "signature_cb", "token", "user_credentials", "user_jwt_cb"}
)
"""The arguments of ``nats.connect`` with which a program gives its own credentials."""
INBOX: Final = "_INBOX."
"""The beginning of the subjects of answers."""
_NOT_IN_SUBJECTS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_STREAM_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_FETCH_MESSAGES: Final = 64
_POLLS_TO_CHECK: Final = 10
"""The number of requests without an answer after which to check whether the consumer still exists."""
_SUBSCRIPTIONS: Final = 20
"""The most attempts to subscribe until the server has chosen the leading node; one case in 3,300 needs more."""
_SUBSCRIBE_S: Final = 2.0
_NO_LIMIT: Final = 1 << 62
MAX_RETRY_S: Final = 2.0
"""The longest pause between two attempts to reach the server, in seconds; as long as the client's own."""
_UNUSED_S: Final = 60.0
"""The time after which the server removes the consumer of a dead reader, in seconds."""
ONE_ATTEMPT: Final = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0.1}
"""Arguments of ``nats.connect``; without them it would try a refusing server for two minutes, and no other one."""
_CLOSE_S: Final = 0.5
_CONNECT_S: Final = 5.0
"""The time for which a command tries to reach the server, in seconds."""
_COPY_BYTES: Final = 8 << 20
"""The most bytes of a copy that may wait for the disk."""
_FLUSH_S: Final = 60.0


@suggests_settings()
class NatsSink(Exporting):
    """
    Publish every frame to a JetStream stream, under a message id by which the server detects duplicates.

    The subject is ``<stream>.<run>.<rank>.<source>``. A frame is delivered when the server has acknowledged it; until
    then it waits here and is published again. A stream that does not exist is created, on disk.

    Args:
        servers: The server's URL, or several of one cluster.
        stream: The stream's name: letters, digits, ``_`` and ``-``.
        keep_s: The time for which a stream that is created here keeps messages, in seconds; None for as long as there
        is room.
        replicas: The number of a cluster's nodes that keep a stream that is created here: 1, 3 or 5.
        buffer_bytes: The most bytes that may wait for the server.
        timeout_s: The time to wait for the acknowledgement of a frame, in seconds.
        on_verb: Carries out the verbs of `trackside ctl`; None to accept none.
        options: Arguments of ``nats.connect``: ``user_credentials``, ``token``, ``tls``, …

    Raises:
        ConfigError: *stream* cannot be the name of a stream, or a file of keys is not valid (docs/nats.md).
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        stream: str = "trackside",
        keep_s: float | None = KEEP_S,
        replicas: int = 1,
        buffer_bytes: int = 32 << 20,
        timeout_s: float = 5.0,
        on_verb: OnVerb | None = None,
        **options: Any,
    ) -> None:
        self._stream = _checked(stream)
        user_of(servers, options)
        self._keep_s = keep_s
        self._replicas = replicas
        self._timeout_s = timeout_s
        self._verbs = _VerbListener(on_verb) if on_verb is not None else None
        self._connection = StreamConnection(servers, options, self._prepare)
        self._abandoned: list[StreamConnection] = []
        self._exporter: BatchExporter[bytes] = BatchExporter(
            self._deliver,
            name="nats",
            max_events=_NO_LIMIT,
            max_bytes=buffer_bytes,
            max_batch_items=1,
            max_retry_s=MAX_RETRY_S,
        )
        self._subject = ""
        self._control_subject = ""
        self._source_id = ""
        self._source_json = ""

    def open(self, source: Source) -> None:
        """Begin the stream of *source*."""
        self._source_id = source.id
        tokens = (self._stream, source.run_id, str(source.rank), source.id)
        self._subject = ".".join(map(subject_token, tokens))
        self._control_subject = control_subject(self._stream, source.run_id)
        self._source_json = encoded_source(source)

    def accept(self, frame: bytes, *, events: int) -> bool:
        """Accept *frame*; False if the buffer is full or the sink is closed."""
        return bool(self._subject) and self._exporter.put(frame, events=events, size_bytes=len(frame))

    def flush(self, timeout_s: float = 2.0) -> bool:
        """
        Publish the waiting frames now; return whether the server has acknowledged all of them.

        It returns False at once if the server refuses or is away: a checkpoint does not wait for it. While a cluster
        elects a leader, which takes some ten seconds, call it again.
        """
        return self._exporter.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Publish the waiting frames and disconnect; count those not acknowledged as lost. Safe to repeat."""
        done = self._exporter.close(timeout_s)
        self._connection.close(is_last=True)  # an export that is still running would connect again
        return done

    def after_fork(self, source: Source) -> None:
        """In a forked child, leave the parent's connection alone and begin anew."""
        self._abandoned.append(self._connection)  # closing it would close the socket that the parent still uses
        self._connection = self._connection.copy()
        self._exporter.reset()
        self.open(source)

    async def _prepare(self, client: Any) -> None:
        await create_stream(client.jetstream(timeout=self._timeout_s), self._stream, self._keep_s, self._replicas)
        if self._verbs is not None:
            await self._verbs.listen(client, self._control_subject)

    def _deliver(self, frames: list[bytes]) -> None:
        for frame in frames:
            headers = message_headers(self._source_id, _first_seq(frame), self._source_json)

            async def publish(stream: Any, frame: bytes = frame, headers: dict[str, str] = headers) -> None:
                await stream.publish(
                    self._subject, frame, timeout=self._timeout_s, stream=self._stream, headers=headers
                )

            try:
                self._connection.call(publish, timeout_s=self._timeout_s)
            except MaxPayloadError as error:
                raise RefusedError(f"the server's max_payload is below {len(frame):,} bytes") from error


OnVerb: TypeAlias = Callable[[Verb, str, bool, Callable[[Result], object]], object]
"""
Called with a verb, the name of the asking user, whether that user may use it, and a function that sends the answer; on
a thread that must not wait.
"""


class _VerbListener:
    """
    Receives the verbs for the processes of a run, over the connection of this process.

    The server's permissions decide who may ask. If the server admits anybody, every verb is refused.
    """

    def __init__(self, on_verb: OnVerb) -> None:
        self._on_verb = on_verb
        self._allowed = TokenBucket(VERBS_PER_S, VERBS_AT_ONCE)

    async def listen(self, client: Any, subject: str) -> None:
        """Listen for as long as the connection lasts."""
        loop = asyncio.get_running_loop()
        has_users = bool(client._server_info.get("auth_required"))  # noqa: SLF001  the client shows it nowhere else

        async def receive(message: Any) -> None:
            def answer(result: Result) -> None:
                sending = client.publish(message.reply, encode(result)[0])
                try:
                    asyncio.run_coroutine_threadsafe(sending, loop)
                except RuntimeError:  # the connection was closed meanwhile
                    sending.close()

            with contextlib.suppress(DecodeError):
                verb = decode([message.data])
                # A message that some stream's consumer delivers here is no request: its answers would go elsewhere.
                if not isinstance(verb, Verb) or not message.reply.startswith(INBOX):
                    return
                if self._allowed.take(time.monotonic()):
                    self._on_verb(verb, f"nats:{message.subject.rpartition('.')[2]}", has_users, answer)

        await client.subscribe(subject, cb=receive)


def message_headers(source_id: str, first_seq: int, source_json: str) -> dict[str, str]:
    """Return the headers of a frame: the id by which the server detects duplicates, and the source."""
    return {_MESSAGE_ID: f"{source_id}:{first_seq}", _SOURCE: source_json}


class _Client(nats.NATS):  # type: ignore[misc]
    """
    A client that treats each stored message as a message, whatever it holds.

    nats-py mistakes a status in a stored message for one of the server's own, and a status that it cannot read ends the
    connection. The message would still be in the stream, so nobody could read the messages after it.
    """

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        subject, reply = (text.decode(errors="replace").encode() for text in (subject, reply))
        if headers:
            line, *rest = headers.splitlines() if headers.isascii() else [b""]
            if reply.startswith(_STORED):
                rest = [field for field in rest if b"status" not in field.partition(b":")[0].lower()]
                line = line[: len(_HEADERS)]
            headers = b"\r\n".join((line, *rest, b"")) if line.startswith(_HEADERS) else None
        await super()._process_msg(sid, subject, reply, data, headers)


async def connected_client(servers: str | Sequence[str], **options: Any) -> Any:
    """
    Connect like ``nats.connect``, but close the socket of a failed attempt.

    A user's answers come to subjects of that user, so that the server can keep others from listening to them.

    Raises:
        ConfigError: As for `user_of`.
    """
    user = user_of(servers, options)
    options = {**user.credentials, **options}
    if user.name:
        options = {"inbox_prefix": f"{INBOX}{subject_token(user.name)}", **options}
    client = _Client()
    try:
        await client.connect(servers, **options)
    except BaseException:
        await disconnect(client)
        raise
    return client


async def any_client(servers: Sequence[str], **options: Any) -> Any:
    """Return the client of the first of *servers*, in random order, that answers; raise the last one's failure."""
    *others, last = shuffled(servers)
    for server in others:
        with contextlib.suppress(Exception):
            return await connected_client(server, **options, **ONE_ATTEMPT)
    return await connected_client(last, **options, **ONE_ATTEMPT)


async def next_client(servers: list[str], **options: Any) -> Any:
    """
    Return the client of the first of *servers*, and move that server to the end; drop the client's error reports.
    """
    servers.append(servers.pop(0))
    return await connected_client(servers[-1], **{"error_cb": _ignore, **options, **ONE_ATTEMPT})


async def _ignore(*_: object) -> None:
    """Drop an error report: the caller tries again, and reports itself."""


def ask(address: StreamAddress, use: Callable[[Any], Awaitable[T]]) -> T:
    """
    Call *use* with the JetStream context of a new connection, and return its result.

    Raises:
        UnreadableError: The server does not answer, or has no such stream; or *use* raised it.
        DecodeError: *use* raised it.
    """

    async def use_stream(client: Any, refusals: list[str]) -> T:
        try:
            return await use(client.jetstream(timeout=_CONNECT_S))
        except (TimeoutError, asyncio.TimeoutError) as error:  # a request without permission gets no answer
            raise ConnectionError(refusals[-1] if refusals else str(error)) from error

    with reading(address):
        return with_client(address, use_stream, _CONNECT_S)


def with_client(address: StreamAddress, use: Callable[[Any, list[str]], Awaitable[T]], connect_s: float) -> T:
    """
    Call *use* with a new connection and the list of the server's refusals there, and return its result.

    It also works if an event loop is running already, as in a notebook.

    Raises:
        Exception: of the kinds that the client raises, or that *use* raises.
    """
    refusals: list[str] = []

    async def note(error: Exception) -> None:
        refusals.append(str(error))

    async def connect_and_use() -> T:
        client = await any_client(address.servers, connect_timeout=connect_s, error_cb=note)
        refusals.clear()  # they are of nodes that are away
        try:
            return await use(client, refusals)
        finally:
            await disconnect(client)

    return run_in_loop(connect_and_use())


def run_in_loop(work: Coroutine[Any, Any, T], *, stop: Callable[[], object] = int) -> T:
    """
    Return the result of *work* in a new event loop; on a new thread if a loop is running in this one.

    Args:
        work: The coroutine to await there.
        stop: Makes *work* end, if an exception of a signal handler, for example Ctrl-C, ends the wait for the thread.
    """
    if not _is_in_loop():
        return asyncio.run(work)  # outside of an except clause, so that errors are shown alone
    with futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(asyncio.run, work)
        try:
            return result.result()
        finally:
            stop()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def reading(address: StreamAddress, timeout_s: float = _CONNECT_S) -> Iterator[None]:
    """Convert the client's exceptions into errors that name the address and a remedy; *timeout_s* is for the text."""
    try:
        yield
    except (UnreadableError, DecodeError, ConfigError):
        raise
    except NotFoundError as error:
        raise UnreadableError(str(address), f"has no stream {address.stream}", "is it spelled so?") from error
    except Exception as error:
        what = f"no answer within {timeout_s:g} s ({str(error) or type(error).__name__})"
        remedy = "is a NATS server with JetStream there, and may this user read the stream?"
        raise UnreadableError(str(address), what, remedy) from error


async def disconnect(client: Any) -> None:
    """Close the connection of *client*, and in any case its socket: if the server hangs, closing may take too long."""
    try:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), _CLOSE_S)
    finally:
        if client._transport:  # noqa: SLF001  there is no other way to it
            client._transport.close()  # noqa: SLF001


def shuffled(servers: str | Sequence[str]) -> list[str]:
    """Return the servers in random order: otherwise all ranks of a job would connect to the first one."""
    found = [servers] if isinstance(servers, str) else list(servers)
    random.SystemRandom().shuffle(found)  # the program's own random numbers stay reproducible
    return found


def _leader(info: Any) -> str:
    """Return the node that leads a stream or has a consumer; empty if the server is no cluster."""
    return (info.cluster.leader or "") if info.cluster else ""


async def create_stream(jetstream: Any, name: str, keep_s: float | None = KEEP_S, replicas: int = 1) -> None:
    """Create the stream *name*, with the settings of `NatsSink`, unless it exists."""
    try:
        await jetstream.stream_info(name)
    except NotFoundError:
        config = StreamConfig(
            name=name,
            subjects=[f"{name}.>"],
            max_age=keep_s or 0,
            duplicate_window=min(_DUPLICATE_WINDOW_S, keep_s or _DUPLICATE_WINDOW_S),
            num_replicas=replicas,
            compression=StoreCompression.S2,
        )
        await jetstream.add_stream(config)


class NatsReader(Iterator[Event], Closing):
    """
    Read the events of a JetStream stream, each once and in the order of its source, from the beginning or a cursor.

    ::

        with NatsReader("nats://stream.example:4222", cursor=saved) as events:
            for event in events:
                model(event)

    `cursor` is plain data. Saved together with the state of a model, it lets another reader continue from there without
    loss or repetition, however this one ended. If the server goes away, the reader waits for it.

    Args:
        servers: As for `NatsSink`.
        stream: The stream's name.
        cursor: The `cursor` of another reader, to continue from.
        follow: Whether to wait for new messages; otherwise it ends with the last message that the stream had at first.
        stop: Ends the iteration when it is set.
        to: The event types to yield: a class, a wire name, a glob of wire names, or a tuple of these.
        keep: The rule that selects which of their events to yield; all by default.
        poll_interval_s: How long one request waits for new messages, in seconds.
        options: Arguments of ``nats.connect``.

    Raises:
        ConfigError: *stream* cannot be the name of a stream, or *to* or *keep* is not valid.
        DecodeError: *cursor* is not a cursor.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        stream: str = "trackside",
        cursor: Mapping[str, Any] | None = None,
        follow: bool = True,
        stop: threading.Event | None = None,
        to: EventTypes = Event,
        keep: Rule | None = None,
        poll_interval_s: float = 0.5,
        **options: Any,
    ) -> None:
        user_of(servers, options)
        self._messages = StreamMessages(
            StreamConnection(servers, options), stream, follow=follow, stop=stop, poll_interval_s=poll_interval_s
        )
        self._selection = EventSelection(to, keep)
        self._position = StreamCursor(cursor)
        self._read = self._iterate()

    @property
    def cursor(self) -> dict[str, Any]:
        """The position after the event that was yielded last, as plain data."""
        return self._position.cursor

    @property
    def missing(self) -> int:
        """The number of events lost before they reached the stream, or removed from it unread."""
        return self._position.missing

    @property
    def repeated(self) -> int:
        """The number of events skipped because they had been read before."""
        return self._position.repeated

    @property
    def unreadable(self) -> int:
        """The number of messages that were not frames."""
        return self._position.unreadable

    def close(self) -> None:
        """Disconnect."""
        self._read.close()
        self._messages.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._read)

    def _iterate(self) -> Generator[Event, None, None]:
        for message in self._messages.read_from(self._position.sequence, self._position.created):
            self._position.created = self._messages.created
            for event in self._position.read(message.sequence, message.frame, message.source_json):
                yield from self._selection.of(event.source.id, (event,))


class StreamMessage(NamedTuple):
    """A frame, as it is stored in the stream."""

    sequence: int
    frame: bytes
    source_json: str
    subject: str
    stored_s: float
    """The time when the server stored it, by the server's clock, in seconds since the epoch."""
    pending: int
    """The number of messages of the subject after it."""

    @classmethod
    def read(cls, message: Any) -> StreamMessage:
        """Convert a message of the client library."""
        about = message.metadata
        source_json = (message.headers or {}).get(_SOURCE, "")
        stored_s, pending = about.timestamp.timestamp(), int(about.num_pending)
        return cls(about.sequence.stream, message.data, source_json, message.subject, stored_s, pending)


class StreamMessages:
    """
    The messages of a stream, in order.

    Args:
        connection: The connection to use; it is closed together with this.
        stream: The stream's name.
        subject: The subjects to read; all of them unless given.
        follow: Whether to wait for new messages, and for a server that goes away; otherwise it ends with the last
            message that the stream had at first.
        stop: Ends the iteration when it is set.
        poll_interval_s: How long one request waits for new messages, in seconds.
        timeout_s: For how long to try to reach the server for the first time, in seconds.
        begin: As for `StreamPull`.

    Raises:
        ConfigError: *stream* cannot be the name of a stream.
    """

    def __init__(
        self,
        connection: StreamConnection,
        stream: str,
        subject: str = ">",
        *,
        follow: bool,
        stop: threading.Event | None = None,
        poll_interval_s: float = 0.5,
        timeout_s: float = math.inf,
        begin: Mapping[str, Any] | None = None,
    ) -> None:
        self._connection = connection
        self._stream = _checked(stream)
        self._pull = StreamPull(stream, subject, poll_interval_s=poll_interval_s, begin=begin)
        self._follow = follow
        self._stop = stop or threading.Event()
        self._poll_interval_s = poll_interval_s
        self._timeout_s = timeout_s
        self._last: int | None = None
        """The number of the last message that the stream had at first; None until it is known."""
        self.answered_s: float = time.monotonic()
        """The time of the server's last answer, by the monotonic clock."""

    @property
    def created(self) -> str:
        """The creation time of the stream that the latest messages came from."""
        return self._pull.created

    def read_from(self, sequence: int, created: str = "") -> Iterator[StreamMessage]:
        """
        Yield the messages from the number *sequence* on; all if the stream was created at another time than *created*.

        Raises:
            Exception: of the kinds that the client raises, if the server was not reached within *timeout_s*.
        """
        self._pull.next, self._pull.created = sequence, created
        retry_s, give_up_s = 0.1, time.monotonic() + self._timeout_s
        while not self._is_over():
            try:
                messages = self._connection.call(self._fetch, timeout_s=self._poll_interval_s + 5)
                self.answered_s = time.monotonic()
                retry_s = 0.1
            except Exception:  # whatever the client raises, the server may come back
                self._pull.reset()
                self._connection.close()
                if self._last is None and time.monotonic() > give_up_s:
                    raise
                wait_until_set(self._stop, retry_s)
                retry_s = min(2 * retry_s, MAX_RETRY_S)
                continue
            yield from messages

    def close(self) -> None:
        """Disconnect."""
        self._connection.close(before=self._pull.close)

    def _is_over(self) -> bool:
        return self._stop.is_set() or (not self._follow and self._last is not None and self._pull.next > self._last)

    async def _fetch(self, stream: Any) -> list[StreamMessage]:
        if self._last is None:
            self._last = await self._pull.last_message(stream)
            if self._is_over():
                return []
        messages = await self._pull.fetch(stream)
        if not self._follow and not messages and await self._pull.is_at_end():
            self._pull.next = self._last + 1  # the remaining messages have other subjects
        return messages


class StreamPull:
    """
    Requests for the messages of one subject of a stream, in order, over one connection.

    Args:
        stream: The stream's name.
        subject: The subjects to read.
        first: The number of the first message to read.
        poll_interval_s: How long one request waits for new messages, in seconds.
        begin: Fields of ``ConsumerConfig`` that determine where to begin, in place of the first message.
    """

    def __init__(
        self,
        stream: str,
        subject: str,
        first: int = 1,
        *,
        poll_interval_s: float = 0.5,
        begin: Mapping[str, Any] | None = None,
    ) -> None:
        self.next = first
        """The lowest number that the next message can have."""
        self._stream = stream
        self._subject = subject
        self._poll_interval_s = poll_interval_s
        self._begin = begin
        self.created = ""
        """The time when the stream that is read was created."""
        self._leader = ""
        """The node that leads the stream; empty if the server is no cluster."""
        self._subscription: Any = None
        self._abandoned: Any = None
        """The subscription that `reset` gave up, until it is ended."""
        self._consumer = ""
        """The name of the server's consumer for the latest subscription."""
        self._received = 0
        """Messages that came for the subscription."""
        self._empty_polls = 0

    async def fetch(self, stream: Any) -> list[StreamMessage]:
        """
        Return the next messages; none if none came in time.

        Raises:
            Exception: of the kinds that the client raises. After `reset` it can be tried again.
        """
        if self._subscription is None:
            await self._end_abandoned(stream)
            await self.last_message(stream)
            begin = {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": self.next}
            if self._begin is not None and self.next == 1:
                begin = dict(self._begin)
            self._received = self._empty_polls = 0
            self._subscription = await self._subscribe(stream, begin)
        try:
            found = await self._subscription.fetch(_FETCH_MESSAGES, timeout=self._poll_interval_s)
        except (TimeoutError, asyncio.TimeoutError):
            found = []
        self._received += len(found)
        self._empty_polls = 0 if found else self._empty_polls + 1
        if self._empty_polls >= _POLLS_TO_CHECK:
            await self.is_at_end()  # the consumer was on one node of the server, which may be gone
            info = await stream.stream_info(self._stream)  # fails at a node that is cut off from the others
            if _leader(info) != self._leader:
                self.reset()
            self._empty_polls = 0
        messages = [StreamMessage.read(message) for message in found]
        if messages:
            self.next = messages[-1].sequence + 1
        return messages

    async def _subscribe(self, stream: Any, begin: Mapping[str, Any]) -> Any:
        """
        Subscribe to the copy on the node that leads the stream.

        The server may choose the copy of any node. With nats-server 2.9 a node that was cut off keeps a copy that
        differs: it has messages that were never acknowledged, and lacks messages that were.
        """
        for _ in range(_SUBSCRIPTIONS):
            config = ConsumerConfig(**begin, ack_policy=AckPolicy.NONE, inactive_threshold=_UNUSED_S)
            creating = stream.pull_subscribe(self._subject, stream=self._stream, config=config)
            try:
                subscription = await asyncio.wait_for(creating, _SUBSCRIBE_S)
            except asyncio.TimeoutError:  # the node that the server chose may be away
                continue
            info = await subscription.consumer_info()
            self._consumer = info.name
            if _leader(info) == self._leader:
                return subscription
            await subscription.unsubscribe()
            await self._remove_consumer(stream)
        raise ConnectionError("no consumer on the node that leads the stream")

    async def last_message(self, stream: Any) -> int:
        """
        Return the number of the last message that the stream has.

        If the stream is another one than before, or the server came back with an older disk, all messages are read
        again. Readers recognize new events by their numbers.
        """
        info = await stream.stream_info(self._stream)
        self._leader = _leader(info)
        last, created = int(info.state.last_seq), str(info.created)
        if self.next > last + 1 or self.created not in {"", created}:
            self.next = 1
        self.created = created
        return last

    async def is_at_end(self) -> bool:
        """Return whether all messages of the subject were fetched; messages lost on the way are sent again."""
        if self._subscription is None:  # after `reset`
            return False
        found = await self._subscription.consumer_info()
        if found.delivered.consumer_seq > self._received:
            self.reset()  # a message was sent after the wait had ended: ask again
            return False
        return not found.num_pending

    def reset(self) -> None:
        """Subscribe anew with the next request."""
        if self._subscription is not None:
            self._abandoned, self._subscription = self._subscription, None

    async def close(self, stream: Any) -> None:
        """End the subscription."""
        self.reset()
        await self._end_abandoned(stream)

    async def _end_abandoned(self, stream: Any) -> None:
        """End what `reset` gave up, as far as that is possible: its connection, or the stream, may be gone."""
        abandoned, self._abandoned = self._abandoned, None
        if abandoned is not None:
            with contextlib.suppress(Exception):
                await abandoned.unsubscribe()
            with contextlib.suppress(Exception):
                await self._remove_consumer(stream)

    async def _remove_consumer(self, stream: Any) -> None:
        """Ask the server to remove the consumer, without waiting: a user without permission gets no answer."""
        await stream._nc.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")  # noqa: SLF001  of the client


_ADDRESS: Final = re.compile(
    r"(?P<server>(?:nats|tls)://[^/?#\s]+)(?:/(?P<stream>[^/?#\s]+)(?:/(?P<run>[^/?#\s]+)(?:/(?P<rank>[0-9]+))?)?)?/?"
)


@attrs.frozen
class StreamAddress:
    """
    The address of a stream: ``nats://HOST:PORT/STREAM``; if ``/RUN`` or ``/RUN/RANK`` follows, of a part of it.

    It can name several nodes of a cluster: ``nats://HOST:PORT,HOST:PORT/STREAM``.
    """

    server: str
    """The server's URL, with a user's name and password or a token if needed; for a cluster it has several hosts."""
    stream: str = "trackside"
    run: str = ""
    """The id of the run, all unless given."""
    rank: str = ""
    """The rank in it, all unless given."""

    @classmethod
    def parse(cls, text: str) -> StreamAddress:
        """
        Read an address.

        Raises:
            ConfigError: *text* is not an address.
        """
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ConfigError("stream", text, "give nats://HOST:PORT/STREAM, or with /RUN or /RUN/RANK behind it")
        stream = _checked(found["stream"] or "trackside")
        return cls(found["server"], stream, found["run"] or "", found["rank"] or "")

    @property
    def servers(self) -> list[str]:
        """The URL of each server."""
        scheme, _, hosts = self.server.partition("://")
        return [f"{scheme}://{host}" for host in hosts.split(",")]

    @property
    def subject(self) -> str:
        """The subjects of its messages."""
        return ".".join([self.stream, *(subject_token(part) for part in (self.run, self.rank) if part), ">"])

    def __str__(self) -> str:
        """Return the address without secrets."""
        server = re.sub(r"[^/,@]*@", "", self.server)
        return "/".join(part for part in (server, self.stream, self.run, self.rank) if part)


def sink_to(address: str, *, on_verb: OnVerb | None = None) -> NatsSink:
    """
    Return a sink that publishes to the stream at *address*; a run or a rank in it is ignored.

    Args:
        address: The address of the stream.
        on_verb: As for `NatsSink`.

    Raises:
        ConfigError: *address* is not an address.
    """
    parsed = StreamAddress.parse(address)
    return NatsSink(parsed.servers, stream=parsed.stream, on_verb=on_verb)


class StreamCopy:
    """
    A copy of a stream, or of a part of it, as event logs in a directory of its own, for readers of logs.

    The directory is for this user alone, and is removed when the process ends.

    Args:
        address: The stream or the part.
        since_ns: Leave out messages that the server stored earlier, by its clock; in ns since the epoch.
    """

    def __init__(self, address: StreamAddress, *, since_ns: int = 0) -> None:
        self._address = address
        self._begin = stored_since(since_ns)
        self._folder = tempfile.TemporaryDirectory(prefix="trackside-stream-")
        self.directory: Path = Path(self._folder.name)
        self.unreadable: int = 0
        """Messages that are no frames, and were left out."""
        self._writer = MultiLogWriter(self.directory, fsync_s=None)
        self._decoder = SourcedDecoder()
        self._next, self._created = 1, ""

    def update(self) -> None:
        """
        Copy the messages that came since the last call.

        Raises:
            UnreadableError: The server cannot be reached, has no such stream, or the disk is full.
        """
        address = self._address
        messages = StreamMessages(
            StreamConnection(address.servers, {}),
            address.stream,
            address.subject,
            follow=False,
            timeout_s=_CONNECT_S,
            begin=self._begin,
        )
        waiting_bytes = 0
        with reading(address), contextlib.closing(messages):
            for message in messages.read_from(self._next, self._created):
                if waiting_bytes + len(message.frame) > _COPY_BYTES:
                    self._flush()
                    waiting_bytes = 0
                waiting_bytes += len(message.frame)
                self._write(message)
                self._next, self._created = message.sequence + 1, messages.created
        self._flush()

    def _write(self, message: StreamMessage) -> None:
        try:
            frame = self._decoder.decode_with(message.source_json, message.frame)
        except DecodeError:
            self.unreadable += 1
            return
        self._writer.append(frame.source, message.frame, len(frame.events))
        if any(isinstance(event, SourceEnded) for event in frame.events):
            self._writer.end(frame.source)

    def _flush(self) -> None:
        if not self._writer.flush(_FLUSH_S):
            raise UnreadableError(str(self._address), f"cannot be copied to {self.directory}", "make room on that disk")


def parse_part(address: str) -> tuple[StreamAddress, int]:
    """
    Parse the address of a stream or a part of it; return it with the time to begin at, in ns since the epoch.

    Raises:
        ConfigError: *address* is not an address, or ``?since=`` is not followed by a time.
    """
    place, has_since, since = address.partition("?since=")
    return StreamAddress.parse(place), time_ns("since", since) if has_since else 0


def is_run(address: str) -> bool:
    """
    Return whether *address* is that of one whole run.

    Raises:
        ConfigError: as for `parse_part`.
    """
    place, since_ns = parse_part(address)
    return bool(place.run) and not place.rank and not since_ns


def stored_since(since_ns: int) -> dict[str, Any] | None:
    """Return the settings with which `StreamPull` begins at the messages stored from *since_ns* on; None for 0."""
    if not since_ns:
        return None
    begin = datetime.datetime.fromtimestamp(since_ns / 1e9, datetime.timezone.utc)
    return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": begin}


_copies: dict[str, StreamCopy] = {}
_copying: Final = threading.Lock()


def copied(address: str) -> StreamCopy:
    """
    Return this process's copy of the stream at *address*, brought up to date.

    Args:
        address: The stream or a part of it; if ``?since=TIME`` follows, only the messages stored from then on.

    Raises:
        ConfigError: *address* is not an address.
        UnreadableError: as for `StreamCopy.update`.
    """
    with _copying:
        copy = _copies.get(address)
        if copy is None:
            place, since_ns = parse_part(address)
            copy = _copies[address] = StreamCopy(place, since_ns=since_ns)
        copy.update()
    return copy


class StreamConnection:
    """
    A connection that is opened when it is needed, with a loop and a thread of its own, and reopened after any failure.

    Args:
        servers: The servers, which are tried in turn, in random order.
        options: Arguments of ``nats.connect``.
        prepare: Called with the client of each new connection.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        options: Mapping[str, Any],
        prepare: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._servers = shuffled(servers)
        self._options = options
        self._prepare = prepare
        self._lock = threading.Lock()
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Any = None
        self._is_good = False
        """Whether the latest use of the client ended well."""

    def copy(self) -> StreamConnection:
        """Return an equal connection that is not open."""
        return StreamConnection(self._servers, self._options, self._prepare)

    def call(self, use: Callable[[Any], Awaitable[T]], *, timeout_s: float) -> T:
        """
        Call *use* with the connection's JetStream context, and return its result.

        Raises:
            Exception: of the kinds that the client raises, and a timeout one second after *timeout_s*.
            ConnectionError: if it was closed for the last time.
        """

        async def within_time() -> T:
            return await asyncio.wait_for(self._with_client(use, timeout_s), timeout_s + 1)

        with self._lock:  # calls that reach the loop before the last call of close() run or are cancelled
            if self._is_over:
                raise ConnectionError("the connection was closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="trackside-nats-connection", daemon=True
                )
                self._thread.start()
            pending = asyncio.run_coroutine_threadsafe(within_time(), self._loop)
        try:
            return pending.result(timeout_s + 2)
        except futures.TimeoutError:
            pending.cancel()
            raise

    async def _with_client(self, use: Callable[[Any], Awaitable[T]], timeout_s: float) -> T:
        if self._client is None or not self._client.is_connected or not self._is_good:
            await self._connect(timeout_s)
        # A failed call ends the connection: another node may answer if this one is cut off, and a stream that was
        # removed is created with a new connection.
        self._is_good = False
        result = await use(self._client.jetstream(timeout=timeout_s))
        self._is_good = True
        return result

    async def _connect(self, timeout_s: float) -> None:
        await self._disconnect()
        # The batch exporter reconnects: it knows which frames were acknowledged.
        options = {"connect_timeout": timeout_s, "name": "trackside", **self._options}
        self._client = await next_client(self._servers, **options)
        if self._prepare is not None:
            await self._prepare(self._client)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)

    def close(
        self, timeout_s: float = 0.5, *, is_last: bool = False, before: Callable[[Any], Awaitable[None]] | None = None
    ) -> bool:
        """
        Close the connection and end the thread; return whether that was possible within *timeout_s*.

        *before* is called first, with the JetStream context, if there is a connection that works.
        """

        async def shut_down() -> None:
            with contextlib.suppress(Exception):
                if before is not None and self._client is not None and self._client.is_connected and self._is_good:
                    await asyncio.wait_for(before(self._client.jetstream()), timeout_s / 2)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._disconnect(), timeout_s / 2)
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)  # the sockets that were just closed are released
            asyncio.get_running_loop().stop()

        with self._lock:
            self._is_over = self._is_over or is_last
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            if loop is None or thread is None:
                return True
            asyncio.run_coroutine_threadsafe(shut_down(), loop)
        thread.join(timeout_s)
        return not thread.is_alive()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run *loop* until it is stopped, and close it in its own thread, which may end after close() has timed out."""
    loop.run_forever()
    loop.close()


def _checked(stream: str) -> str:
    if not _STREAM_NAME.fullmatch(stream):
        raise ConfigError("stream", stream, "give letters, digits, _ and -, at most 100")
    return stream


@attrs.frozen
class StreamUser:
    """A user of a server, with credentials."""

    name: str = ""
    """The name, or the public key; empty if there is neither, for example with a token."""
    credentials: Mapping[str, Any] = attrs.field(factory=dict)
    """The arguments of ``nats.connect`` that prove it, except those in the address or given by the program."""


def user_of(servers: str | Sequence[str], options: Mapping[str, Any] | None = None) -> StreamUser:
    """
    Return the user that the address or the program names, or else the one that the environment names.

    The variables of the environment are those of the command ``nats``: ``NATS_CREDS`` names a file that ``nsc
    generate creds`` wrote, and ``NATS_NKEY`` a file with a seed.

    Args:
        servers: The servers' URLs.
        options: The arguments of ``nats.connect`` that the program gives.

    Raises:
        ConfigError: The file cannot be read or holds no key, or the package that signs with it is missing.
    """
    known = options or {}
    first_server = servers if isinstance(servers, str) else servers[0]
    user, _, password = first_server.partition("://")[2].rpartition("@")[0].partition(":")
    name = known.get("user") or (user if password else "")
    if name or user or not _CREDENTIALS.isdisjoint(known):
        return StreamUser(str(name))
    if path := os.environ.get("NATS_CREDS"):
        seed = _seed_in("NATS_CREDS", path, b"-BEGIN NATS USER JWT-")
        return StreamUser(_public_key("NATS_CREDS", path, seed), {"user_credentials": path})
    if path := os.environ.get("NATS_NKEY"):
        seed = _seed_in("NATS_NKEY", path, b"")
        return StreamUser(_public_key("NATS_NKEY", path, seed), {"nkeys_seed_str": seed.decode()})
    return StreamUser()


def _seed_in(variable: str, path: str, mark: bytes) -> bytes:
    """Return the seed in the file at *path*. It must hold *mark*, too: the client would look for that for ever."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_KEY_BYTES)
    except OSError as error:
        raise ConfigError(variable, path, f"give a file that can be read ({error.strerror})") from error
    seed = _SEED.search(content)
    if seed is None or mark not in content:
        needed = "what `nsc generate creds` writes" if mark else "a user's seed: it begins with SU"
        raise ConfigError(variable, path, f"give a file with {needed}")
    return seed[0]


def _public_key(variable: str, path: str, seed: bytes) -> str:
    try:
        import nkeys  # noqa: PLC0415  only who has keys needs it
    except ImportError as error:
        remedy = "install the package that signs with it: pip install 'nats-py[nkeys]'"
        raise ConfigError(variable, path, remedy) from error
    try:
        return str(nkeys.from_seed(bytearray(seed)).public_key.decode())
    except Exception as error:
        raise ConfigError(variable, path, f"give a file with a valid seed ({described(error)})") from error


def control_subject(stream: str, run: str, user: str = "*") -> str:
    """Return the subject of *user*'s requests to the processes of a run; the stream does not store them."""
    return ".".join((f"{stream}-control", subject_token(run), user))


def messages_by_run(subjects: Mapping[str, int] | None) -> Counter[str]:
    """Return the number of messages of each run, given the number of each subject."""
    amounts: Counter[str] = Counter()
    for subject, count in (subjects or {}).items():
        if run := run_of(subject):
            amounts[run] += count
    return amounts


def run_of(subject: str) -> str:
    """Return the run that a message's subject names; empty if no sink uses such a subject."""
    _, run, *place = subject.split(".", 2)
    return run if place and run == subject_token(run) else ""


def subject_token(text: str) -> str:
    return _NOT_IN_SUBJECTS.sub("-", text) or "-"


def _first_seq(frame: bytes) -> int:
    """Return the number of the first event in *frame*, which is ``[version, source, first, …]``."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(frame[:_HEAD_BYTES])
    unpacker.read_array_header()
    unpacker.skip()
    unpacker.skip()
    return int(unpacker.unpack())
