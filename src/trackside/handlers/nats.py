"""The event stream in NATS JetStream: frames kept by a server, and read again from where one was, by any number."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from concurrent import futures
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgpack

from trackside.events import FRAMES, ConfigError, Event, Source
from trackside.handlers._courier import Courier, RefusedError
from trackside.handlers._stream_place import StreamPlace, told_of

if TYPE_CHECKING:
    from typing_extensions import Self

try:
    import nats
    from nats.errors import MaxPayloadError
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StreamConfig
    from nats.js.errors import NotFoundError
except ImportError as error:
    raise ConfigError("NATS needs its client", str(error), "install trackside[nats]") from error

T = TypeVar("T")

_MESSAGE_ID: Final = "Nats-Msg-Id"
_SOURCE: Final = "Trackside-Source"
_HEAD_BYTES: Final = 1_024
"""More than what stands in a frame before its rows and schemas."""
_SAME_WITHIN_S: Final = 600.0
"""How long the server remembers which frames it has, if the stream is ours to make."""
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
_STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_FETCH: Final = 64
_NO_LIMIT: Final = 1 << 62
_LONGEST_REST_S: Final = 5.0


class NatsSink:
    """
    Publishes every frame to a JetStream stream, each under an id by which the server knows it again.

    The subject is ``<stream>.<run>.<rank>.<source>``. A frame counts as delivered when the server has acknowledged
    it; until then it waits here and is published again. If the stream does not exist it is made, on disk.

    Args:
        servers: Its URL, or several of one cluster.
        stream: The stream's name: letters, digits, ``_`` and ``-``.
        keep_s: How long a stream that is made here keeps what is in it, in seconds; None for as long as there is room.
        buffer_bytes: How much may wait for the server.
        timeout_s: For each frame, in seconds.
        options: For ``nats.connect``: ``user_credentials``, ``token``, ``tls``, …

    Raises:
        ConfigError: the stream's name is none.
    """

    runs_on = FRAMES

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        stream: str = "trackside",
        keep_s: float | None = 7 * 86_400.0,
        buffer_bytes: int = 32 << 20,
        timeout_s: float = 5.0,
        **options: Any,
    ) -> None:
        self._stream = _checked(stream)
        self._keep_s = keep_s
        self._timeout_s = timeout_s
        self._line = _Line(servers, options, self._prepare)
        self._abandoned: list[_Line] = []
        self._courier: Courier[bytes] = Courier(
            self._deliver, name="nats", most_events=_NO_LIMIT, most_bytes=buffer_bytes, batch_items=1
        )
        self._subject = ""
        self._source_id = ""
        self._told = ""

    @property
    def lost(self) -> int:
        """Events that were taken and not acknowledged by the server."""
        return self._courier.lost

    def losses(self) -> dict[str, int]:
        """Return how many events were taken and lost, by reason."""
        return self._courier.losses()

    def open(self, source: Source) -> None:
        """Learn whose frames will come."""
        self._source_id = source.id
        tokens = (self._stream, source.run_id, str(source.rank), source.id)
        self._subject = ".".join(_UNFIT.sub("-", token) or "-" for token in tokens)
        self._told = told_of(source)

    def take(self, frame: bytes, *, events: int) -> bool:
        """Accept *frame*; False if there is no room, or it is over."""
        return bool(self._subject) and self._courier.put(frame, events=events, size_bytes=len(frame))

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Publish what was taken; True once the server has acknowledged all of it."""
        return self._courier.flush(timeout_s)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Publish what was taken and hang up; what is not acknowledged by then counts as lost. Safe to call twice."""
        done = self._courier.close(timeout_s)
        self._line.hang_up()
        return done

    def after_fork(self, source: Source) -> None:
        """In a forked child: leave the parent's connection alone and begin empty."""
        self._abandoned.append(self._line)  # to clean it up would reach into what the parent goes on using
        self._line = self._line.another()
        self._courier.begin_anew()
        self.open(source)

    async def _prepare(self, stream: Any) -> None:
        """Make the stream unless it is there."""
        try:
            await stream.stream_info(self._stream)
        except NotFoundError:
            config = StreamConfig(
                name=self._stream,
                subjects=[f"{self._stream}.>"],
                max_age=self._keep_s or 0,
                duplicate_window=min(_SAME_WITHIN_S, self._keep_s or _SAME_WITHIN_S),
            )
            await stream.add_stream(config)

    def _deliver(self, frames: list[bytes]) -> None:
        for frame in frames:
            headers = {_MESSAGE_ID: f"{self._source_id}:{_first_seq(frame)}", _SOURCE: self._told}

            async def publish(stream: Any, frame: bytes = frame, headers: dict[str, str] = headers) -> None:
                await stream.publish(
                    self._subject, frame, timeout=self._timeout_s, stream=self._stream, headers=headers
                )

            try:
                self._line.call(publish, timeout_s=self._timeout_s)
            except MaxPayloadError as error:
                raise RefusedError(f"the server's max_payload is below {len(frame):,} bytes") from error


