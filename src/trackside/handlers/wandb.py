"""Curves in Weights & Biases, through its own client."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any, Final

from trackside.events import Source
from trackside.events._errors import needing_extra
from trackside.events._settings import settings_check
from trackside.handlers.export import RunUpdate, TrackerSink, run_identity, run_name

with needing_extra("Weights & Biases", "wandb"):
    import wandb

_STEP: Final = "step"
_MAX_POINTS: Final = 1000
_FINISH_S: Final = 10.0


class WandbSink(TrackerSink):
    """
    Log goodput, badput, durations, training metrics, counters and scores into runs of its own.

    Each process is a run beside any run of the job itself: its id is the process's, and ``WANDB_RUN_ID`` is ignored.
    W&B's other variables are honoured (``WANDB_MODE=offline``, ``WANDB_PROJECT``, ``WANDB_RUN_GROUP``, ``WANDB_DIR``,
    …). The x-axis is ``step``. W&B waits 10 s at exit instead of for ever; its data on disk are not lost.

    Args:
        init: Arguments of ``wandb.init``, which precede the variables.

    Raises:
        ConfigError: if ``wandb.init`` has no such argument.
    """

    def __init__(self, **init: Any) -> None:
        settings_check(wandb.init, "wandb.init()")(init)
        super().__init__("wandb")
        self._init = init

    def _fits(self, update: RunUpdate, group: Sequence[RunUpdate]) -> bool:
        return sum(len(other.points) for other in group) + len(update.points) <= _MAX_POINTS

    def _open_run(self, source: Source) -> Any:
        run = open_run(
            self._init,
            id=source.id,
            resume="allow",
            name=run_name(source),
            group=source.session_tag or source.run_id,
            project="trackside",
            config=run_identity(source),
        )
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)
        return run

    def _set_config(self, run: Any, config: dict[str, Any]) -> None:
        self._try(run, run.config.update, config, allow_val_change=True)

    def _log_points(self, run: Any, group: Sequence[RunUpdate]) -> None:
        rows: list[dict[str, float]] = []
        for point in (point for update in group for point in update.points):
            # A row is a step; a second point of a curve at the same step needs another row.
            if not rows or rows[-1][_STEP] != point.step or point.tag in rows[-1]:
                rows.append({_STEP: point.step})
            rows[-1][point.tag] = point.value
        for row in rows:
            self._try(run, run.log, row)

    def _confirm(self) -> None:
        # The client does not notice a dead service before its socket is full: only an answer shows that it lives.
        for run in list(self._runs.values()):
            self._try(run, run.summary.get, _STEP)

    def _end_run(self, run: Any, *, failed: bool) -> None:
        self._try(run, run.finish, exit_code=int(failed))

    def _try(self, run: Any, method: Any, *arguments: Any, **options: Any) -> None:
        try:
            method(*arguments, **options)
        except Exception as error:
            # The next attempt resumes the run over another connection and repeats the batch: which part of it
            # arrived is unknown.
            self._sent = 0
            self._runs = {source_id: other for source_id, other in self._runs.items() if other is not run}
            with contextlib.suppress(Exception):
                run.finish(exit_code=1)
            leave_dead_service(error)
            raise


_SERVICE_ERRORS: Final = frozenset(("MailboxClosedError", "HandleAbandonedError"))
_VARIABLES: Final = {"name": "WANDB_NAME", "group": "WANDB_RUN_GROUP", "project": "WANDB_PROJECT"}


def open_run(init: dict[str, Any], **defaults: Any) -> Any:
    """
    Return a run of our own, which shares neither id nor console with a run of the job.

    Args:
        init: Arguments of ``wandb.init``.
        defaults: Further arguments, used unless *init* or W&B's variables have them.

    Raises:
        Exception: of the kinds that ``wandb.init`` raises.
    """
    used = {name: value for name, value in defaults.items() if _VARIABLES.get(name, "") not in os.environ}
    settings: dict[str, Any] = {"console": "off", "x_disable_stats": True}
    if "finish_timeout" in wandb.Settings.model_fields:
        settings["finish_timeout"] = _FINISH_S
    wanted = init.get("settings") or {}
    settings |= wanted if isinstance(wanted, dict) else wanted.model_dump(exclude_unset=True)
    try:
        run = wandb.init(**{**used, **init, "settings": wandb.Settings(**settings), "reinit": "create_new"})
    except Exception as error:
        leave_dead_service(error)
        raise
    return run


def leave_dead_service(error: Exception) -> None:
    """If *error* shows that W&B's service process is gone with all its runs, let the next run start another one."""
    if isinstance(error, ConnectionError) or type(error).__name__ in _SERVICE_ERRORS:
        with contextlib.suppress(Exception):
            wandb.teardown()
