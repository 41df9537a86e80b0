"""How a viewer finds a running job by its directory: a note for each process, beside its log."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from trackside.events import Source, UnreadableError
from trackside.handlers.eventlog import create_file
from trackside.handlers.zeromq._link import is_served

_SUFFIX: Final = ".endpoint"
_MOST_BYTES: Final = 1024
_MOST_NOTES: Final = 4096


class Note:
    """A file that says where a process can be watched; removed when it no longer can."""

    def __init__(self, directory: Path, source: Source, endpoint: str) -> None:
        run = re.sub(r"[^A-Za-z0-9._-]+", "-", source.run_id)[:100].strip("-.") or "run"
        self._path = directory / run / f"rank-{source.rank:05d}.attempt-{source.attempt}.{source.id[:8]}{_SUFFIX}"
        try:
            fd = create_file(directory, f"{run}/{self._path.name}")
        except OSError:  # whoever has the endpoint itself can do without
            return
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor
            file.write(endpoint + "\n")

    def remove(self) -> None:
        """Take it away."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def find_endpoints(directory: str | os.PathLike[str]) -> list[str]:
    """
    Return where the processes that write below *directory* can be watched now, in the order of runs and ranks.

    Raises:
        UnreadableError: There is no such directory, or nobody who can be.
    """
    where = Path(directory)
    if not where.is_dir():
        raise UnreadableError(
            str(where), "is no directory and no endpoint", "give ipc://…, tcp://… or a run's directory"
        )
    found = [_read(path) for path in sorted(where.rglob(f"*{_SUFFIX}"))[:_MOST_NOTES]]
    live = [endpoint for endpoint in found if endpoint and (not endpoint.startswith("ipc:") or is_served(endpoint))]
    if not live:
        raise UnreadableError(str(where), "no job that publishes runs there", "start it with publish=True")
    return live


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return text if text.startswith(("ipc://", "tcp://")) else ""