class NatsReader(Iterator[Event]):
    """
    The events of a JetStream stream, each once and in the order of its source, from the beginning or from a cursor.

    ::

        with NatsReader("nats://stream.example:4222", cursor=saved) as events:
            for event in events:
                model(event)

    `cursor` is plain data: saved together with what was made of the events so far, it lets another reader go on from
    there without loss or repetition, whatever happened to this one. If the server goes away, the reader waits for it.

    Args:
        servers: As of `NatsSink`.
        stream: The stream's name.
        cursor: Where to go on, as another reader's `cursor` said.
        follow: Whether to wait for what comes later; otherwise it ends with what was there at first.
        stop: Ends the iteration when it is set.
        types: Yield only events of these classes.
        poll_s: How long one request waits for something new, in seconds.
        options: For ``nats.connect``.

    Raises:
        ConfigError: the stream's name is none.
        DecodeError: *cursor* is none.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        stream: str = "trackside",
        cursor: Mapping[str, Any] | None = None,
        follow: bool = True,
        stop: threading.Event | None = None,
        types: type[Event] | tuple[type[Event], ...] | None = None,
        poll_s: float = 0.5,
        **options: Any,
    ) -> None:
        self._stream = _checked(stream)
        self._follow = follow
        self._stop = stop or threading.Event()
        self._types = types
        self._poll_s = poll_s
        self._line = _Line(servers, options)
        self._place = StreamPlace(cursor)
        self._subscription: Any = None
        self._last: int | None = None
        self._read = self._iterate()

    @property
    def cursor(self) -> dict[str, Any]:
        """The place after the event that was yielded last, as plain data."""
        return self._place.cursor

    @property
    def missing(self) -> int:
        """How many events are known to have been lost before the stream, or were removed from it unread."""
        return self._place.missing

    @property
    def repeated(self) -> int:
        """How many events were passed over because they had been read."""
        return self._place.repeated

    @property
    def unreadable(self) -> int:
        """How many messages held no frame."""
        return self._place.unreadable

    def close(self) -> None:
        """Hang up."""
        self._read.close()
        self._line.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._read)

    def _iterate(self) -> Generator[Event, None, None]:
        rest_s = 0.1
        while not self._is_over():
            try:
                messages = self._line.call(self._fetch, timeout_s=self._poll_s + 5)
                rest_s = 0.1
            except Exception:  # whatever it is, the server may come back
                self._subscription = None
                self._line.hang_up()
                self._stop.wait(rest_s)
                rest_s = min(2 * rest_s, _LONGEST_REST_S)
                continue
            for message in messages:
                told = (message.headers or {}).get(_SOURCE, "")
                for event in self._place.read(message.metadata.sequence.stream, message.data, told):
                    if self._types is None or isinstance(event, self._types):
                        yield event

    def _is_over(self) -> bool:
        return self._stop.is_set() or (
            not self._follow and self._last is not None and self._place.sequence > self._last
        )

    async def _fetch(self, stream: Any) -> list[Any]:
        if self._last is None:
            self._last = (await stream.stream_info(self._stream)).state.last_seq
            if self._is_over():
                return []
        if self._subscription is None:
            config = ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._place.sequence,
                ack_policy=AckPolicy.NONE,
                inactive_threshold=300.0,
            )
            self._subscription = await stream.pull_subscribe(">", stream=self._stream, config=config)
        try:
            messages: list[Any] = await self._subscription.fetch(_FETCH, timeout=self._poll_s)
        except (TimeoutError, asyncio.TimeoutError):
            return []
        return messages


class _Line:
    """
    A connection that is made when it is needed, on a loop and a thread of its own, and made anew after it broke.

    Args:
        servers: One after the other is tried.
        options: For ``nats.connect``.
        prepare: What to do first with each new connection.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        options: Mapping[str, Any],
        prepare: Callable[[Any], Awaitable[None]] | None = None,
    ) -> None:
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self._options = options
        self._prepare = prepare
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Any = None

    def another(self) -> _Line:
        """Return one like it, not connected."""
        return _Line(self._servers, self._options, self._prepare)

    def call(self, use: Callable[[Any], Awaitable[T]], *, timeout_s: float) -> T:
        """
        Return what *use* returns, called with the connection's JetStream.

        Raises:
            Exception: whatever goes wrong, that it took longer than *timeout_s* and a second included.
        """
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="trackside-nats-line", daemon=True)
            self._thread.start()
        asked = asyncio.run_coroutine_threadsafe(
            asyncio.wait_for(self._used(use, timeout_s), timeout_s + 1), self._loop
        )
        try:
            return asked.result(timeout_s + 2)
        except futures.TimeoutError:
            asked.cancel()
            raise

    async def _used(self, use: Callable[[Any], Awaitable[T]], timeout_s: float) -> T:
        if self._client is None or not self._client.is_connected:
            await self._connect(timeout_s)
        return await use(self._client.jetstream(timeout=timeout_s))

    async def _connect(self, timeout_s: float) -> None:
        await self._disconnect()
        self._servers.append(self._servers.pop(0))  # the next time another one

        async def say_nothing(*_: object) -> None:
            """Leave it to the courier to complain."""

        # To connect again is the courier's business, which knows what was acknowledged.
        given = {"connect_timeout": timeout_s, "name": "trackside", **self._options, "allow_reconnect": False}
        self._client = await nats.connect(self._servers[-1], error_cb=say_nothing, **given)
        if self._prepare is not None:
            await self._prepare(self._client.jetstream(timeout=timeout_s))

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.close()

    def hang_up(self, timeout_s: float = 0.5) -> None:
        """Close the connection and end the thread, if that can be done within *timeout_s*."""
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return

        async def leave() -> None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._disconnect(), timeout_s / 2)
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            loop.stop()

        asyncio.run_coroutine_threadsafe(leave(), loop)
        thread.join(timeout_s)
        if not thread.is_alive():
            loop.close()


def _checked(stream: str) -> str:
    if not _STREAM.fullmatch(stream):
        raise ConfigError("stream", stream, "give letters, digits, _ and -, at most 100")
    return stream


def _first_seq(frame: bytes) -> int:
    """Return the number of the first event that *frame* accounts for, of ``[version, source, first, …]``."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(frame[:_HEAD_BYTES])
    unpacker.read_array_header()
    unpacker.skip()
    unpacker.skip()
    return int(unpacker.unpack())
