"""A sink that writes events as lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from trackside.events import ConfigError, Event, RunsOn, clock
from trackside.events._settings import suggests_settings
from trackside.handlers.eventlog import Appender, create_file
from trackside.wire import to_json

_WRITE_BYTES = 64 << 10
_PART = ".part"
LOST_TYPE = "trackside.sink.lost"


@suggests_settings()
class JsonlSink:
    """
    Writes one JSON object per line.

    Its keys are ``source``, ``rank``, ``seq``, ``time_ns``, ``span_id``, ``step``, ``type`` and ``fields``.

    A file has the suffix ``.part`` while it is written, and loses it when it is finished, so a file without the suffix
    never ends in a torn line. Lines that the disk refuses wait, up to *buffer_bytes*, and are tried again as events
    come. Lost events are counted, and reported by a line of type ``trackside.sink.lost`` at the place where they are
    missing.

    Args:
        path: The file; further parts are called ``events.0001.jsonl`` and so on. No existing file is overwritten:
            the next free number is taken.
        rotate_bytes: A part that has reached this size is finished and the next begun; at least 64 KiB.
        fsync_s: The age in seconds at which written lines are forced to the device, from 0; finished parts always
            are. None leaves both to the kernel.
        buffer_bytes: The most bytes that may wait for the disk; at least 64 KiB.

    Raises:
        ConfigError: *path* is a directory, or a number is out of range.
    """

    runs_on = RunsOn.WORKER

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rotate_bytes: int = 256 << 20,
        fsync_s: float | None = 5.0,
        buffer_bytes: int = 8 << 20,
    ) -> None:
        self.path: Path = Path(path).absolute()
        if os.path.isdir(self.path):  # noqa: PTH112  it answers where Path.is_dir may raise
            raise ConfigError("path", str(path), "it is a directory; name a file in it")
        for name, given in (("rotate_bytes", rotate_bytes), ("buffer_bytes", buffer_bytes)):
            if given < _WRITE_BYTES:
                raise ConfigError(name, given, f"give at least {_WRITE_BYTES} bytes")
        if fsync_s is not None and fsync_s < 0:
            raise ConfigError("fsync_s", fsync_s, "give seconds from 0, or None")
        self.lost: int = 0
        """Events that are in no file: refused by the disk, too long, or in a file that vanished."""
        self._buffer_bytes = buffer_bytes
        self._appender = Appender(
            self.path.parent,
            lambda part: self._name(part) + _PART,
            rotate_bytes=rotate_bytes,
            fsync_s=fsync_s,
            create=self._create_new,
        )
        self._lines: list[bytes] = []
        self._events = 0
        self._size_bytes = 0
        self._finished: list[Path] = []
        self._is_closed = False
        self._unsaid = 0
        self._unsaid_bytes = 0
        self._unsaid_since_ns = 0
        self._reason = ""
        self._trouble = ""
        """The reason why the disk refused the last write; empty if it did not."""

    @property
    def paths(self) -> list[Path]:
        """The files written so far, by their present names."""
        return self._finished + self._appender.paths[len(self._finished) :]

    def __call__(self, event: Event) -> None:
        """Append *event*; called on the sink worker's thread."""
        line = to_json(event).encode() + b"\n"
        self._is_closed = False  # a closed sink that is subscribed again continues in another part
        if self._size_bytes + len(line) > self._buffer_bytes:
            self._write()  # `idle` is not called while events come without a pause
        if self._size_bytes + len(line) > self._buffer_bytes:
            self._give_up(1, len(line), self._trouble or f"a line of {len(line)} bytes")
            return
        self._say_lost()
        self._lines.append(line)
        self._events += 1
        self._size_bytes += len(line)
        if self._size_bytes >= _WRITE_BYTES:
            self._write()

    def idle(self) -> None:
        """Write the waiting lines; the sink worker calls this whenever its queue is empty."""
        self._write()
        self._appender.sync_if_due()

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  writing to a file cannot be cut short
        """Write all waiting lines; False if the disk refused them, or a file vanished."""
        lost = self.lost
        self._write(insist=True)
        return not self._lines and not self._unsaid and self.lost == lost

    def close(self, timeout_s: float) -> bool:
        """Write everything and finish the file; False if the disk refused it, now or before."""
        if not self._is_closed:
            self._is_closed = True
            self.flush(timeout_s)
            if self._lines:
                self._give_up(self._events, self._size_bytes, self._trouble)
                self._forget_lines()
            self._appender.finish()
            self._rename_finished(len(self._appender.paths))
        return not self.lost

    def _write(self, *, insist: bool = False) -> None:
        while self._lines or self._unsaid:
            if not self._lines:
                self._say_lost()
            outcome = self._appender.write(b"".join(self._lines), events=self._events, insist=insist)
            if outcome:
                self._trouble = ""
                self._forget_lines()
            elif outcome.vanished is not None:
                vanished = outcome.vanished
                self._say_lost()  # events lost since then belong after the waiting lines
                self._give_up(vanished.events, vanished.size_bytes, f"{vanished.path.name} vanished")
                self._say_lost(first=True)
            else:
                error = outcome.error
                self._trouble = (error.strerror or str(error)) if error is not None else ""
                break
        # The last file is open; those before it are finished.
        self._rename_finished(len(self._appender.paths) - 1)

    def _forget_lines(self) -> None:
        self._lines.clear()
        self._events = 0
        self._size_bytes = 0

    def _give_up(self, events: int, size_bytes: int, reason: str) -> None:
        if not self._unsaid:
            self._unsaid_since_ns = clock.now_ns()
        self._reason = reason
        self.lost += events
        self._unsaid += events
        self._unsaid_bytes += size_bytes

    def _say_lost(self, *, first: bool = False) -> None:
        """Add a line that reports the lost events, at the place where they are missing."""
        if not self._unsaid:
            return
        fields = {
            "events": self._unsaid,
            "bytes": self._unsaid_bytes,
            "reason": self._reason,
            "since_ns": self._unsaid_since_ns,
        }
        line = {"time_ns": clock.now_ns(), "type": LOST_TYPE, "fields": fields}
        self._lines.insert(0 if first else len(self._lines), json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._unsaid = self._unsaid_bytes = 0

    # --- names -------------------------------------------------------------------------------------------------

    def _name(self, part: int) -> str:
        return self.path.name if part == 0 else f"{self.path.stem}.{part:04d}{self.path.suffix}"

    def _create_new(self, directory: Path, name: str) -> int:
        finished = directory / name[: -len(_PART)]
        if os.path.lexists(finished):
            raise FileExistsError(name)
        fd = create_file(directory, name)
        if os.path.lexists(finished):  # another process finished the part of that name just now
            os.close(fd)
            (directory / name).unlink(missing_ok=True)
            raise FileExistsError(name)
        return fd

    def _rename_finished(self, count: int) -> None:
        for path in self._appender.paths[len(self._finished) : count]:
            self._finished.append(_finished(path))


def _finished(path: Path) -> Path:
    """Remove the suffix of *path* unless the file is torn; return the resulting path."""
    target = path.with_name(path.name[: -len(_PART)])
    # If the file vanished, or the directory became read-only, the suffix stays.
    with contextlib.suppress(OSError):
        if _ends_whole(path) and not os.path.lexists(target):
            path.rename(target)
            return target
    return path


def _ends_whole(path: Path) -> bool:
    """Return whether *path* ends in a whole line: a failed write may have left a part that could not be removed."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        if not size_bytes:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
