"""Reading a collector's own logs back, after it was restarted."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import attrs

from trackside.events import Frame, FrameDecoder, UnreadableError
from trackside.handlers.eventlog._find import find_files
from trackside.handlers.eventlog._reader import LogReader
from trackside.handlers.eventlog._strand import identified


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
    for strand in identified(files, decoder, found.problems):
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
    return found
