"""The event logs of many sources: written on one thread, and read back after a restart."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Final

import attrs

from trackside.core import described
from trackside.events import Source, UnreadableError, clock
from trackside.handlers.eventlog._appender import Appender
from trackside.handlers.eventlog._format import Loss
from trackside.handlers.eventlog._reader import LogReader, find_files, source_files
from trackside.handlers.eventlog._writer import RecordWriter, WaitingFrame, WriteBuffer, log_name
from trackside.wire import Frame, FrameDecoder

FLUSH_S: Final = 0.5
BUFFER_BYTES: Final = 256 << 20
MOST_OPEN: Final = 1024
ROTATE_BYTES: Final = 256 << 20
_WAKE_BYTES: Final = 4 << 20
_CHUNK_BYTES: Final = 1 << 18
_COMPLAIN_EVERY_S: Final = 60.0

_logger = logging.getLogger("trackside")


@attrs.define(eq=False)
class _SourceLog:
    """One source's file."""

    buffer: WriteBuffer
    appender: Appender
    series: RecordWriter
    is_ended: bool = False


class MultiLogWriter:
    """
    Writes the frames of many sources as an `EventLog` in each of them would: byte for byte, a file for each.

    Frames are handed over and never waited for. What has no room while the disk is slow is counted, and named in the
    file in the place where it is missing.

    Args:
        directory: Where the logs go; made if it does not exist.
        buffer_bytes: How much may wait for the disk, of all sources together.
        fsync_s: Force what was written to the device when it is older than this; None leaves that to the kernel.
        most_open: Files held open; those not written for longest are closed and opened again when needed.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        buffer_bytes: int = BUFFER_BYTES,
        fsync_s: float | None = 5.0,
        flush_s: float = FLUSH_S,
        most_open: int = MOST_OPEN,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.refused_events = 0
        """Events that no file has, because the disk was too slow or full for too long."""
        self._buffer_bytes = buffer_bytes
        self._fsync_s = fsync_s
        self._flush_s = flush_s
        self._most_open = most_open
        self._logs: dict[str, _SourceLog] = {}
        self._dirty: dict[str, _SourceLog] = {}
        self._open: OrderedDict[str, _SourceLog] = OrderedDict()
        self._waiting_bytes = 0
        self._finished_files = 0
        self._finished_bytes = 0
        self._changed = threading.Condition()
        self._asked = 0
        self._answered = 0
        self._is_closing = False
        self._complained_s = -_COMPLAIN_EVERY_S
        self._thread = threading.Thread(target=self._work, name="trackside log_writer", daemon=True)
        self._thread.start()

    def take(self, source: Source, frame: bytes, events: int) -> bool:
        """Have *frame* written to the file of *source*; False, and counted, if there is no room for it."""
        with self._changed:
            log = self._log(source)
            with log.buffer.changed:
                if self._waiting_bytes + len(frame) > self._buffer_bytes:
                    log.buffer.refuse(frame, events, log.buffer.trouble or "the disk is slower than the stream")
                    self.refused_events += events
                    return False
                is_taken = log.buffer.put(frame, events)
            self._waiting_bytes += len(frame)
            self._dirty[source.id] = log
            if self._waiting_bytes >= _WAKE_BYTES:
                self._changed.notify_all()
            return is_taken

    def lose(self, source: Source, events: int, reason: str) -> None:
        """Have it written that *events* of *source* are missing here."""
        with self._changed:
            log = self._log(source)
            with log.buffer.changed:
                log.buffer.note(Loss(events, 0, reason, clock.now_ns()))
            self._dirty[source.id] = log

    def end(self, source: Source) -> None:
        """Have the file of *source* finished: nothing more is expected of it. If it does come, a new part begins."""
        with self._changed:
            log = self._logs.get(source.id)
            if log is not None:
                log.is_ended = True
                self._dirty[source.id] = log

    def flush(self, timeout_s: float = 2.0) -> bool:
        """Write what was taken; False if that is not done in time or the disk refuses it."""
        with self._changed:
            self._asked += 1
            ticket = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= ticket, timeout_s)
            return self._answered >= ticket and not self._waiting_bytes

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what was taken and finish every file; True if all of it was written."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self._waiting_bytes

    def stats(self) -> dict[str, int]:
        """Return the counts: files, bytes written and waiting, events refused."""
        with self._changed:
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
            log = _SourceLog(WriteBuffer(self._buffer_bytes, clock.now_ns), appender, RecordWriter(appender, source))
            self._logs[source.id] = log
        return log

    # --- on the thread ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                self._changed.wait_for(self._is_wanted, self._flush_s)
                asked, is_last = self._asked, self._is_closing
                dirty, self._dirty = self._dirty, {}
                insist = is_last or asked > self._answered
            for name, log in dirty.items():
                self._write(name, log, insist=insist)
            for log in list(self._open.values()):
                log.appender.sync_if_due()
            if is_last:
                for log in list(self._logs.values()):
                    log.series.finish()
            with self._changed:
                self._answered = asked
                self._changed.notify_all()

    def _is_wanted(self) -> bool:
        return self._is_closing or self._asked > self._answered or self._waiting_bytes >= _WAKE_BYTES

    def _write(self, name: str, log: _SourceLog, *, insist: bool) -> None:
        """Write what waits of one source, and survive whatever happens."""
        try:
            self._drain(log, insist=insist)
        except Exception as error:  # nobody else writes the others
            log.buffer.trouble = repr(error)
        if log.buffer.waiting_events or log.buffer.size_bytes:
            with self._changed:
                self._dirty.setdefault(name, log)
            self._complain(log)
        elif log.is_ended:
            self._finish(name, log)
            return
        self._open[name] = log
        self._open.move_to_end(name)
        while len(self._open) > self._most_open:
            self._open.popitem(last=False)[1].appender.park()

    def _finish(self, name: str, log: _SourceLog) -> None:
        with self._changed:
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
            with self._changed:
                self._waiting_bytes -= sum(len(entry.frame) for entry in entries if isinstance(entry, WaitingFrame))

    def _complain(self, log: _SourceLog) -> None:
        now_s = time.monotonic()
        if now_s - self._complained_s < _COMPLAIN_EVERY_S:
            return
        self._complained_s = now_s
        with contextlib.suppress(Exception):  # a logging handler
            _logger.warning(
                "logs below %s: %s; %d bytes wait, %d events are lost so far",
                self.directory,
                log.buffer.trouble or "the disk is slower than the stream",
                self._waiting_bytes,
                self.refused_events,
            )


@attrs.define
class Restored:
    """What was read."""

    frames: int = 0
    events: int = 0
    problems: list[UnreadableError] = attrs.field(factory=list)
    """Files that were not read, and why."""


def restore(directory: str | os.PathLike[str], decoder: FrameDecoder, take: Callable[[Frame], object]) -> Restored:
    """
    Give every frame in the logs below *directory* to *take*: those of one source in order, one source after the other.

    A directory that does not exist, or holds no log, is nothing to read.
    """
    found = Restored()
    if not Path(directory).is_dir():
        return found
    files, _ = find_files([directory])
    for strand in source_files(files, decoder, found.problems):
        for file in strand:
            reader = LogReader(file.path, decoder)
            try:
                for item in chain(reader.read(), reader.finish()):
                    if isinstance(item, Frame):
                        found.frames += 1
                        found.events += len(item.events)
                        take(item)
            except UnreadableError as problem:
                found.problems.append(problem)
            except Exception as error:  # it was written by some peer
                found.problems.append(
                    UnreadableError(str(file.path), described(error), "the rest of it is passed over")
                )
    return found
