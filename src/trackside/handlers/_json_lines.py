"""Files of JSON lines from other tools: find them, and read them without trusting their content."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from trackside.events import UnreadableError

SUFFIXES: Final = (".jsonl", ".json")
_MAX_LINE_BYTES: Final = 1 << 20


def refused(path: Path, error: OSError) -> UnreadableError:
    """Return the error for a *path* that cannot be read."""
    return UnreadableError(str(path), str(error.strerror or error), "see that it can be read")


def find_files(paths: Iterable[str | os.PathLike[str]], problems: list[UnreadableError], remedy: str) -> list[Path]:
    """
    Return every file that *paths* name or contain, each once.

    Args:
        paths: Files, or directories that contain files at any depth.
        problems: Paths that cannot be read are added to this list.
        remedy: The advice for a directory without such files.
    """
    found: dict[str, Path] = {}

    def note(error: OSError) -> None:
        problems.append(refused(Path(error.filename), error))

    for path in map(Path, paths):
        below = [path]
        if os.path.isdir(path):  # noqa: PTH112  it answers where Path.is_dir may raise
            walked = os.walk(path, onerror=note)
            below = [Path(at, name) for at, _, names in walked for name in names if name.endswith(SUFFIXES)]
            if not below:
                problems.append(UnreadableError(str(path), "holds no .jsonl or .json file", remedy))
        elif not os.path.exists(path):  # noqa: PTH110  as above
            problems.append(UnreadableError(str(path), "does not exist", "give a file of JSON lines"))
            continue
        for file in below:
            found.setdefault(os.path.realpath(file), file)
    return list(found.values())


def objects_in(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """
    Yield the object on each line of *path* with the line's number; None for a line that is not an object.

    Raises:
        OSError: if the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            if line.strip():
                yield number, _object(line)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of *file*; only the beginning of a line that is too long for a record."""
    while line := file.readline(_MAX_LINE_BYTES):
        yield line
        while len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(_MAX_LINE_BYTES)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        if b"\\ud" in line.lower():
            entry = _with_utf8(entry)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _with_utf8(value: Any) -> Any:
    """Return *value* with an escape for each lone surrogate, as events have it."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_with_utf8(key): _with_utf8(entry) for key, entry in value.items()}
    return [_with_utf8(entry) for entry in value] if isinstance(value, list) else value
