"""Auto-start: telemetry that a framework's callback turns on once the framework knows its rank."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside.instruments import callbacks
from trackside.job import Job, JobConfig, running_job, start

if TYPE_CHECKING:
    from trackside.events import Handler

RUN_VARIABLE: Final = "TRACKSIDE_RUN_ID"
"""The variable that passes the run's id to child processes; not used if a launcher gives the id."""
OPT_IN_VARIABLE: Final = "TRACKSIDE"
"""The variable with telemetry's directory, or 1 for ``runs``: if set, frameworks that look for callbacks find ours."""

_LAUNCHERS: Final = ("RANK", "SLURM_JOB_ID")


class AutoStart:
    """
    Turns telemetry on once, and off at the end of the process or by `end`.

    Telemetry that is on already stays as it is.

    Args:
        directory: The directory of the event log; None turns nothing on.
        job: The identity of the run; the program's name unless given.
        handlers: As `start` takes them.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None, job: JobConfig | None, handlers: Sequence[Handler]
    ) -> None:
        self._directory = None if directory is None else Path(directory)
        self._config = job
        self._handlers = handlers
        self._job: Job | None = None
        if directory is not None:
            _agree_on_run()

    def begin(self, **ranks: int) -> Job | None:
        """
        Turn telemetry on, if it is not; return the job by which it is on, or None if it is off.

        Args:
            ranks: ``rank``, ``local_rank`` and ``world_size``, as the framework knows them.
        """
        running = running_job()
        if running is not None or self._directory is None:
            return running
        self._job = start(self._directory, job=self._described(ranks), handlers=self._handlers)
        callbacks.on_app_start()
        # Registered after the job's own function, so called before it: the application ends, then the stream.
        atexit.register(self._end_at_exit)
        return self._job

    def _described(self, ranks: dict[str, int]) -> JobConfig:
        job = self._config or JobConfig(application_name=Path(sys.argv[0]).stem or "training")
        known: dict[str, Any] = {name: value for name, value in ranks.items() if getattr(job, name) is None}
        if job.run_id is None:
            known["run_id"] = _agree_on_run()
        return attrs.evolve(job, **known)

    def _end_at_exit(self) -> None:
        if self._job is not None:
            self._job._record_exit()  # noqa: SLF001
        self.end()

    def end(self) -> bool:
        """Turn off the telemetry turned on here, and return whether everything was written; safe to call twice."""
        atexit.unregister(self._end_at_exit)
        job, self._job = self._job, None
        if job is None or not job.is_open:
            return True
        callbacks.on_app_end()
        return job.close()


def _agree_on_run() -> str | None:
    """Return the run id of this process and of those that it starts; None if a launcher gives it."""
    if any(os.environ.get(variable) for variable in _LAUNCHERS):
        return None
    return os.environ.setdefault(RUN_VARIABLE, f"run-{os.urandom(6).hex()}")


def opted_in() -> str | None:
    """Return the directory for telemetry that the environment names; None if it names none."""
    opted = os.environ.get(OPT_IN_VARIABLE, "")
    if opted.lower() in {"", "0", "false", "no"}:
        return None
    return "runs" if opted.lower() in {"1", "true", "yes"} else opted
