"""Reading events while they are being recorded."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from trackside.events import Event, Frame, FrameDecoder, Source, UnreadableError
from trackside.handlers.eventlog._find import LogFile, find_files, identify, in_order
from trackside.handlers.eventlog._ledger import Ledger
from trackside.handlers.eventlog._reader import LogReader
from trackside.handlers.eventlog._strand import block_bytes, merged


def follow(
    *paths: str | os.PathLike[str],
    types: type[Event] | tuple[type[Event], ...] | None = None,
    sources: Callable[[Source], bool] | None = None,
    poll_s: float = 0.5,
    stop: threading.Event | None = None,
    wait: bool = False,
) -> Iterator[Event]:
    """
    Iterate over events that are recorded and being recorded, until *stop* is set.

    What is there comes as from `replay`; from then on events come as they are written, merged by time as far as
    they are found together. A tail that is half written is waited for. New parts and new files join.

    Args:
        paths: Log files, or directories with such at any depth, now or later.
        types: Yield only events of these classes.
        sources: Says whose events to yield; the files of all others are not read.
        poll_s: How long to wait before looking again, in seconds.
        stop: Ends the iteration when it is set and what was written by then has been read.
        wait: Wait for paths that do not exist yet.

    Raises:
        UnreadableError: A path does not exist, and is not to be waited for.
    """
    stop = stop or threading.Event()
    for path in paths:
        if not wait and not Path(path).exists():
            raise UnreadableError(str(path), "does not exist", "give a .tslog file or a directory")
    return _followed(_Followed(paths, types, sources), poll_s, stop)


def _followed(logs: _Followed, poll_s: float, stop: threading.Event) -> Iterator[Event]:
    while True:
        is_last = stop.is_set()
        yield from logs.look()
        if is_last:
            return
        stop.wait(poll_s)


class _Followed:
    """The logs below some paths and how far each was read."""

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        types: type[Event] | tuple[type[Event], ...] | None,
        sources: Callable[[Source], bool] | None,
    ) -> None:
        self._paths = tuple(paths)
        self._types = types
        self._sources = sources
        self._decoder = FrameDecoder()
        self._ledgers: dict[str, Ledger] = defaultdict(Ledger)
        self._strands: dict[str, list[LogReader]] = {}
        self._known: set[Path] = set()
        self._strangers: dict[Path, int] = {}

    def look(self) -> Iterator[Event]:
        """Yield what was written since the last look."""
        self._join_new()
        strands = [[reader for reader in readers if reader.has_more()] for readers in self._strands.values()]
        return merged([self._strand(readers) for readers in strands if readers])

    def _join_new(self) -> None:
        files = [file for path in find_files(self._paths)[0] if (file := self._identified(path)) is not None]
        self._known.update(file.path for file in files)
        size = block_bytes(len(self._known))
        for file in in_order(files, self._decoder):
            assert file.source is not None
            if self._sources is not None and not self._sources(file.source):
                continue
            reader = LogReader(file.path, self._decoder, block_bytes=size)
            self._strands.setdefault(file.source.id, []).append(reader)

    def _identified(self, path: Path) -> LogFile | None:
        """Return whose file *path* is if that is news; a file that says nothing is asked again when it has grown."""
        if path in self._known:
            return None
        try:
            size = path.stat().st_size
            if self._strangers.get(path) == size:
                return None
            self._strangers[path] = size
            file = identify(path, self._decoder)
        except (OSError, UnreadableError):
            return None
        return None if file.source is None else file

    def _strand(self, readers: Sequence[LogReader]) -> Iterator[Sequence[Event]]:
        for reader in readers:
            try:
                for item in reader.read():
                    if isinstance(item, Frame):
                        events = self._ledgers[item.source.id].admit(item)
                        yield [event for event in events if self._types is None or isinstance(event, self._types)]
            except UnreadableError:  # it was removed; what it held is gone
                continue
