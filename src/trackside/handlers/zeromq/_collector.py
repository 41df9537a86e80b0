"""The collector: receives many ranks, writes their logs, runs models over all of them, and serves viewers."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgpack

from trackside._platform import raise_descriptor_limit
from trackside.core import RateLimitedLog, Worker, described, is_from_signal_handler
from trackside.events import (
    DecodeError,
    Event,
    EventsLost,
    PeerCut,
    Publish,
    RankFellSilent,
    RankSpokeAgain,
    Source,
    UnreadableError,
    clock,
)
from trackside.handlers.eventlog._appender import Appender
from trackside.handlers.eventlog._format import Loss
from trackside.handlers.eventlog._reader import LogReader, find_files, source_files
from trackside.handlers.eventlog._writer import RecordWriter, WaitingFrame, WriteBuffer, log_name
from trackside.handlers.models import ClockOffsets, CounterBoard, SpanBuilder
from trackside.handlers.models._model import decoding
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.handlers.zeromq._connection import Connection
from trackside.handlers.zeromq._control import VerbForwarder, may_command
from trackside.handlers.zeromq._keys import SERVER
from trackside.handlers.zeromq._protocol import (
    ALWAYS,
    COLLECTOR_VIEWER_CONNECTIONS,
    EVENTS_PER_SOURCE,
    MAX_COLLECTOR_VIEWERS,
    MAX_SOURCES,
    MAX_SOURCES_OF_ONE,
    MAX_UNHEARD_SOURCES,
    PRODUCER_CONNECTIONS,
    PUBLISHER_CONNECTIONS,
    WAITING_MESSAGES,
    Beat,
    Bye,
    Filter,
    LossEntry,
    Message,
    PeerLimits,
    Snapshot,
    SourcePosition,
    TokenBucket,
    decode_snapshot,
    dump_models,
    model_name,
)
from trackside.handlers.zeromq._receiver import (
    COLLECTORS,
    FORWARDS,
    GRACE_S,
    SOURCE,
    Entry,
    OwnStream,
    Producer,
    Receiver,
    SourceRegistry,
    SourceState,
    clock_news,
)
from trackside.handlers.zeromq._server import RING_S, LostRange, ReadySnapshot, Ring, RingBudget, StreamServer
from trackside.handlers.zeromq._service import SERVICE_RING_BYTES, Service
from trackside.rules import Decide, rule_from_wire
from trackside.wire import Frame, FrameDecoder, deliver, views
from trackside.wire._sequence import MAX_COUNT, count_of

if TYPE_CHECKING:
    from trackside.handlers.zeromq._protocol import Verb

FLUSH_S: Final = 0.5
BUFFER_BYTES: Final = 256 << 20
MOST_OPEN: Final = 1024
"""The most files held open; the least recently written are closed, and opened again when needed."""
ROTATE_BYTES: Final = 256 << 20
_BEGIN_S: Final = 2.0
"""The time after the first frame of a source in which it shows whether it writes its file itself."""
_TAIL_BYTES: Final = 1 << 20
_TAILS_BYTES: Final = 256 << 20
"""The most bytes kept of one source that writes its file itself, and of all such sources."""
_WAKE_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 18


@attrs.define(eq=False)
class _SourceLog:
    """The log of one source."""

    buffer: WriteBuffer
    appender: Appender
    series: RecordWriter
    begins_s: float
    """The time, by a monotonic clock, at which its file may be begun."""
    is_begun: bool = False
    tail: deque[WaitingFrame] | None = None
    """The latest frames of a source that writes its file itself, into the same directory; None for all others."""
    tail_bytes: int = 0
    is_ended: bool = False

    def keep(self, frame: WaitingFrame, most_bytes: int) -> None:
        """Add *frame* to the tail, and remove the oldest frames beyond *most_bytes*."""
        assert self.tail is not None
        self.tail.append(frame)
        self.tail_bytes += len(frame.frame)
        while self.tail_bytes > most_bytes:
            self.tail_bytes -= len(self.tail.popleft().frame)


class MultiLogWriter:
    """
    Writes the frames of many sources, one file for each, byte for byte as an `EventLog` in that source would.

    Frames are handed over without waiting. Frames for which there is no room while the disk is slow are counted, and
    the file records their loss in their place.

    If a source writes its file itself, into the same directory, no second one is written here. Only the source's latest
    frames are kept in memory, and are written when this closes, unless the source has ended by then: a process that was
    killed has not written its last second.

    Args:
        directory: The directory of the logs; made if it does not exist.
        fsync_s: The age in seconds at which written data is forced to the device; None leaves that to the kernel.
    """

    def __init__(self, directory: str | os.PathLike[str], *, fsync_s: float | None = 5.0) -> None:
        self.directory: Path = Path(directory).absolute()
        self.refused_events: int = 0
        """Events that no file has, because the disk was too slow or full for too long."""
        self._fsync_s = fsync_s
        self._earlier = frozenset(find_files([self.directory])[0]) if self.directory.is_dir() else frozenset()
        """The files that were here before: if the file of a source is among them, it is continued here."""
        self._logs: dict[str, _SourceLog] = {}
        self._dirty: dict[str, _SourceLog] = {}
        self._open: OrderedDict[str, _SourceLog] = OrderedDict()
        self._waiting_bytes = 0
        self._finished_files = 0
        self._finished_bytes = 0
        self._trouble = RateLimitedLog()
        self._worker = Worker(
            self._work,
            name="log-writer",
            pause_s=lambda: FLUSH_S,
            is_wanted=lambda: self._waiting_bytes >= _WAKE_BYTES,
        )
        self._lock = self._worker.lock
        """Guards all state here and in the buffers."""
        self._worker.start()

    def append(self, source: Source, frame: bytes, events: int) -> bool:
        """Queue *frame* for the file of *source*; count its events and return False if there is no room for it."""
        with self._lock:
            log = self._log(source)
            if log.tail is not None:
                log.keep(WaitingFrame(frame, events), self._tail_bytes())
                return True
            if self._waiting_bytes + len(frame) > BUFFER_BYTES:
                log.buffer.refuse(frame, events, log.buffer.trouble or "the disk is slower than the stream")
                self.refused_events += events
                return False
            is_taken = log.buffer.put(frame, events)
            self._waiting_bytes += len(frame)
            self._dirty[source.id] = log
            if self._waiting_bytes >= _WAKE_BYTES:
                self._worker.wake()
            return is_taken

    def lose(self, source: Source, events: int, reason: str) -> None:
        """Record in the file that *events* of *source* are missing here."""
        with self._lock:
            log = self._log(source)
            if log.tail is None:
                log.buffer.note(Loss(events, 0, reason, clock.now_ns()))
                self._dirty[source.id] = log

    def end(self, source: Source) -> None:
        """Finish the file of *source*, from which nothing more is expected. If something comes, a new part begins."""
        with self._lock:
            log = self._logs.get(source.id)
            if log is not None:
                log.is_ended = True
                if log.tail is not None:
                    log.tail.clear()
                self._dirty[source.id] = log

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Write the accepted frames; False if that takes too long or the disk refuses it."""
        return self._worker.flush(timeout_s) and not self._waiting_bytes

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write the accepted frames and finish every file; True if all of them were written."""
        with self._lock:
            for name, log in self._logs.items():
                for frame in log.tail or ():
                    log.buffer.put(*frame)
                    self._waiting_bytes += len(frame.frame)
                    self._dirty[name] = log
        return self._worker.close(timeout_s) and not self._waiting_bytes

    def stats(self) -> dict[str, int]:
        """Return the counts: files, bytes written and waiting, events refused."""
        with self._lock:
            logs = list(self._logs.values())
            return {
                "files": self._finished_files + sum(len(log.appender.paths) for log in logs),
                "written_bytes": self._finished_bytes + sum(log.appender.written_bytes for log in logs),
                "waiting_bytes": self._waiting_bytes,
                "refused_events": self.refused_events,
            }

    def _log(self, source: Source) -> _SourceLog:
        log = self._logs.get(source.id)
        if log is None:
            appender = Appender(
                self.directory, lambda part: log_name(source, part), rotate_bytes=ROTATE_BYTES, fsync_s=self._fsync_s
            )
            buffer = WriteBuffer(BUFFER_BYTES, clock.now_ns, self._lock)
            log = _SourceLog(buffer, appender, RecordWriter(appender, source), time.monotonic() + _BEGIN_S)
            self._logs[source.id] = log
        return log

    # --- on the worker's thread ---------------------------------------------------------------------------------------

    def _work(self, *, insist: bool, is_last: bool) -> None:
        with self._lock:
            dirty, self._dirty = self._dirty, {}
        for name, log in dirty.items():
            if log.is_begun or self._begin(name, log, insist=insist):
                self._write(name, log, insist=insist)
        for log in list(self._open.values()):
            log.appender.sync_if_due()
        if is_last:
            for log in list(self._logs.values()):
                log.series.finish()

    def _begin(self, name: str, log: _SourceLog, *, insist: bool) -> bool:
        """
        Check whether the source writes its file itself, after it had time to begin it; return whether this is decided.
        """
        if not insist and time.monotonic() < log.begins_s:
            with self._lock:
                self._dirty.setdefault(name, log)
            return False
        own = self.directory / log_name(log.series.source, 0)
        has_own = own not in self._earlier and own.exists()
        with self._lock:
            log.is_begun = True
            if has_own:
                log.tail = deque()
                while entries := log.buffer.batch(_CHUNK_BYTES):
                    log.buffer.settle(entries)
                    for entry in entries:
                        if isinstance(entry, WaitingFrame):
                            self._waiting_bytes -= len(entry.frame)
                            log.keep(entry, self._tail_bytes())
                if log.is_ended:
                    log.tail.clear()
        return True

    def _tail_bytes(self) -> int:
        return min(_TAIL_BYTES, _TAILS_BYTES // len(self._logs))

    def _write(self, name: str, log: _SourceLog, *, insist: bool) -> None:
        """Write the waiting entries of one source, and survive any error."""
        try:
            self._drain(log, insist=insist)
        except Exception as error:  # no other thread writes the other logs
            log.buffer.trouble = repr(error)
        if log.buffer.waiting_events or log.buffer.size_bytes:
            with self._lock:
                self._dirty.setdefault(name, log)
            self._complain(log)
        elif log.is_ended:
            self._finish(name, log)
            return
        self._open[name] = log
        self._open.move_to_end(name)
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)[1].appender.park()

    def _finish(self, name: str, log: _SourceLog) -> None:
        with self._lock:
            if name in self._dirty:  # more came meanwhile
                return
            self._logs.pop(name, None)
        self._open.pop(name, None)
        log.series.finish()
        self._finished_files += len(log.appender.paths)
        self._finished_bytes += log.appender.written_bytes

    def _drain(self, log: _SourceLog, *, insist: bool) -> None:
        buffer = log.buffer
        while entries := buffer.batch(_CHUNK_BYTES):
            outcome = log.series.write(entries, insist=insist)
            if outcome.vanished is not None:
                lost = outcome.vanished
                buffer.put_first(Loss(lost.events, lost.size_bytes, f"{lost.path.name} vanished", clock.now_ns()))
                continue
            if not outcome:
                buffer.trouble = str(outcome.error)
                return
            buffer.settle(entries)
            buffer.trouble = ""
            with self._lock:
                self._waiting_bytes -= sum(len(entry.frame) for entry in entries if isinstance(entry, WaitingFrame))

    def _complain(self, log: _SourceLog) -> None:
        self._trouble.complain(
            "logs below %s: %s; %d bytes wait, %d events are lost so far",
            self.directory,
            log.buffer.trouble or "the disk is slower than the stream",
            self._waiting_bytes,
            self.refused_events,
        )


@attrs.define
class Restored:
    """The state that was restored from earlier logs."""

    frames: int = 0
    events: int = 0
    problems: list[UnreadableError] = attrs.field(factory=list)
    """The files that were not read, or not to their end, and why."""


def restore(directory: str | os.PathLike[str], decoder: FrameDecoder, consume: Callable[[Frame], object]) -> Restored:
    """
    Call *consume* with every frame in the logs below *directory*, source after source, and for each source in order.

    It does nothing if the directory does not exist or holds no log.
    """
    found = Restored()
    if not Path(directory).is_dir():
        return found
    files, _ = find_files([directory])
    for own_files in source_files(files, decoder, found.problems):
        for file in own_files:
            reader = LogReader(file.path, decoder)
            try:
                for item in chain(reader.read(), reader.finish()):
                    if isinstance(item, Frame):
                        found.frames += 1
                        found.events += len(item.events)
                        consume(item)
            except UnreadableError as problem:
                found.problems.append(problem)
            except Exception as error:  # a peer wrote the frame, so it may hold anything
                found.problems.append(
                    UnreadableError(str(file.path), described(error), "the rest of it is passed over")
                )
    return found


_FIELDS_BEFORE_ROWS: Final = 6


@attrs.define(eq=False)
class _FilteredStream:
    """One stream: its ring, and the filter of the events in it."""

    wanted: Filter
    ring: Ring
    decide: Decide | None

    def admits(self, event: Event) -> bool:
        if event.wire_name in ALWAYS:
            return True
        return self.wanted.admits(event) and (self.decide is None or self.decide(event) is None)


class FilteredStreams:
    """
    The streams that a collector has for its viewers. Only one thread may use this.

    Args:
        models: The models whose states go into snapshots.
        places: Returns the position of every source.
        status: Returns the status to send in beats.
        broadcast: Called with each frame and its source; None if frames are not broadcast.
    """

    def __init__(
        self,
        models: Sequence[Any],
        places: Callable[[], Iterable[SourcePosition]],
        status: Callable[[], dict[str, Any]],
        broadcast: Callable[[Source, bytes], object] | None = None,
    ) -> None:
        self.status = status
        self._broadcast = broadcast
        self._models = models
        self._places = places
        self._cuts: list[_FilteredStream] = []
        self._trouble = RateLimitedLog()

    def add(self, frame: Frame, data: bytes, events: Sequence[Event]) -> None:
        """
        Give a frame to every stream that wants some of its events.

        Args:
            frame: The frame.
            data: Its bytes, as they came.
            events: Its events that did not come before.
        """
        if self._broadcast is not None:
            self._broadcast(frame.source, data)
        for cut in self._cuts:
            if cut.wanted.is_open:
                cut.ring.append(data, len(frame.events))
            else:
                fresh_from = len(frame.events) - len(events)
                kept = [number for number, event in enumerate(events, fresh_from) if cut.admits(event)]
                cut.ring.append(with_rows(data, kept), len(kept))

    def lose(self, lost: LostRange) -> None:
        """Report *lost* to every viewer."""
        for cut in self._cuts:
            cut.ring.append(lost, 0)

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """
        Begin to fill *ring*.

        Raises:
            DecodeError: if the filter's rule is not known here.
        """
        rule = wanted.rule
        cut = _FilteredStream(wanted, ring, None if rule is None else rule_from_wire(rule).start())
        self._cuts.append(cut)
        return lambda: self._cuts.remove(cut)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[ReadySnapshot | None], None]) -> None:
        """Take a snapshot at once."""
        snapshot = Snapshot(list(self._places()), dump_models(self._models, models), clock.now_ns())
        done(ReadySnapshot.take(snapshot, ring, self._trouble))


def with_rows(data: bytes, kept: Sequence[int]) -> bytes:
    """
    Return the frame in *data* with only the rows whose indexes are in *kept*, in order.

    Bytes are copied, not encoded again, so the result is never larger than the frame that came.

    Args:
        data: A frame that was decoded without an error.
        kept: Indexes of rows, from 0.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(data)
    unpacker.read_array_header()
    for _ in range(_FIELDS_BEFORE_ROWS):
        unpacker.skip()
    rows_at = unpacker.tell()
    bounds = [0] * unpacker.read_array_header()
    first_row_at = unpacker.tell()
    for number in range(len(bounds)):
        unpacker.skip()
        bounds[number] = unpacker.tell()
    rows = [data[bounds[number - 1] if number else first_row_at : bounds[number]] for number in kept]
    return b"".join((data[:rows_at], msgpack.Packer().pack_array_header(len(rows)), *rows))


