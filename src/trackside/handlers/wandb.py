"""Curves in Weights & Biases, by its own client; the one module that imports ``wandb``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

from trackside.events import ConfigError, Source
from trackside.handlers._tracker import Told, TrackerSink, identity, run_name

try:
    import wandb
except ImportError as error:
    raise ConfigError("the W&B sink needs wandb", str(error), "install trackside[wandb]") from error

_STEP: Final = "step"
_MOST_POINTS: Final = 1000
_FINISH_S: Final = 10.0


class WandbSink(TrackerSink):
    """
    Logs goodput, badput, durations, training metrics, counters and scores into runs of its own.

    Each process is a run, apart from any that the job has itself: its id is the process's, whatever ``WANDB_RUN_ID``
    says. The other variables are W&B's (``WANDB_MODE=offline``, ``WANDB_PROJECT``, ``WANDB_RUN_GROUP``, ``WANDB_DIR``,
    …). Curves stand over ``step``. W&B's own wait at exit is cut to 10 s; what it has on disk is not lost.

    Args:
        init: For ``wandb.init``; what is given here goes before the variables.
    """

    def __init__(self, **init: Any) -> None:
        super().__init__("wandb")
        self._init = init

    def _goes_with(self, told: Told, group: Sequence[Told]) -> bool:
        return sum(len(before.points) for before in group) + len(told.points) <= _MOST_POINTS

    def _begin(self, source: Source) -> Any:
        run = open_run(
            self._init,
            id=source.id,
            resume="allow",
            name=run_name(source),
            group=source.session_tag or source.run_id,
            project="trackside",
            config=identity(source),
        )
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        return run

    def _describe(self, run: Any, description: dict[str, Any]) -> None:
        self._try(run, run.config.update, description, allow_val_change=True)

    def _log(self, run: Any, group: Sequence[Told]) -> None:
        rows: list[dict[str, float]] = []
        for point in (point for told in group for point in told.points):
            # A row is a step; what is told twice of one makes a row of its own.
            if not rows or rows[-1][_STEP] != point.step or point.tag in rows[-1]:
                rows.append({_STEP: point.step})
            rows[-1][point.tag] = point.value
        for row in rows:
            self._try(run, run.log, row)

    def _confirm(self) -> None:
        # A dead service is not noticed before its socket is full: only an answer shows that it lives.
        for run in list(self._runs.values()):
            self._try(run, run.summary.get, _STEP)

    def _end(self, run: Any, *, failed: bool) -> None:
        self._try(run, run.finish, exit_code=int(failed))

    def _try(self, run: Any, method: Any, *given: Any, **options: Any) -> None:
        try:
            method(*given, **options)
        except Exception as error:
            # The next attempt resumes the run over another connection, and repeats the batch: what of it arrived,
            # nobody knows.
            self._sent = 0
            self._runs = {source_id: other for source_id, other in self._runs.items() if other is not run}
            with contextlib.suppress(Exception):
                run.finish(exit_code=1)
            leave_dead_service(error)
            raise


_OF_THE_DEAD: Final = frozenset(("MailboxClosedError", "HandleAbandonedError"))
_VARIABLES: Final = {"name": "WANDB_NAME", "group": "WANDB_RUN_GROUP", "project": "WANDB_PROJECT"}


def open_run(init: dict[str, Any], **defaults: Any) -> Any:
    """
    Return a run of our own, which shares neither id nor console with one of the job's.

    Args:
        init: What was asked for, for ``wandb.init``.
        defaults: What is used for what was not asked for, unless W&B's variables say it.

    Raises:
        Exception: of whatever kind ``wandb.init`` raises.
    """
    given = {name: value for name, value in defaults.items() if _VARIABLES.get(name, "") not in os.environ}
    settings = {"console": "off", "x_disable_stats": True, "finish_timeout": _FINISH_S}
    told = init.get("settings") or {}
    settings |= told if isinstance(told, dict) else told.model_dump(exclude_unset=True)
    try:
        run = wandb.init(**{**given, **init, "settings": wandb.Settings(**settings), "reinit": "create_new"})
    except Exception as error:
        leave_dead_service(error)
        raise
    return run


def leave_dead_service(error: Exception) -> None:
    """If *error* says that W&B's service process is gone, and all runs with it, have the next run start another."""
    if isinstance(error, ConnectionError) or type(error).__name__ in _OF_THE_DEAD:
        with contextlib.suppress(Exception):
            wandb.teardown()
