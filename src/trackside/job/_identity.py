"""The identity of this process, from the job's configuration, torch.distributed and the launcher."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside._platform import may_run, process_age_s
from trackside.core import complain
from trackside.events import Source, UnreadableError, clock
from trackside.handlers.eventlog._format import SUFFIX
from trackside.handlers.eventlog._reader import identify
from trackside.instruments import parent_from
from trackside.instruments import torch as pytorch
from trackside.wire import FrameDecoder

if TYPE_CHECKING:
    from trackside.job._config import JobConfig

_MAIN: Final = "main"
_MADE_UP: Final = "run-"
"""The beginning of a run id that was made here, because no launcher gave one."""
_RUN_KEY: Final = "trackside/run"
_is_described = False
"""Whether a job was started in this process, or in the process from which it was forked."""
_ALIVE_S: Final = 5.0
"""A log that was written to within so many seconds is of a living process: most have a heartbeat every second."""


def describe(job: JobConfig | None) -> Source:
    """
    Return the identity of this process.

    *job* takes precedence, then torch.distributed if it is initialised, then the launcher's variables.
    """
    global _is_described
    is_first, _is_described = not _is_described, True
    given = dict(job.source_fields()) if job is not None else {}
    fields: dict[str, Any] = {
        "parent": parent_from(),
        "before_start_s": _before_start_s() if is_first else 0.0,
        # Readers take the anchor for the time when a source began.
        "anchor": clock.process_anchor if is_first else clock.anchor_of_now(),
        **pytorch.place_in_group(),
        **given,
    }
    source = Source.detect(**fields)
    return attrs.evolve(source, **_agreed(source, given))


def _before_start_s() -> float:
    """Return the age of this process; 0 in a notebook and if it is not known."""
    # In an interactive session, the time before the start of a job is the user's.
    is_interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules
    return 0.0 if is_interactive else process_age_s() or 0.0


def place_found_late(source: Source, job: JobConfig | None) -> dict[str, Any]:
    """Return the fields of *source* that torch's process group has, except those that *job* sets."""
    given: dict[str, Any] = dict(job.source_fields()) if job is not None else {}
    found: dict[str, Any] = {name: value for name, value in pytorch.place_in_group().items() if name not in given}
    return found | _agreed(source, given)


def _agreed(source: Source, given: dict[str, Any]) -> dict[str, Any]:
    """Return the run id on which all processes of the group agree, if they were given none; else no field."""
    if "run_id" in given or not source.run_id.startswith(_MADE_UP) or not pytorch.is_distributed():
        return {}
    return {"run_id": pytorch.agree_in_group(_RUN_KEY, source.run_id)}


def report_rivals(directory: Path, source: Source) -> None:
    """Report other processes that write as the rank of *source*, into the same run and attempt below *directory*."""
    pattern = f"rank-{source.rank:05d}.attempt-{source.attempt}.*{SUFFIX}"
    rivals: dict[tuple[str, int], Source] = {}
    for path in (directory / source.run_id).glob(pattern):
        try:
            other = identify(path, FrameDecoder()).source
            age_s = time.time() - path.stat().st_mtime
        except (OSError, UnreadableError):
            continue
        if other is None or other.role != _MAIN:
            continue
        is_other = other.id != source.id and (other.host, other.pid) != (source.host, source.pid)
        if is_other and _is_alive(other, source, age_s):
            rivals[other.host, other.pid] = other
    for other in rivals.values():
        complain(
            "process %d on %s writes as rank %d of run %s, too; give each process its own: JobConfig(rank=…)",
            other.pid,
            other.host,
            source.rank,
            source.run_id,
        )


def _is_alive(other: Source, source: Source, age_s: float) -> bool:
    """Return whether *other*, whose log was last written to *age_s* ago, is a living process."""
    return may_run(other.pid) if other.host == source.host else age_s < _ALIVE_S