_STATE_VERSION: Final = 1
_GIVEN_UP: Final = "given up by its sender"
_LOOK_INTERVAL_S: Final = 0.25
_REPORT_CUTS_INTERVAL_S: Final = 10.0
_CUTS_PER_S: Final = 1.0
"""The most reports of limited peers per second: each is recorded, and a peer may keep coming under new names."""
_CUTS_AT_ONCE: Final = 100.0


class CollectedStreams:
    """
    Accepts entries from a `Receiver`. Its only input and output are the logs. Only one thread may use it.

    Args:
        source: The source of this process.
        models: The models, which read every event of every source once.
        log_writer: Writes the logs; None for none.
        registry: The known sources.
        monotonic_s: The clock.
        broadcast: Called with each new frame, this process's own included, and its source.
    """

    def __init__(
        self,
        source: Source,
        models: Sequence[Any],
        log_writer: MultiLogWriter | None,
        registry: SourceRegistry,
        *,
        monotonic_s: Callable[[], float],
        broadcast: Callable[[Source, bytes], object] | None = None,
    ) -> None:
        self.registry = registry
        self.models: list[Any] = list(models)
        self.counts: Counter[str] = Counter()
        """``malformed`` frames, ``excess`` sources, ``failed`` calls of models."""
        self.unheard: dict[str, int] = {}
        """The least number of events that a source had of which only losses were reported, by the source's id."""
        self.filtered: FilteredStreams = FilteredStreams(self.models, self.positions, self.status, broadcast)
        self._log_writer = log_writer
        self._now = monotonic_s
        self._decoder = FrameDecoder()
        self._trouble = RateLimitedLog()
        self._cuts = TokenBucket(_CUTS_PER_S, _CUTS_AT_ONCE)
        self._looked_s = -1e9
        self._missed = 0
        """Events that were reported to the models as missed: together no more than `MAX_COUNT`."""
        self.own: OwnStream = OwnStream(source, self._add_own)

    def restore(self, directory: str | os.PathLike[str]) -> Restored:
        """Restore the state from the logs below *directory*, as if their events had just been received."""
        heard_s = self._now() + GRACE_S
        silent: set[str] = set()

        def consume(frame: Frame) -> None:
            state = self._state(frame, heard_s)
            state.is_restored = True
            for event in self._learn(frame, state):
                if isinstance(event, RankFellSilent):
                    silent.add(event.source_id)
                elif isinstance(event, RankSpokeAgain):
                    silent.discard(event.source_id)

        found = restore(directory, self._decoder, consume)
        for name in silent & self.registry.states.keys():
            self.registry.states[name].silent_s = heard_s  # it was reported before
        return found

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data: the sources, the models, and how far its own stream has come."""
        return {
            "version": _STATE_VERSION,
            "sources": [state.dump() for state in self.registry.states.values()],
            "models": [[model_name(model), model.dump()] for model in self.models],
            "next_seq": self.own.next_seq,
            "missed": self._missed,
            "counts": dict(self.counts),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Replace the state by one that `dump` returned, of the same models and with the same clock.

        Raises:
            DecodeError: if *state* is anything else. The state here is then unusable.
        """
        with decoding(self, state, _STATE_VERSION):
            states = [SourceState.load(source) for source in state["sources"]]
            names = [model_name(model) for model in self.models]
            if [name for name, _ in state["models"]] != names:
                raise DecodeError(f"a state of other models than {', '.join(names)}")
            for model, (_, dumped) in zip(self.models, state["models"], strict=True):
                model.load(dumped)
            self.registry.states = {source.source.id: source for source in states}
            for source in states:
                self._decoder.introduce(source.source)
            self.own.next_seq, self._missed = count_of(state["next_seq"]), count_of(state["missed"])
            self.counts = Counter({str(name): count_of(count) for name, count in state["counts"].items()})

    # --- what the receiver hears --------------------------------------------------------------------------------------

    def on_entry(self, producer: Producer, entry: Entry) -> None:
        """Process a frame, or a report of events lost on the way."""
        if isinstance(entry, LossEntry):
            self._on_loss(entry)
            return
        try:
            frame = self._decoder.decode(entry.frame)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        producer.buckets.charge(len(frame.events))
        if frame.source.id not in self.registry.states:
            producer.buckets.charge(EVENTS_PER_SOURCE)
            if len(producer.sources) >= MAX_SOURCES_OF_ONE:
                self.counts["excess"] += 1
                return
        state = self.consume(frame, entry.frame, self._now())
        if state is not None:
            state.producer = producer
            producer.sources.add(frame.source.id)

    def consume(self, frame: Frame, data: bytes, heard_s: float, gap: str = _GIVEN_UP) -> SourceState | None:
        """
        Process a frame; return the state of its source, None if there are too many sources.

        Args:
            frame: The frame.
            data: Its bytes, as they came.
            heard_s: The time when it came, by the clock *monotonic_s*.
            gap: The reason to report if events that should have come before it are missing.
        """
        name = frame.source.id
        if name not in self.registry.states and len(self.registry.states) >= MAX_SOURCES:
            self.counts["excess"] += 1
            return None
        self.unheard.pop(name, None)  # its own numbers show what is missing
        state = self._state(frame, heard_s)
        self._say(self.registry.hear(state, heard_s))
        self._add(frame, data, state, gap)
        return state

    def on_introduction(self, producer: Producer, snapshot: bytes) -> None:
        """Record the sources whose first events, which describe them, are no longer available."""
        try:
            places = decode_snapshot(snapshot).places
        except DecodeError:
            self.counts["malformed"] += 1
            return
        for place in places:
            state = self.registry.states.get(place.source.id)
            if state is None:
                self._decoder.introduce(place.source)
            else:  # the source has come back, and may have nothing to send yet
                state.producer = producer

    def on_heard(self, producer: Producer, message: Message | None) -> None:
        """Note that the sources behind *producer* are alive: all sources of a rank, or those that a forwarder names."""
        if producer.status.get(FORWARDS):
            if isinstance(message, Beat):
                for event in list(self.registry.hear_all(self.registry.alive_over((), message.status), self._now())):
                    self._say(event)
            return
        now_s = self._now()
        for name in producer.sources:
            self._say(self.registry.hear(self.registry.states[name], now_s))
        if isinstance(message, Bye):
            for name in producer.sources:
                state = self.registry.states[name]
                state.signs.end_reason = state.ended if state.ended is not None else message.reason

    def tick(self, producers: Iterable[Producer]) -> None:
        """Publish the events that are due: of silent sources, of clocks of *producers*, and of limited producers."""
        now_s = self._now()
        if now_s - self._looked_s < _LOOK_INTERVAL_S:
            return
        self._looked_s = now_s
        for event in list(self.registry.silent(now_s, clock.now_ns())):
            self._say(event)
        for producer in producers:
            for compared in clock_news(producer):
                self._say(compared)
            self._report_cut(producer, now_s)

    def status(self) -> dict[str, Any]:
        """Return the status of this process for its beats."""
        return {SOURCE: self.own.source.id, "totals": self.registry.totals()}

    # --- frames -------------------------------------------------------------------------------------------------------

    def _state(self, frame: Frame, now_s: float) -> SourceState:
        return self.registry.state_of(frame.source, now_s)

    def _add(self, frame: Frame, data: bytes, state: SourceState, reason: str = _GIVEN_UP) -> None:
        due = state.tracker.next_seq
        if frame.first_seq > due:
            self._lose(state, due, frame.first_seq - 1, reason)
        elif frame.first_seq <= frame.last_seq < due:
            state.tracker.admit(frame)
            return
        events = self._learn(frame, state)
        if self._log_writer is not None:
            self._log_writer.append(state.source, data, len(frame.events))
            if state.ended is not None:
                self._log_writer.end(state.source)
        self.filtered.add(frame, data, events)

    def _learn(self, frame: Frame, state: SourceState) -> list[Event]:
        missing = state.tracker.missing
        events = state.admit(frame)
        lost = min(state.tracker.missing - missing, MAX_COUNT - self._missed)
        if lost:
            self._missed += lost
            for model in self.models:
                missed = getattr(model, "missed", None)
                if missed is not None:
                    with self._guarded():
                        missed(frame.source, lost)
        self._update_models(events)
        return events

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Run the block so that a failing model affects neither the other models nor the logs."""
        try:
            yield
        except Exception as error:
            if is_from_signal_handler(error):
                raise
            self.counts["failed"] += 1
            self._trouble.complain("a model failed: %s", described(error))

    def _update_models(self, events: Sequence[Event]) -> None:
        for view in views(events):
            for model in self.models:
                with self._guarded():
                    deliver(model, view)

    def _on_loss(self, entry: LossEntry) -> None:
        state = self.registry.states.get(entry.source_id)
        if state is None:
            # No file and no report for a source that has sent nothing: anybody can invent an id.
            if entry.source_id in self.unheard or len(self.unheard) < MAX_UNHEARD_SOURCES:
                self.unheard[entry.source_id] = max(entry.last_seq + 1, self.unheard.get(entry.source_id, 0))
            else:
                self.counts["excess"] += 1
            return
        due = state.tracker.next_seq
        if entry.last_seq >= due:
            first = max(due, entry.first_seq)
            if first > due:
                return  # the frames in between will come, and show what is missing
            self._lose(state, first, entry.last_seq, entry.reason)
            self._learn(Frame(state.source, entry.last_seq + 1, entry.last_seq, {}, []), state)

    def _lose(self, state: SourceState, first_seq: int, last_seq: int, reason: str) -> None:
        if self._log_writer is not None:
            self._log_writer.lose(state.source, last_seq - first_seq + 1, reason)
        self.filtered.lose(LostRange(state.source.id, first_seq, last_seq, reason))
        self._say(
            EventsLost(
                source_id=state.source.id,
                first_seq=first_seq,
                last_seq=last_seq,
                reason=reason,
                span_id=0,
                step=-1,
            )
        )

    # --- what it says itself ------------------------------------------------------------------------------------------

    def publish(self, event: Event) -> None:
        """Publish *event* in this process's own stream."""
        self.own.publish(event)

    def _say(self, event: Event | None) -> None:
        if event is not None:
            self.own.publish(event)

    def _add_own(self, event: Event, data: bytes, seq: int) -> None:
        if not event.derived:
            self._update_models([event])
        if self._log_writer is not None:
            self._log_writer.append(event.source, data, 1)
        self.filtered.add(Frame(event.source, seq, seq, {}, [event]), data, [event])

    def _report_cut(self, producer: Producer, now_s: float) -> None:
        buckets = producer.buckets
        if buckets.cut_messages == producer.cut_reported or now_s - producer.cut_reported_s < _REPORT_CUTS_INTERVAL_S:
            return
        if not self._cuts.take(now_s):  # it is reported later if it is still here
            return
        producer.cut_since_ns = producer.cut_since_ns or clock.now_ns()
        producer.cut_reported, producer.cut_reported_s = buckets.cut_messages, now_s
        self._say(
            PeerCut(
                peer=producer.name,
                reason="it, or those at its address, sent more than the limits",
                messages=buckets.cut_messages,
                size_bytes=buckets.cut_bytes,
                since_ns=producer.cut_since_ns,
                span_id=0,
                step=-1,
            )
        )

    def positions(self) -> Iterator[SourcePosition]:
        """Yield the position of each source, the own stream last."""
        for state in self.registry.states.values():
            yield SourcePosition(state.source, state.tracker.next_seq, state.dropped)
        yield SourcePosition(self.own.source, self.own.next_seq, 0)


