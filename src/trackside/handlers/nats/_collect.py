"""
The collectors of a stream in JetStream: any number of workers, which divide its runs and continue from checkpoints.

`docs/design.md` describes what is stored, and why no event that they publish is lost or comes twice.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import msgpack
from nats.errors import MaxPayloadError
from nats.js.api import KeyValueConfig, ObjectStoreConfig
from nats.js.errors import (
    BadObjectMetaError,
    BucketNotFoundError,
    DigestMismatchError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    LinkIsABucketError,
    NotFoundError,
    ObjectNotFoundError,
)

from trackside.core import Closing, RateLimitedLog, StopEvent, described
from trackside.core.leases import Lease, LeaseTable, LeaseWrite
from trackside.events import ConfigError, DecodeError, Event, Publish, Source, UnreadableError
from trackside.handlers.export import SourcedDecoder, encoded_source
from trackside.handlers.models._model import decoding
from trackside.handlers.nats._stream import (
    MAX_RETRY_S,
    StreamAddress,
    StreamMessage,
    StreamPull,
    ask,
    create_stream,
    disconnect,
    message_headers,
    messages_by_run,
    next_client,
    run_in_loop,
    shuffled,
    subject_token,
    user_of,
)
from trackside.handlers.zeromq._collector import CollectedStreams, collector_models
from trackside.handlers.zeromq._receiver import SourceRegistry
from trackside.wire import Frame, FrameDecoder, pack, saturated
from trackside.wire._sequence import count_of

LEASE_S: Final = 5.0
MAX_RUNS: Final = 256
"""The most runs of one worker at a time; others wait until one is over, or for another worker."""
CHECKPOINT_INTERVAL_S: Final = 1.0
_VERSION: Final = 1
_OWN: Final = "collector"
"""The word in place of the rank in the subjects of collectors' messages; also the role of collectors."""
_LEASES: Final = "lease."
_STATE: Final = "state."
_INLINE_BYTES: Final = 256 << 10
"""The largest state in the key-value store, whose limit is that of messages; larger states are objects."""
_MAX_STATE_BYTES: Final = 1 << 30
_MAX_OUTBOX_BYTES: Final = 1 << 20
_SHARE_OF_TIME: Final = 10
"""Checkpoints take at most one part in this many of the time, and so does listing the runs."""
_REQUEST_S: Final = 5.0
_POLL_S: Final = 0.25
_LEAST_LOOK_S: Final = 1.0
_OUTAGE_S: Final = 3.0
"""The time without an answer after which the stream counts as having been away, in seconds."""
_RETURN_S: Final = 15.0
"""
The time within which a living rank finds another node, in seconds: it waits 5 s for an acknowledgement, 5 s for a node
that hangs, and 2 s between attempts.
"""
_CLOCK_SIGHTINGS: Final = 16
_MOST_ASKED: Final = 32
"""The runs that were over of which the server is asked at a time whether there is more of them."""
_MOST_SKIPPED: Final = 64
"""The collectors' messages that are passed over for that."""
_COUNTS: Final = ("runs", "messages", "checkpoints", "unusable", "published", "given up", "over")


