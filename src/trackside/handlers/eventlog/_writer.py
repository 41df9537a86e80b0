"""The event log: frames from the dispatcher are written to files on a thread of its own."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from trackside.core import RateLimitedLog, Worker, complain
from trackside.events import ConfigError, Source, clock
from trackside.events._settings import suggests_settings
from trackside.handlers.eventlog._appender import DONE, Appender, Vanished, WriteOutcome
from trackside.handlers.eventlog._format import (
    MAX_PAYLOAD_BYTES,
    SUFFIX,
    Ending,
    Kind,
    Loss,
    encode_ending,
    encode_header,
    encode_loss,
    encode_record,
)

HEADER_EVERY_BYTES = 8 << 20


class WaitingFrame(NamedTuple):
    """A frame that waits to be written."""

    frame: bytes
    events: int


Entry: TypeAlias = WaitingFrame | Loss | Source
"""A `Source` describes the stream anew from here on."""


class RecordWriter:
    """
    Writes entries as records through an appender.

    A write that fails leaves the numbering where it was, so the sequence numbers on disk have no holes.
    """

    def __init__(self, appender: Appender, source: Source) -> None:
        self.records = 0
        """Records written, in all parts."""
        self.source = source
        """The source that the header of the next part names."""
        self._appender = appender
        self._stream = int.from_bytes(os.urandom(2), "little")
        self._since_header = 0

    def write(self, entries: Sequence[Entry], *, insist: bool = False) -> WriteOutcome:
        """Write all *entries* or none, like `Appender.write`. A `Source` must be alone; it begins another part."""
        appender = self._appender
        if isinstance(entries[0], Source):
            self.source = entries[0]
            if appender.size_bytes:
                self._end(Ending(is_continued=True))
            return DONE
        if appender.is_full:
            self._end(Ending(is_continued=True))
        outcome = appender.ready(insist=insist)
        if not outcome:
            return outcome
        chunk, since_header = self._encode(entries)
        events = sum(entry.events for entry in entries if isinstance(entry, WaitingFrame))
        outcome = appender.write(b"".join(chunk), events=events, insist=insist)
        if outcome:
            self.records += len(chunk)
            self._since_header = since_header
        return outcome

    def finish(self) -> None:
        """Mark the open part as the last and close it."""
        self._end(Ending(is_continued=False))

    def _end(self, ending: Ending) -> None:
        is_begun = self._appender.size_bytes > 0
        record = self._record(Kind.END, encode_ending(ending), self.records)
        self.records += bool(self._appender.finish(record if is_begun else b"")) and is_begun

    def _encode(self, entries: Sequence[Entry]) -> tuple[list[bytes], int]:
        chunk: list[bytes] = []
        size = self._appender.size_bytes
        since_header = self._since_header if size else HEADER_EVERY_BYTES
        for entry in entries:
            if since_header >= HEADER_EVERY_BYTES:
                header = encode_header(self.source, self._appender.part)
                chunk.append(self._record(Kind.HEADER, header, self.records + len(chunk)))
                since_header = 0
            if isinstance(entry, WaitingFrame):
                kind, payload = Kind.FRAME, entry.frame
            elif isinstance(entry, Loss):
                kind, payload = Kind.GAP, encode_loss(entry)
            else:  # a description comes alone
                continue
            chunk.append(self._record(kind, payload, self.records + len(chunk)))
            since_header += len(chunk[-1])
        return chunk, since_header

    def _record(self, kind: Kind, payload: bytes, sequence: int) -> bytes:
        return encode_record(kind, payload, sequence=sequence, stream=self._stream)


class WriteBuffer:
    """
    A queue of frames, bounded in bytes, that records what it refused.

    Refused frames become a `Loss` in the place where they are missing. A frame takes room until it is written:
    `batch` returns the oldest entries, and `settle` removes them afterwards.

    Args:
        most_bytes: The most that may wait.
        now_ns: The clock, in ns since the epoch.
        lock: The writer's, which guards all state here.
    """

    def __init__(self, most_bytes: int, now_ns: Callable[[], int], lock: threading.RLock) -> None:
        self.lock = lock
        self.size_bytes = 0
        self.taken = 0
        """Frames accepted so far."""
        self.settled = 0
        """Accepted frames that were written."""
        self.waiting_events = 0
        self.refused_events = 0
        self.trouble = ""
        """The reason why nothing is being written; empty if it is."""
        self._most_bytes = most_bytes
        self._now_ns = now_ns
        self._entries: deque[Entry] = deque()
        self._refused: Loss | None = None

    def put(self, frame: bytes, events: int) -> bool:
        """Append *frame* if there is room; the caller holds `lock`."""
        if self.size_bytes + len(frame) > self._most_bytes:
            self.refuse(frame, events, self.trouble or "the disk is slower than the stream")
            return False
        self._place_refused()
        self._entries.append(WaitingFrame(frame, events))
        self.size_bytes += len(frame)
        self.waiting_events += events
        self.taken += 1
        return True

    def refuse(self, frame: bytes, events: int, reason: str) -> None:
        """Count *frame* as lost here; the caller holds `lock`."""
        self.refused_events += events
        loss = self._refused
        if loss is None:
            loss = self._refused = Loss(0, 0, reason, self._now_ns())
        loss.events += events
        loss.size_bytes += len(frame)

    def note(self, loss: Loss) -> None:
        """Append *loss*, which happened before the frames reached the log; the caller holds `lock`."""
        self._place_refused()
        self._entries.append(loss)

    def describe(self, source: Source) -> None:
        """Append *source* as the description of the source from here on; the caller holds `lock`."""
        self._place_refused()
        self._entries.append(source)

    def put_first(self, loss: Loss) -> None:
        """Put *loss* before all waiting entries."""
        with self.lock:
            self._entries.appendleft(loss)

    def batch(self, most_bytes: int) -> list[Entry]:
        """
        Return the oldest entries, about *most_bytes* in all, and at least one if there is any.

        A description of the source is returned alone.
        """
        with self.lock:
            self._join_refused()
            self._place_refused()
            chosen: list[Entry] = []
            size = 0
            for entry in self._entries:
                if isinstance(entry, Source) and chosen:
                    break
                chosen.append(entry)
                if isinstance(entry, Source):
                    break
                size += len(entry.frame) if isinstance(entry, WaitingFrame) else 0
                if size >= most_bytes:
                    break
            return chosen

    def settle(self, entries: list[Entry]) -> None:
        """Remove *entries*, which are the oldest ones and were written."""
        with self.lock:
            for entry in entries:
                self._entries.popleft()
                if isinstance(entry, WaitingFrame):
                    self.size_bytes -= len(entry.frame)
                    self.waiting_events -= entry.events
                    self.settled += 1

    def _join_refused(self) -> None:
        """Add the refused frames to the last entry if that is a loss with the same reason."""
        last = self._entries[-1] if self._entries else None
        refused = self._refused
        if refused is not None and isinstance(last, Loss) and last.reason == refused.reason:
            last.events += refused.events
            last.size_bytes += refused.size_bytes
            self._refused = None

    def _place_refused(self) -> None:
        if self._refused is not None:
            self._entries.append(self._refused)
            self._refused = None


_CHUNK_BYTES = 1 << 18
_WAKE_BYTES = 1 << 20


def log_name(source: Source, part: int) -> str:
    """Return the path of a log file below its directory: a directory per run, a file per process and part."""
    run = re.sub(r"[^A-Za-z0-9._-]+", "-", source.run_id)[:100].strip("-.") or "run"
    process = re.sub(r"[^A-Za-z0-9]+", "-", source.id)[:8] or "source"
    return f"{run}/rank-{source.rank:05d}.attempt-{source.attempt}.{process}.{part:04d}{SUFFIX}"


@suggests_settings()
class EventLog:
    """
    Writes every frame to ``<directory>/<run>/rank-00000.attempt-0.<process>.0000.tslog``.

    The dispatcher hands frames over and never waits; a daemon thread, started with the first frame, writes them.
    Frames that the disk refuses wait in the buffer and are tried again. Frames that do not fit into the buffer are
    refused and counted, and the file records the loss at their place. After `flush` returned True, all frames accepted
    before survive the death of the process. Without `flush`, a kill loses the events of the last *flush_s*, and of the
    0.4 s that a frame may take to reach the log.

    Args:
        directory: Made for this user alone when the first frame is written, if it does not exist.
        fsync_s: The age in seconds at which written frames are forced to the device. 0 forces them after every
            write, None leaves it to the kernel; then only a loss of power can lose them.
        rotate_bytes: A file that has reached this size is finished and another part begun; at least 1 MiB.
        buffer_bytes: The most bytes that may wait for the disk; at least 1 MiB.
        flush_s: The longest time that a frame waits before it is written, in seconds, above 0.

    Raises:
        ConfigError: *directory* or a parent of it exists and is not a directory, or a number is out of range.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        fsync_s: float | None = 5.0,
        rotate_bytes: int = 256 << 20,
        buffer_bytes: int = 32 << 20,
        flush_s: float = 0.4,
    ) -> None:
        self.directory: Path = Path(directory).absolute()
        _check_directory(self.directory)
        _require(fsync_s is None or fsync_s >= 0, "fsync_s", fsync_s, "give seconds from 0, or None")
        for name, given in (("rotate_bytes", rotate_bytes), ("buffer_bytes", buffer_bytes)):
            _require(given >= MAX_PAYLOAD_BYTES, name, given, f"give at least {MAX_PAYLOAD_BYTES}, the largest frame")
        _require(flush_s > 0, "flush_s", flush_s, "give seconds above 0")
        self._fsync_s = fsync_s
        self._rotate_bytes = rotate_bytes
        self._buffer_bytes = buffer_bytes
        self._flush_s = flush_s
        self._wake_bytes = min(_WAKE_BYTES, buffer_bytes // 4)
        self._source: Source | None = None
        self._begin()

    def _begin(self) -> None:
        """Set the initial state, from which a forked child starts too."""
        self._worker = Worker(self._work, name="event-log", pause_s=self._pause_s, is_wanted=self._is_wanted)
        self._buffer = WriteBuffer(self._buffer_bytes, clock.now_ns, self._worker.lock)
        self._appender: Appender | None = None
        self._series: RecordWriter | None = None
        self._is_overdue = False
        self._vanished_events = 0
        self._vanished_bytes = 0
        self._unwritten_events = 0
        self._faults = 0
        self._log = RateLimitedLog()

    @property
    def paths(self) -> list[Path]:
        """The files written so far."""
        return list(self._appender.paths) if self._appender else []

    @property
    def lost(self) -> int:
        """The number of accepted events that are in no file: the file vanished, or they were not written by the end."""
        return self._vanished_events + self._unwritten()

    def _unwritten(self) -> int:
        """Return how many events were not written by the end; after the timeout of `close`, all that still wait."""
        is_late = self._is_overdue and not self._worker.is_closed
        return self._buffer.waiting_events if is_late else self._unwritten_events

    def open(self, source: Source) -> None:
        """
        Set the source of the frames. The file is made when the first frame is written.

        A second call describes the same source anew: later frames go to another part of the log, whose header has the
        new description.

        Raises:
            ConfigError: *source* cannot be written.
        """
        encode_header(source, 0)
        self._source = source
        if self._series is not None:
            with self._buffer.lock:
                self._buffer.describe(source)
            return
        self._appender = Appender(self.directory, self._name_of, rotate_bytes=self._rotate_bytes, fsync_s=self._fsync_s)
        self._series = RecordWriter(self._appender, source)

    def _name_of(self, part: int) -> str:
        assert self._series is not None
        return log_name(self._series.source, part)

    def accept(self, frame: bytes, *, events: int) -> bool:
        """Accept *frame* for writing; False if there is no room, or it cannot be written at all."""
        buffer = self._buffer
        with buffer.lock:
            if self._worker.is_closing or self._series is None:
                buffer.refuse(frame, events, "the log is closed")
                return False
            if len(frame) > MAX_PAYLOAD_BYTES:
                buffer.refuse(frame, events, f"a frame of {len(frame)} bytes")
                return False
            is_taken = buffer.put(frame, events)
            if buffer.size_bytes >= self._wake_bytes:
                self._worker.wake()
            self._worker.start()
        return is_taken

    def flush(self, timeout_s: float = 2.0) -> bool:
        """
        Write all accepted frames; True once they are in the kernel, and so survive the death of this process.

        False if that takes longer than *timeout_s* seconds, if the disk refuses a frame, or if a file vanished with
        the frames in it.
        """
        if self._worker.is_current:  # a logging handler that flushes while it handles our report
            return False
        buffer = self._buffer
        with buffer.lock:
            due, lost = buffer.taken, self._vanished_events
        self._worker.flush(timeout_s)
        with buffer.lock:
            return buffer.settled >= due and lost == self._vanished_events and not self._unwritten_events

    def close(self, timeout_s: float = 2.0) -> bool:
        """Write all accepted frames, finish the file and stop; True if all were written. Safe to call twice."""
        self._worker.close(timeout_s)
        with self._buffer.lock:
            self._is_overdue = True  # what still waits now counts as lost, even if the disk recovers
            return not self._buffer.waiting_events and not self._unwritten_events and not self._vanished_events

    def after_fork(self, source: Source) -> None:
        """Start empty in a forked child, with a file of its own; the parent's file is left alone."""
        inherited = self._appender
        self._begin()
        if inherited is not None:
            inherited.abandon()
        self.open(source)

    def losses(self) -> dict[str, int]:
        """Return how many of the events offered to this log are in no file, by reason."""
        return {
            "refused": self._buffer.refused_events,
            "vanished": self._vanished_events,
            "unwritten": self._unwritten(),
        }

    def stats(self) -> dict[str, int | str]:
        """Return the counts: bytes and records written, events that wait or are lost, errors and the last of them."""
        appender = self._appender
        error = appender.last_error if appender else None
        return {
            "bytes": appender.written_bytes if appender else 0,
            "records": self._series.records if self._series else 0,
            "files": len(self.paths),
            "waiting_events": self._buffer.waiting_events,
            "waiting_bytes": self._buffer.size_bytes,
            "refused_events": self._buffer.refused_events,
            "vanished_events": self._vanished_events,
            "vanished_bytes": self._vanished_bytes,
            "unwritten_events": self._unwritten_events,
            "write_errors": (appender.errors if appender else 0) + self._faults,
            "last_error": str(error) if error else "",
        }

    # --- on the worker's thread ---------------------------------------------------------------------------------------

    def _is_wanted(self) -> bool:
        return not self._buffer.trouble and self._buffer.size_bytes >= self._wake_bytes

    def _pause_s(self) -> float:
        rest_ns = self._appender.rest_ns if self._appender else 0
        return rest_ns / 1e9 if rest_ns else self._flush_s

    def _work(self, *, insist: bool, is_last: bool) -> None:
        """Write the waiting entries, and never raise."""
        if self._series is None or self._appender is None:  # closed before it was opened
            return
        try:
            self._drain(self._series, self._appender, insist=insist)
            if is_last:
                self._finish(self._series)
        except Exception as error:  # it is counted, and the next round tries again
            self._faults += 1
            self._buffer.trouble = repr(error)
            self._report()
        finally:
            if is_last:
                self._unwritten_events = self._buffer.waiting_events

    def _drain(self, series: RecordWriter, appender: Appender, *, insist: bool) -> None:
        buffer = self._buffer
        due = buffer.taken
        while True:
            entries = buffer.batch(_CHUNK_BYTES) if buffer.settled <= due else []
            if entries:
                outcome = series.write(entries, insist=insist)
                if outcome:
                    buffer.settle(entries)
                    buffer.trouble = ""
                elif not self._recover(outcome, appender):
                    break
            elif (vanished := appender.check()) is not None:
                self._lose(vanished)
            else:
                break
        appender.sync_if_due()

    def _recover(self, outcome: WriteOutcome, appender: Appender) -> bool:
        """Record a failed write; return whether to try again at once."""
        if outcome.vanished is not None:
            self._lose(outcome.vanished)
            return True
        self._buffer.trouble = str(outcome.error)
        self._report()
        return appender.rest_ns == 0

    def _lose(self, vanished: Vanished) -> None:
        self._vanished_events += vanished.events
        self._vanished_bytes += vanished.size_bytes
        reason = f"{vanished.path.name} vanished"
        self._buffer.put_first(Loss(vanished.events, vanished.size_bytes, reason, clock.now_ns()))
        self._report(reason)

    def _finish(self, series: RecordWriter) -> None:
        """Close the file; entries that still wait will not be written."""
        if self._buffer.waiting_events:
            self._report(at_once=True)
        series.finish()

    def _report(self, reason: str = "", *, at_once: bool = False) -> None:
        """Report trouble: once a minute, or *at_once*."""
        report = complain if at_once else self._log.complain
        report(
            "event log %s: %s; %d events wait, %d are lost so far",
            self.directory,
            reason or self._buffer.trouble or "closed before all was written",
            self._buffer.waiting_events,
            sum(self.losses().values()),
        )


def _require(is_right: object, field: str, given: object, remedy: str) -> None:
    if not is_right:
        raise ConfigError(field, given, remedy)


def _check_directory(directory: Path) -> None:
    """Raise if *directory* can never become a directory; any other problem with it is handled when it is written."""
    for path in (directory, *directory.parents):
        if os.path.isdir(path):  # noqa: PTH112  it answers where Path.is_dir may raise
            return
        if os.path.lexists(path):
            raise ConfigError("directory", str(directory), f"{path} is no directory; name another or remove it")