_PARTING_S: Final = 0.5


def collector_models(publish: Publish) -> list[Any]:
    """Return the default models of a collector; they publish derived events with *publish*."""
    return [SpanBuilder(), GoodputAccumulator(), ScoreAggregator(publish=publish), CounterBoard(), ClockOffsets()]


class Collector(Service):
    """
    Receives the streams of many ranks, logs them, runs models over all of them, and serves them to viewers.

    ::

        with Collector("tcp://*:7070", publish="tcp://*:7071", log="runs/", keys="keys/") as collector:
            collector.serve()

    Ranks connect to *bind*, viewers attach to *publish*. Each rank's frames are written unchanged to a file of its own,
    which `replay` and every command read. Frames that a rank sent while the collector was away come from the rank's
    ring; those that the ring no longer held are reported as `EventsLost`. A collector that is started again with the
    same *log* reads it first, and continues.

    Args:
        bind: The endpoint that ranks and forwarders connect to.
        publish: The endpoint that viewers attach to; None for none.
        broadcast: The endpoint at which a plain ``zmq.SUB`` gets each frame, without acknowledgements; None for none.
        log: The directory of the logs, and of nothing else; None to keep none.
        keys: A directory of keys with the server's secret and the public keys of all peers that may connect.
        insecure: Allow endpoints without keys where they are required. No verb is accepted there.
        models: The models that read all events; by default spans, goodput, scores, counters and clocks.
        limits: The limits on what one peer may send.
        silent_after_s: The time in seconds after which a rank that sends no sign of life is reported as silent; unless
            given, three of its heartbeat intervals and at least three seconds.
        ring_bytes: The most bytes that are kept for viewers.

    Raises:
        ConfigError: An endpoint is not safe, not free or malformed, or a key is missing.
    """

    streams: CollectedStreams

    def __init__(
        self,
        bind: str,
        *,
        publish: str | None = None,
        broadcast: str | None = None,
        log: str | os.PathLike[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        models: Sequence[Any] | None = None,
        limits: PeerLimits | None = None,
        silent_after_s: float | None = None,
        ring_bytes: int = SERVICE_RING_BYTES,
    ) -> None:
        raise_descriptor_limit(
            sum(one.of_all for one in (PRODUCER_CONNECTIONS, COLLECTOR_VIEWER_CONNECTIONS, PUBLISHER_CONNECTIONS))
        )
        super().__init__()
        options: dict[str, Any] = {"binds": True, "role": SERVER, "keys": keys, "insecure": insecure}
        options["receive_messages"] = WAITING_MESSAGES
        self._receiving = self._connect(bind, limits=PRODUCER_CONNECTIONS, **options)
        if publish is not None:
            self._serving = self._connect(publish, limits=COLLECTOR_VIEWER_CONNECTIONS, **options)
        broadcasting, send = None, None
        if broadcast is not None:
            broadcasting = self._connect(broadcast, broadcasts=True, limits=PUBLISHER_CONNECTIONS, **options)
            send = functools.partial(_broadcast_over, broadcasting)
        self.endpoint: str = self._receiving.endpoint
        """The endpoint that ranks connect to, with the port that was chosen."""
        self.viewer_endpoint: str = self._serving.endpoint if self._serving is not None else ""
        """The endpoint that viewers attach to; empty for none."""
        self.broadcast_endpoint: str = broadcasting.endpoint if broadcasting is not None else ""
        """The endpoint at which a plain ``zmq.SUB`` gets each frame; empty for none."""
        source = Source.detect({}, run_id=COLLECTORS, role="collector")
        self._log_writer = MultiLogWriter(log) if log is not None else None
        registry = SourceRegistry(silent_after_s)
        self.streams = CollectedStreams(
            source,
            collector_models(self._publish) if models is None else models,
            self._log_writer,
            registry,
            monotonic_s=time.monotonic,
            broadcast=send,
        )
        self.restored: Restored = self.streams.restore(log) if log is not None else Restored()
        """The frames, events and problems of the earlier logs that were read."""
        self.receiver: Receiver = Receiver(
            self.streams,
            self._receiving.send,
            on_result=self._on_result,
            limits=limits,
            origin_of=self._receiving.origin,
        )
        if self._serving is not None:
            self._server = self._open_server(self._serving, ring_bytes)

    def _publish(self, event: Event) -> None:
        self.streams.publish(event)

    def _open_server(self, connection: Connection, ring_bytes: int) -> StreamServer:
        server = StreamServer(
            self.streams.filtered,
            connection.send,
            budget=RingBudget(ring_bytes, RING_S),
            most_viewers=MAX_COLLECTOR_VIEWERS,
            on_verb=self._on_verb,
        )
        self._verbs = VerbForwarder(
            self.receiver,
            self.streams.registry,
            answer=server.answer,
            publish=self.streams.publish,
            source_id=self.streams.own.source.id,
        )
        return server

    @property
    def models(self) -> list[Any]:
        """The models, over all events that were received."""
        return self.streams.models

    def totals(self) -> dict[str, int]:
        """
        Return the counts: sources, silent and ended ones among them, events, lost, repeated, dropped, peers and others.

        ``lost`` counts events with a number that did not come and can no longer come; ``repeated`` those that came more
        than once, and count once; ``dropped`` those that the job dropped before they had a number.
        """
        collection = self.streams
        refused = self._log_writer.stats()["refused_events"] if self._log_writer is not None else 0
        totals = collection.registry.totals()
        return {
            **totals,
            "lost": min(totals["lost"] + sum(collection.unheard.values()), MAX_COUNT),
            "peers": len(self.receiver.producers),
            "viewers": len(self._server.viewers) if self._server is not None else 0,
            "malformed": collection.counts["malformed"] + self.receiver.counts["malformed"],
            "cut": self.receiver.counts["cut"],
            "not_logged": refused,
        }

    def close(self, timeout_s: float = 5.0) -> bool:
        """
        Say goodbye, and write everything; safe to call twice.

        Returns:
            Whether everything is in the logs.
        """
        if not self._begin_close():
            return self._closed_whole
        if self._server is not None and self._serving is not None:
            self._drain(self._server, self._serving, _PARTING_S)
            self._server.part("closed")
        self._closed_whole = self._log_writer.close(timeout_s) if self._log_writer is not None else True
        self._disconnect()
        return self._closed_whole

    def _on_verb(self, address: bytes, verb: Verb, user: str) -> None:
        assert self._serving is not None and self._verbs is not None  # noqa: PT018  verbs come from there
        safety = self._serving.safety
        by = user or "this machine"
        if may_command(safety, user):
            self._verbs.pass_on(address, verb, by, time.monotonic(), {"totals": self.totals()})
        else:
            self._verbs.refuse(address, verb, by)


def _broadcast_over(connection: Connection, source: Source, frame: bytes) -> None:
    connection.send(topic_of(source), (frame,))


def topic_of(source: Source) -> bytes:
    """Return the topic under which the frames of *source* are broadcast: its run and rank, as in ``demo/3/``."""
    return f"{source.run_id}/{source.rank}/".encode()