class RunCollection:
    """
    One run: its sources, the models over them, and the stream of events about it. It does no input or output.

    The events that it publishes wait in `outbox`, which is part of the state. They are sent after the state is stored.

    Args:
        source: The identity of its own stream.
        models: Returns the models, given the function that publishes their events.
        silent_after_s: As for `Collector`.
        now_s: The server's clock, in seconds since the epoch.
    """

    def __init__(
        self,
        source: Source,
        models: Callable[[Publish], Sequence[Any]],
        silent_after_s: float | None,
        now_s: Callable[[], float],
    ) -> None:
        self.source = source
        self.sequence = 1
        """The number of the next message."""
        self.outbox: list[bytes] = []
        """Frames that are to be published."""
        self.unreadable = 0
        """Messages that were not frames."""
        self.is_changed = True
        """Whether the state differs from the stored one."""
        self._decoder = SourcedDecoder()
        registry = SourceRegistry(silent_after_s, unasked_interval_s=None)
        self.streams = CollectedStreams(
            source, models(self._publish), None, registry, monotonic_s=now_s, broadcast=self._keep_own
        )

    @property
    def is_over(self) -> bool:
        """Whether no more messages are expected: each of its sources has ended or fallen silent."""
        states = self.streams.registry.states.values()
        return all(state.ended is not None or state.silent_s is not None for state in states)

    @property
    def cursor(self) -> dict[str, Any]:
        """The position in the stream after the last message that the models have read, as for `NatsReader`."""
        sources = {name: state.tracker.next_seq for name, state in self.streams.registry.states.items()}
        sources[self.source.id] = self.streams.own.next_seq
        return {"sequence": self.sequence, "events": 0, "sources": sources}

    def consume(self, message: StreamMessage) -> None:
        """Read a message of the run; those of collectors are skipped."""
        self.sequence = message.sequence + 1
        self.is_changed = True
        if _is_own(message.subject):
            return
        try:
            frame = self._decoder.decode_with(message.source_json, message.frame)
        except DecodeError:
            self.unreadable += 1
            return
        self.streams.consume(frame, message.frame, message.stored_s, "not in the stream")

    def tick(self, least_silence_s: float) -> None:
        """Publish an event for each rank that has fallen silent; to be called when the whole stream was read."""
        self.streams.registry.least_silence_s = least_silence_s
        self.streams.tick(())

    def sent(self) -> None:
        """Note that the server has the frames in the outbox."""
        self.is_changed = self.is_changed or bool(self.outbox)
        self.outbox = []

    def dump(self) -> dict[str, Any]:
        """
        Return the state as plain data: the position in the stream, and all that follows from the messages before it.
        """
        return {
            "version": _VERSION,
            "source": self.source.to_wire(),
            "sequence": self.sequence,
            "unreadable": self.unreadable,
            "outbox": self.outbox,
            "streams": self.streams.dump(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Replace the state by one that `dump` returned.

        Raises:
            DecodeError: if *state* is anything else. The state here is then unusable.
        """
        with decoding(self, state, _VERSION):
            self.streams.load(state["streams"])
            self.sequence, self.unreadable = max(1, count_of(state["sequence"])), count_of(state["unreadable"])
            self.outbox = list(state["outbox"])
            for frame in self.outbox:
                self.own_frame(frame)
            self.is_changed = False

    def own_frame(self, data: bytes) -> Frame:
        """
        Decode a frame of the outbox.

        Raises:
            DecodeError: *data* is not a frame of this run's own stream.
        """
        decoder = FrameDecoder()
        decoder.introduce(self.source)
        frame = decoder.decode(data)
        if frame.source.id != self.source.id:
            raise DecodeError("a frame of another source")
        return frame

    def _publish(self, event: Event) -> None:
        self.streams.publish(event)

    def _keep_own(self, source: Source, frame: bytes) -> None:
        if source.id == self.source.id:
            self.outbox.append(frame)
            self.is_changed = True


def _is_own(subject: str) -> bool:
    return subject.split(".")[2:3] == [_OWN]


@attrs.define
class _Checkpoint:
    """The state of one run in the store."""

    revision: int = 0
    """0 if nothing is stored."""
    object_name: str = ""
    """The object that has the state; empty if the value itself has it."""
    previous_name: str = ""
    """The object of the previous checkpoint, which a reader may still be reading."""
    created: str = ""
    """The time when the stream that it belongs to was created."""
    state: Mapping[str, Any] | None = None
    fault: DecodeError | None = None
    """The reason why a stored state cannot be used."""


class _Store:
    """Leases and checkpoints in JetStream: a bucket of keys and values, and objects for states that are too large."""

    def __init__(self, jetstream: Any, stream: str) -> None:
        self._jetstream = jetstream
        self._name = f"{stream}-collect"
        self.bucket: Any = None
        self._objects: Any = None

    async def open(self, replicas: int | None = None) -> None:
        """
        Find the buckets; create a missing one on *replicas* nodes, unless that is None.

        Raises:
            BucketNotFoundError: One is missing, and *replicas* is None.
        """
        jetstream = self._jetstream
        try:
            self.bucket = await jetstream.key_value(self._name)
        except (BucketNotFoundError, NotFoundError):
            if replicas is None:
                raise
            self.bucket = await jetstream.create_key_value(KeyValueConfig(bucket=self._name, replicas=replicas))
        try:
            self._objects = await jetstream.object_store(self._name)
        except (BucketNotFoundError, NotFoundError):
            if replicas is None:
                raise
            config = ObjectStoreConfig(bucket=self._name, replicas=replicas)
            self._objects = await jetstream.create_object_store(self._name, config=config)

    async def write(self, write: LeaseWrite) -> int | None:
        """Try to write a lease; return its revision, or None if another worker wrote first."""
        key = _LEASES + write.key
        if write.lease is None:
            await self.bucket.purge(key)
            return write.revision
        try:
            value = json.dumps(attrs.asdict(write.lease)).encode()
            revision: int = await self.bucket.update(key, value, last=write.revision)
        except KeyWrongLastSequenceError:
            return None
        return revision

    async def load(self, job: str) -> _Checkpoint:
        """Return the checkpoint of a run; if it is unreadable, with its revision and the reason."""
        try:
            entry = await self.bucket.get(_STATE + job)
        except KeyNotFoundError:
            return _Checkpoint()
        found = _Checkpoint(entry.revision)
        try:
            with _decoding_checkpoint():
                value = msgpack.unpackb(entry.value or b"")
                found.object_name, found.previous_name = str(value["object"]), str(value["previous"])
                found.created, data = str(value["created"]), value["state"]
            if found.object_name:
                data = await self._object(found.object_name)
            with _decoding_checkpoint():
                found.state = msgpack.unpackb(data, strict_map_key=False)
        except DecodeError as error:
            found.fault = error
        return found

    async def _object(self, name: str) -> bytes:
        try:
            info = await self._objects.get_info(name)
            if info.size > _MAX_STATE_BYTES:
                raise DecodeError(f"a checkpoint of more than {_MAX_STATE_BYTES} bytes")
            subject = f"$O.{self._name}.C.{info.nuid}"
            stored = (await self._jetstream.stream_info(f"OBJ_{self._name}", subjects_filter=subject)).state.subjects
            parts = (stored or {}).get(subject, 0)
            if info.size and parts < max(1, info.chunks or 0):  # nats-py would wait for the others
                raise DecodeError(f"{parts} of the {info.chunks} parts of a checkpoint's object are there")
            # Without a limit it would wait for ever for an object that is removed meanwhile.
            data: bytes = (await asyncio.wait_for(self._objects.get(name), 2 * _REQUEST_S)).data
        except (ObjectNotFoundError, BadObjectMetaError, DigestMismatchError, LinkIsABucketError) as error:
            raise DecodeError(f"the object of a checkpoint is no more: {described(error)}") from error
        return data

    async def store(self, job: str, data: bytes, before: _Checkpoint, created: str) -> _Checkpoint:
        """
        Replace *before* by *data*, in one write that is accepted only if no other worker has replaced it.

        Raises:
            KeyWrongLastSequenceError: Another worker has replaced it.
        """
        name = ""
        if len(data) > _INLINE_BYTES:
            name = f"{job}.{os.urandom(8).hex()}"
            await self._objects.put(name, data)
        value = {"object": name, "previous": before.object_name, "created": created, "state": b"" if name else data}
        revision = await self.bucket.update(_STATE + job, pack(value), last=before.revision)
        if before.previous_name:
            await self._remove(before.previous_name)
        return _Checkpoint(revision, name, before.object_name, created)

    async def clean(self, job: str, checkpoint: _Checkpoint) -> None:
        """Remove the objects that dead workers left behind; after *checkpoint* none of them can become valid."""
        try:
            found = await self._objects.list()
        except NotFoundError:
            return
        for info in found:
            if info.name.startswith(f"{job}.") and info.name not in {checkpoint.object_name, checkpoint.previous_name}:
                await self._remove(info.name)

    async def _remove(self, name: str) -> None:
        """Remove an object and its deletion marker; else each checkpoint would leave a marker."""
        with contextlib.suppress(NotFoundError):
            await self._objects.delete(name)
        key = base64.urlsafe_b64encode(name.encode()).decode()
        await self._jetstream.purge_stream(f"OBJ_{self._name}", subject=f"$O.{self._name}.M.{key}")


@contextlib.contextmanager
def _decoding_checkpoint() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # msgpack raises many kinds, and its result may have any shape
        raise DecodeError(f"no checkpoint of a run: {described(error)}") from error


class _ServerClock:
    """The server's clock, estimated from the times at which it stored this process's latest writes."""

    def __init__(self) -> None:
        self._leads: deque[float] = deque(maxlen=_CLOCK_SIGHTINGS)

    def see(self, stored_s: float) -> None:
        """Note that the server's clock was at *stored_s* a moment ago."""
        self._leads.append(stored_s - time.monotonic())

    def now_s(self) -> float:
        """Return the time, in seconds since the epoch."""
        return time.monotonic() + max(self._leads) if self._leads else time.time()


class NatsCollector(Closing):
    """
    One of the workers that collect a stream: the runs are divided among them, and each run's models are checkpointed.

    ::

        with NatsCollector("nats://stream.example:4222/acme") as collector:
            collector.serve()

    If a worker dies or is cut off, another one continues from the last checkpoint, so each run gets the answers of a
    single collector. Derived events, and events about silent ranks and missing events, are published to the stream,
    each once.

    Args:
        address: ``nats://HOST:PORT/STREAM``.
        models: Returns the models for one run, given the function that publishes their events; by default those of
            `Collector`.
        silent_after_s: As for `Collector`.
        lease_s: The time without news of a worker after which others take its runs, in seconds.
        checkpoint_interval_s: The time between two checkpoints of a run, in seconds.
        replicas: The number of a cluster's nodes that keep the stream if it is created here: 1, 3 or 5.
        on_event: Called with every event that this worker publishes.
        options: Arguments of ``nats.connect``.

    Raises:
        ConfigError: *address* is not the address of a whole stream.
    """

    def __init__(
        self,
        address: str,
        *,
        models: Callable[[Publish], Sequence[Any]] = collector_models,
        silent_after_s: float | None = None,
        lease_s: float = LEASE_S,
        checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S,
        replicas: int = 1,
        on_event: Callable[[Event], object] | None = None,
        **options: Any,
    ) -> None:
        self.address: StreamAddress = StreamAddress.parse(address)
        if self.address.run:
            raise ConfigError("stream", address, "give nats://HOST:PORT/STREAM: its runs are divided among collectors")
        self.models = models
        self.silent_after_s = silent_after_s
        self.lease_s = lease_s
        self.checkpoint_interval_s = checkpoint_interval_s
        self.replicas = replicas
        self.on_event = on_event
        self.counts: Counter[str] = Counter(dict.fromkeys(_COUNTS, 0))
        """
        The numbers of ``runs`` taken, released because they were ``over``, and ``given up`` after an error; of
        ``messages`` read; of ``checkpoints`` written, and of those found ``unusable``; and of events ``published``.
        """
        self.is_stopped: StopEvent = StopEvent()
        user_of(self.address.servers, options)
        self._servers = shuffled(self.address.servers)
        self._options = options
        self._trouble = RateLimitedLog()

    def serve(self) -> None:
        """Work until `stop` is called, even if an event loop is running, as in a notebook; servers may come and go."""
        run_in_loop(self._serve(), stop=self.stop)

    def stop(self) -> None:
        """Make `serve` return; may be called on any thread, and by a signal handler."""
        self.is_stopped.set()

    def close(self) -> None:
        """Stop."""
        self.stop()

    def complain(self, what: str, error: BaseException | None = None) -> None:
        """Log *what* is wrong, at most once a minute."""
        self._trouble.complain("%s: %s", self.address, what if error is None else f"{what}: {described(error)}")

    async def _serve(self) -> None:
        retry_s = 0.1
        while not self.is_stopped.is_set():
            began_s = time.monotonic()
            try:
                await self._connected()
            except Exception as error:  # whatever the client raises, the server may come back
                self.complain("tried again", error)
                retry_s = 0.1 if time.monotonic() - began_s > MAX_RETRY_S else min(2 * retry_s, MAX_RETRY_S)
                await asyncio.sleep(retry_s)

    async def _connected(self) -> None:
        """Work until stopped, or until the connection ends; the next connection begins from the stored state."""
        client = await next_client(
            self._servers, **{"connect_timeout": _REQUEST_S, "name": "trackside-collect", **self._options}
        )
        try:
            await _NatsSession(self, client).work()
        finally:
            await disconnect(client)


@attrs.frozen
class _More:
    """The server's answer to the question whether there is more of a run that was over."""

    lease: Lease
    amount: int
    """The number of the run's messages at that time."""
    is_there: bool
    asked_s: float


class _NatsSession:
    """The work of a worker over one connection."""

    def __init__(self, collector: NatsCollector, client: Any) -> None:
        self._collector = collector
        self._client = client
        self._stream = collector.address.stream
        self._jetstream = client.jetstream(timeout=_REQUEST_S)
        self._store = _Store(self._jetstream, self._stream)
        self._leases = LeaseTable(os.urandom(6).hex(), lease_s=collector.lease_s, most=MAX_RUNS)
        self._clock = _ServerClock()
        self._answered_s = self._steady_s = -1e9
        """The time of the stream's last answer, and the time since which it has answered without a break."""
        self._least_silence_s = 0.0
        self._amounts: dict[str, int] = {}
        """By run, the number of ranks' messages in the stream."""
        self._created = ""
        self._last = 0
        """The number of the stream's last message."""
        self._more: dict[str, _More] = {}
        """By run that was over and has fewer messages since, the server's latest answer."""
        self._looked_s = -1e9
        self._look_s = _LEAST_LOOK_S
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._released: set[str] = set()
        """Runs that are to be handed over."""
        self._writing = asyncio.Lock()
        """Held from the choice of a lease's next entry until it is written: each names the revision it replaces."""

    async def work(self) -> None:
        """Take, renew and hand over runs until the collector is stopped."""
        await create_stream(self._jetstream, self._stream, replicas=self._collector.replicas)
        info = await self._jetstream.stream_info(self._stream)
        await self._store.open(info.config.num_replicas or 1)
        watcher = await self._store.bucket.watch(f"{_LEASES}>")
        seeing = asyncio.create_task(self._see(watcher))
        try:
            while not self._collector.is_stopped.is_set():
                if not self._client.is_connected:
                    raise ConnectionError("the server has gone")
                if seeing.done():
                    await seeing
                await self._look()
                await self._divide()
                await asyncio.sleep(self._collector.lease_s / 20)
            await self._part()
        finally:
            for task in (seeing, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(seeing, *self._tasks.values(), return_exceptions=True)

    async def _see(self, watcher: Any) -> None:
        """Read the entries of the leases, whichever worker writes them."""
        async for entry in watcher:
            if entry is None:
                continue
            lease = None
            if not entry.operation:
                with contextlib.suppress(Exception):  # the entry may hold anything
                    lease = Lease(**json.loads(entry.value))
            if lease is not None and lease.owner == self._leases.worker:
                self._clock.see(entry.created.timestamp())
            self._leases.see(entry.key[len(_LEASES) :], entry.revision, lease, time.monotonic())

    async def _look(self) -> None:
        """Check that the stream answers, and find its runs; this takes at most a tenth of the time."""
        began_s = time.monotonic()
        if began_s - self._answered_s < _LEAST_LOOK_S:
            return
        is_listed = began_s - self._looked_s >= self._look_s
        subjects = f"{self._stream}.>" if is_listed else None
        info = await self._jetstream.stream_info(self._stream, subjects_filter=subjects)
        now_s = time.monotonic()
        if now_s - self._answered_s > _OUTAGE_S:
            self._steady_s = now_s
        self._answered_s = now_s
        self._least_silence_s = _RETURN_S if info.cluster else 0.0  # however many of its nodes have the stream
        if not is_listed:
            return
        of_ranks = {subject: count for subject, count in (info.state.subjects or {}).items() if not _is_own(subject)}
        self._amounts = messages_by_run(of_ranks)
        self._created, self._last = str(info.created), info.state.last_seq
        await self._ask()
        self._looked_s = time.monotonic()
        self._look_s = max(_LEAST_LOOK_S, _SHARE_OF_TIME * (self._looked_s - began_s))

    async def _ask(self) -> None:
        """Ask whether there is more of the runs that were over, where the amount has changed; the longest ago first."""
        shrunk = self._shrunk()
        self._more = {job: more for job, more in self._more.items() if job in shrunk}
        due = [job for job in shrunk if not self._is_known(job, shrunk[job])]
        due.sort(key=lambda job: self._more[job].asked_s if job in self._more else 0.0)
        await asyncio.gather(*(self._ask_of(job, shrunk[job]) for job in due[:_MOST_ASKED]))

    async def _ask_of(self, job: str, lease: Lease) -> None:
        """Ask whether there is more of a run that was over: messages of ranks after those that were read."""
        amount, sequence = self._amounts[job], self._read_to(lease)
        is_there = True
        try:
            for _ in range(_MOST_SKIPPED):
                subject = f"{self._stream}.{job}.>"
                message = await self._jetstream.get_msg(self._stream, sequence, subject=subject, next=True)
                if not _is_own(message.subject):
                    break
                sequence = message.seq + 1
        except NotFoundError:
            is_there = False
        self._more[job] = _More(lease, amount, is_there, time.monotonic())

    def _shrunk(self) -> dict[str, Lease]:
        """Return the leases of the runs that were over and have fewer messages since: some were removed."""
        found = {}
        for job, amount in self._amounts.items():
            lease = self._leases.lease_of(job)
            if lease is not None and lease.done > amount and self._read_to(lease):
                found[job] = lease
        return found

    def _read_to(self, lease: Lease) -> int:
        """Return the number after the last message that was read; 0 if that was in another stream, or is not known."""
        created, _, sequence = lease.mark.rpartition(" ")
        if created != self._created or not re.fullmatch("[0-9]{1,20}", sequence):
            return 0
        return int(sequence) if int(sequence) <= self._last + 1 else 0  # it may have come back with an older disk

    def _is_known(self, job: str, lease: Lease) -> bool:
        more = self._more.get(job)
        return more is not None and (more.lease, more.amount) == (lease, self._amounts[job])

    def _sizes(self) -> dict[str, int]:
        """
        Return the sizes of the runs, by which they are taken.

        A run that was over, and of which messages were removed and none came since, has the size that it had. One that
        may be such a run is left out until the server was asked.
        """
        sizes = dict(self._amounts)
        for job, lease in self._shrunk().items():
            if not self._is_known(job, lease):
                del sizes[job]
            elif not self._more[job].is_there:
                sizes[job] = lease.done
        return sizes

    def _is_steady(self, now_s: float) -> bool:
        """Return whether each living rank could publish: the stream has answered for as long as a rank may need."""
        return now_s - self._answered_s < _OUTAGE_S and now_s - self._steady_s > _RETURN_S

    async def _divide(self) -> None:
        """Write the leases that are due, and begin and end the work on runs accordingly."""
        async with self._writing:
            for write in self._leases.plan(self._sizes(), time.monotonic()):
                await self._try(write)
        if waiting := self._leases.waiting:
            self._collector.complain(f"{waiting:,} runs wait: start more workers, each has at most {MAX_RUNS}")
        for job, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[job]
                self._released.discard(job)
            elif job not in self._leases.held:
                task.cancel()
        self._released.update(self._leases.excess)
        for job in self._leases.held - self._tasks.keys():
            self._collector.counts["runs"] += 1
            self._tasks[job] = asyncio.create_task(self._collect(job))

    async def _try(self, write: LeaseWrite) -> bool:
        """Try to write a lease; return whether the store accepted it."""
        began_s = time.monotonic()
        revision = await self._store.write(write)
        if revision is None:
            self._leases.refused(write)
        else:
            self._leases.wrote(write, revision, began_s)
        return revision is not None

    async def _part(self) -> None:
        """Hand all runs over, and stop."""
        self._released.update(self._tasks)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_REQUEST_S)
        with contextlib.suppress(Exception):
            await self._store.write(LeaseWrite(f"worker.{self._leases.worker}", None, 0))

    # --- one run ------------------------------------------------------------------------------------------------------

    async def _collect(self, job: str) -> None:
        """Collect one run until it is released or lost to another worker; if that fails, any worker may try again."""
        try:
            left = await self._collect_until_released(job)
            async with self._writing:  # if another worker has it, the revision seen last is that worker's
                write = self._leases.release(job, left.done, left.mark)
                is_released = job in self._leases.held and await self._try(write)
            self._collector.counts["over"] += is_released and left.done >= 0
        except KeyWrongLastSequenceError:
            self._leases.drop(job)  # another worker continues with it
        except Exception as error:
            self._collector.counts["given up"] += 1
            self._collector.complain(f"run {job} is given up for now", error)
            self._leases.drop(job)

    async def _collect_until_released(self, job: str) -> Lease:
        """Collect one run until it is over or released; return the lease to leave behind, which says if it is over."""
        checkpoint = await self._store.load(job)
        created = self._created
        run = self._loaded(job, checkpoint, created)
        if run:
            await self._publish(job, run)  # the previous worker stored these events, and may not have sent them
        subject = f"{self._stream}.{job}.>"
        pull = StreamPull(self._stream, subject, run.sequence if run else 1, poll_interval_s=_POLL_S)
        due_s = heard_s = time.monotonic()
        is_clean = False
        try:
            while True:
                if self._created != created:
                    raise ConnectionError("the stream was removed and created again")
                amount = self._amounts.get(job, 0)
                messages = await pull.fetch(self._jetstream)
                for message in messages:
                    heard_s = time.monotonic()
                    run = run or self._begin(job, message)
                    run.consume(message)
                    await asyncio.sleep(0)  # leases are renewed meanwhile
                self._collector.counts["messages"] += len(messages)
                now_s = time.monotonic()
                is_at_end = not messages or messages[-1].pending <= len(messages)
                if run and is_at_end and self._is_steady(now_s):
                    run.tick(self._least_silence_s)
                is_over = not messages and (run is None or run.is_over) and now_s - heard_s > self._collector.lease_s
                is_over = is_over and await pull.is_at_end()
                is_released = is_over or job in self._released
                outbox_bytes = sum(map(len, run.outbox)) if run else 0
                if run and run.is_changed and (is_released or now_s >= due_s or outbox_bytes > _MAX_OUTBOX_BYTES):
                    run.is_changed = False
                    checkpoint = await self._store.store(job, self._packed(job, run), checkpoint, created)
                    if checkpoint.object_name and not is_clean:
                        await self._store.clean(job, checkpoint)
                        is_clean = True
                    self._collector.counts["checkpoints"] += 1
                    await self._publish(job, run)
                    took_s = time.monotonic() - now_s
                    due_s = now_s + max(self._collector.checkpoint_interval_s, _SHARE_OF_TIME * took_s)
                if is_released and not (run and run.is_changed):
                    return Lease(done=amount, mark=f"{created} {pull.next}") if is_over else Lease()
        finally:
            await pull.close(self._jetstream)

    def _loaded(self, job: str, checkpoint: _Checkpoint, created: str) -> RunCollection | None:
        """Return the collection as it was stored; None if the run is to be read from its start."""
        try:
            if checkpoint.fault is not None:
                raise checkpoint.fault
            if checkpoint.state is None or checkpoint.created != created:
                return None
            return loaded(checkpoint.state, self._collector.models, self._collector.silent_after_s, self._clock.now_s)
        except DecodeError as error:
            self._collector.counts["unusable"] += 1
            self._collector.complain(f"run {job} is read from its start, as its checkpoint cannot be used", error)
            return None

    def _packed(self, job: str, run: RunCollection) -> bytes:
        """Return the state of *run* as bytes; sums beyond 64 bits are replaced by the largest number in 64 bits."""
        state = run.dump()
        try:
            return pack(state)
        except OverflowError as error:
            self._collector.complain(f"a sum of run {job} does not fit, and the largest number is stored for it", error)
            return pack(saturated(state))

    def _begin(self, job: str, message: StreamMessage) -> RunCollection:
        """Return a new collection of a run, which begins with the run's first message."""
        run_id = job
        with contextlib.suppress(DecodeError):
            run_id = SourcedDecoder().decode_with(message.source_json, message.frame).source.run_id or job
        source = Source.detect({}, run_id=run_id, role=_OWN)
        return RunCollection(source, self._collector.models, self._collector.silent_after_s, self._clock.now_s)

    async def _publish(self, job: str, run: RunCollection) -> None:
        """Send the events in the outbox, in order; the server keeps each once."""
        subject = ".".join((self._stream, job, _OWN, subject_token(run.source.id)))
        source_json = encoded_source(run.source)
        for frame in run.outbox:
            own = run.own_frame(frame)
            headers = message_headers(run.source.id, own.first_seq, source_json)
            try:
                await self._jetstream.publish(subject, frame, stream=self._stream, headers=headers)
            except MaxPayloadError as error:  # readers see by its number that it is missing
                self._collector.complain("an event is larger than the server's max_payload", error)
                continue
            self._collector.counts["published"] += len(own.events)
            if self._collector.on_event is not None:
                for event in own.events:
                    self._collector.on_event(event)
        run.sent()


def loaded(
    state: Mapping[str, Any],
    models: Callable[[Publish], Sequence[Any]],
    silent_after_s: float | None = None,
    now_s: Callable[[], float] = time.time,
) -> RunCollection:
    """
    Return the collection of a run from its stored *state*.

    Raises:
        DecodeError: *state* is not such a state, or belongs to other models.
    """
    source = Source.from_wire(state.get("source")) if isinstance(state, Mapping) else Source.unknown("")
    run = RunCollection(source, models, silent_after_s, now_s)
    run.load(state)
    return run


@attrs.frozen
class CollectedRun:
    """The state that the collectors of a stream have stored for one run."""

    models: Sequence[Any]
    """The models."""
    cursor: Mapping[str, Any]
    """The position in the stream after that state; a `NatsReader` continues from there without a gap."""


def collected(address: str, *, models: Callable[[Publish], Sequence[Any]] = collector_models) -> CollectedRun:
    """
    Return the state that a stream's collectors have stored for the run at *address*, ``nats://HOST:PORT/STREAM/RUN``.

    Args:
        address: The address of the run.
        models: The same as those of the `NatsCollector` that stored the state.

    Raises:
        ConfigError: *address* is not the address of a run.
        UnreadableError: The server does not answer, or nothing is stored.
        DecodeError: The stored value is not a checkpoint, or belongs to other models.
    """
    place = StreamAddress.parse(address)
    found = stored_run(place, models)
    if found is None:
        whole = attrs.evolve(place, run="")
        raise UnreadableError(str(place), "nothing is stored of this run", f"does `trackside collect {whole}` run?")
    run, created = found
    return CollectedRun(run.streams.models, {**run.cursor, "created": created})


def stored_run(
    address: StreamAddress, models: Callable[[Publish], Sequence[Any]] = collector_models
) -> tuple[RunCollection, str] | None:
    """
    Return the stored collection of the run at *address*, and the creation time of its stream; None if none is stored.

    Raises:
        ConfigError: *address* is not the address of a run.
        UnreadableError: The server does not answer.
        DecodeError: The stored value is not a checkpoint, or belongs to other models.
    """
    if not address.run or address.rank:
        raise ConfigError("run", str(address), "give nats://HOST:PORT/STREAM/RUN")

    async def load(jetstream: Any) -> _Checkpoint:
        store = _Store(jetstream, address.stream)
        try:
            await store.open()
        except (BucketNotFoundError, NotFoundError):
            return _Checkpoint()
        return await store.load(subject_token(address.run))

    checkpoint = ask(address, load)
    if checkpoint.fault is not None:
        raise checkpoint.fault
    return None if checkpoint.state is None else (loaded(checkpoint.state, models), checkpoint.created)
