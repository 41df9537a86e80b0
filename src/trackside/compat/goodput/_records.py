"""A job's records in local files, where the peer has a log in the cloud."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from trackside.bus import Bus
from trackside.events import ITERATION, Event, Handler, RunsOn, event
from trackside.handlers.eventlog import Appender

VARIABLE: Final = "TRACKSIDE_GOODPUT_DIR"
_DEFAULT: Final = "goodput"
_SUFFIX: Final = ".jsonl"
_MOST_LINES: Final = 1_000
_MOST_BYTES: Final = 8 << 20
_FLUSH_S: Final = 10.0

Payload = dict[str, Any]


class Log(Protocol):
    """What the recorder writes to and the calculator reads from."""

    def write_cloud_logging_entry(self, entry: Payload) -> None:
        """Append a record."""

    def flush(self) -> None:
        """Return when all that was appended can be read."""


@event("trackside.compat.goodput.recorded", priority=ITERATION)
class Recorded(Event):
    """A record was made. Published by the recorder, for the file alone."""

    payload: dict[str, Any]


class _Lines:
    """Writes records as lines, on a thread of its own."""

    runs_on = RunsOn.WORKER

    def __init__(self, directory: Path, name: str) -> None:
        stem = f"{name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._appender = Appender(directory, lambda part: f"{stem}.{part}{_SUFFIX}")
        self._lines: list[bytes] = []
        self._size_bytes = 0
        self.lost = 0

    def __call__(self, event: Recorded) -> None:
        line = json.dumps(event.payload, separators=(",", ":"), default=str).encode() + b"\n"
        if self._size_bytes + len(line) > _MOST_BYTES:  # the disk has refused that much
            self.lost += 1
            return
        self._lines.append(line)
        self._size_bytes += len(line)
        if len(self._lines) >= _MOST_LINES:
            self._write()

    def idle(self) -> None:
        self._write()

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  writing to a file cannot be cut short
        return self._write(insist=True) and not self.lost

    def close(self, timeout_s: float) -> bool:
        done = self.flush(timeout_s)
        self._appender.finish()
        return done

    def _write(self, *, insist: bool = False) -> bool:
        if self._lines and self._appender.write(b"".join(self._lines), events=len(self._lines), insist=insist):
            self._lines.clear()
            self._size_bytes = 0
        return not self._lines


class WrittenLog(ABC):
    """
    A log that takes records on a thread of its own: a write takes no longer than publishing an event.

    Args:
        job_name: The job; records of another are dropped, as the peer does.
    """

    def __init__(self, job_name: str) -> None:
        self.job_name = job_name
        self._bus: Bus | None = None

    @abstractmethod
    def _sink(self) -> Handler:
        """Return what writes the records, at the first one."""

    def write_cloud_logging_entry(self, entry: Payload) -> None:
        """Append a record."""
        if entry is None or entry.get("job_name") != self.job_name:
            return
        if self._bus is None:
            self._bus = Bus()
            self._bus.subscribe(self._sink(), to=Recorded)
        self._bus.log(Recorded(payload=entry))

    def flush(self) -> None:
        """Return when all that was appended is written, or after 10 s."""
        if self._bus is not None:
            self._bus.flush(_FLUSH_S)

    def close(self) -> None:
        """Write what is left and stop; so does the end of the process."""
        if self._bus is not None:
            self._bus.close(_FLUSH_S)
            self._bus = None


class LocalLog(WrittenLog):
    """
    The records of one job, below a directory of its own: each process that writes has a file, and all are read.

    Args:
        job_name: Names the directory.
        logger_name: Names the files.
        directory: Above the job's; what ``TRACKSIDE_GOODPUT_DIR`` names unless given, else ``goodput``.
    """

    begins_again = False
    """Lines are in the order in which they were written."""

    def __init__(self, job_name: str, logger_name: str, directory: str | os.PathLike[str] | None = None) -> None:
        super().__init__(job_name)
        above = Path(directory or os.environ.get(VARIABLE) or _DEFAULT).absolute()
        self.directory = above / _safe(job_name)
        self._name = _safe(logger_name)
        self._read_bytes: dict[Path, int] = {}
        self._first_s: dict[Path, float] = {}

    def _sink(self) -> Handler:
        return _Lines(self.directory, self._name)

    def read_new(self) -> Iterator[Payload]:
        """Yield the records that came since the last time: file by file, in the order of their first times."""
        fresh = {path: self._fresh(path) for path in sorted(self.directory.glob(f"*{_SUFFIX}"))}
        for path, payloads in fresh.items():
            if payloads and path not in self._first_s:
                self._first_s[path] = _time(payloads[0])
        for path in sorted((path for path in fresh if fresh[path]), key=lambda path: self._first_s[path]):
            yield from (payload for payload in fresh[path] if payload.get("job_name", self.job_name) == self.job_name)

    def _fresh(self, path: Path) -> list[Payload]:
        start = self._read_bytes.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(start)
                text = file.read()
        except OSError:  # it is tried again with the next question
            return []
        whole = text[: text.rfind(b"\n") + 1]  # of a line that is being written, the rest is still to come
        self._read_bytes[path] = start + len(whole)
        return [payload for line in whole.splitlines() if (payload := _payload(line)) is not None]


class ForeignLog:
    """Reads from a stand-in for the peer's log client, as its tests pass one."""

    begins_again = False

    def __init__(self, client: Any) -> None:
        self._client = client
        self._count = 0

    def read_new(self) -> Iterator[Payload]:
        """Yield the records that came since the last time."""
        payloads, _ = self._client.read_cloud_logging_entries()
        fresh, self._count = payloads[self._count :], len(payloads)
        yield from fresh


def reader_of(client: Any) -> Any:
    """Return what reads new records from *client*: itself, if it can."""
    return client if hasattr(client, "read_new") else ForeignLog(client)


def _payload(line: bytes) -> Payload | None:
    try:
        payload = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def _time(payload: Payload) -> float:
    times = [value for key, value in payload.items() if key.endswith(("_time", "_timestamp"))]
    return next((value for value in times if isinstance(value, (int, float))), time.time())


def _safe(name: str) -> str:
    """Return *name* as a file can be called."""
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"
