"""The peer's module for the cost of Orbax's saves and restores, step by step."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trackside.compat.goodput._records import LocalLog

OPERATION_TYPE_SAVE: Final = "save"
OPERATION_TYPE_RESTORE: Final = "restore"
OPERATION_TYPE_EMERGENCY_RESTORE: Final = "emergency_restore"
OPERATION_TYPE_LOCAL: Final = "local"
OPERATION_TYPE_PERSISTENT: Final = "persistent"
OPERATION_TYPE_PERSISTENT_AND_LOCAL: Final = "persistent_and_local"

_SAVE: Final = {
    "checkpoint_manager_blocking_time": "checkpoint_manager_blocking_duration_secs",
    "checkpointer_blocking_time": "checkpointer_blocking_duration_secs",
    "wait_for_prev_time": "wait_for_prev_duration_secs",
    "get_old_steps_time": "get_old_steps_duration_secs",
}
_RESTORE: Final = {
    "checkpoint_manager_time": "checkpoint_manager_duration_secs",
    "restore_time": "checkpointer_duration_secs",
    "broadcast_time": "broadcast_duration_secs",
}
_FIGURES: Final = ("total", "average", "minimum", "maximum", "standard_deviation")
_PERSISTENT: Final = "gs://"
_RESTORES: Final = {OPERATION_TYPE_LOCAL: OPERATION_TYPE_EMERGENCY_RESTORE, OPERATION_TYPE_PERSISTENT: "restore"}


@dataclasses.dataclass
class SaveCheckpointManagerVerticalStepStats:
    """The seconds of saves: for each part, the five figures over the steps."""

    total_checkpoint_manager_blocking_time: float = 0.0
    average_checkpoint_manager_blocking_time: float = 0.0
    minimum_checkpoint_manager_blocking_time: float = 0.0
    maximum_checkpoint_manager_blocking_time: float = 0.0
    standard_deviation_checkpoint_manager_blocking_time: float = 0.0
    total_checkpointer_blocking_time: float = 0.0
    average_checkpointer_blocking_time: float = 0.0
    minimum_checkpointer_blocking_time: float = 0.0
    maximum_checkpointer_blocking_time: float = 0.0
    standard_deviation_checkpointer_blocking_time: float = 0.0
    total_wait_for_prev_time: float = 0.0
    average_wait_for_prev_time: float = 0.0
    minimum_wait_for_prev_time: float = 0.0
    maximum_wait_for_prev_time: float = 0.0
    standard_deviation_wait_for_prev_time: float = 0.0
    total_get_old_steps_time: float = 0.0
    average_get_old_steps_time: float = 0.0
    minimum_get_old_steps_time: float = 0.0
    maximum_get_old_steps_time: float = 0.0
    standard_deviation_get_old_steps_time: float = 0.0


@dataclasses.dataclass
class RestoreCheckpointManagerVerticalStepStats:
    """The seconds of restores: for each part, the five figures over the steps."""

    total_checkpoint_manager_time: float = 0.0
    average_checkpoint_manager_time: float = 0.0
    minimum_checkpoint_manager_time: float = 0.0
    maximum_checkpoint_manager_time: float = 0.0
    standard_deviation_checkpoint_manager_time: float = 0.0
    total_restore_time: float = 0.0
    average_restore_time: float = 0.0
    minimum_restore_time: float = 0.0
    maximum_restore_time: float = 0.0
    standard_deviation_restore_time: float = 0.0
    total_broadcast_time: float = 0.0
    average_broadcast_time: float = 0.0
    minimum_broadcast_time: float = 0.0
    maximum_broadcast_time: float = 0.0
    standard_deviation_broadcast_time: float = 0.0


@dataclasses.dataclass
class CheckpointLoggerOptions:
    """The place of the records of Orbax's logger."""

    job_name: str = "checkpoint_job"
    logger_name: str = "checkpoint_logger"
    client: Any = None
    """A client of Google Cloud Logging; if it is None, local files are read."""
    use_goodput_logger: bool = False
    """Whether to use the records in `CheckpointBadputCalculator.entries`, and read none."""


class CheckpointBadputCalculator:
    """
    Computes the cost of saves and restores over the steps.

    Several records of one step come from the hosts of one operation; their mean counts. A directory that begins with
    ``gs://`` is persistent, any other one local.
    """

    def __init__(self, options: CheckpointLoggerOptions | None = None) -> None:
        self._options = CheckpointLoggerOptions() if options is None else options
        self.entries: list[Mapping[str, Any]] = []
        """The records that were read last."""

    def read_entries(self) -> list[Mapping[str, Any]]:
        """Return the records of the job, oldest first."""
        options = self._options
        if options.use_goodput_logger:
            return self.entries
        if options.client is None:
            return list(LocalLog(options.job_name, options.logger_name).read_new())
        kinds = (OPERATION_TYPE_SAVE, OPERATION_TYPE_RESTORE, OPERATION_TYPE_EMERGENCY_RESTORE)
        wanted = " OR ".join(f"jsonPayload.event_type={kind}" for kind in kinds)
        filter_ = f'severity=INFO AND jsonPayload.job_name="{options.job_name}" AND ({wanted})'
        found = options.client.logger(options.logger_name).list_entries(filter_=filter_, order_by="timestamp asc")
        return [entry.payload for entry in found]

    def is_valid_save_stats(
        self, step_stats: Mapping[str, Any], operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> bool:
        """Return whether the record *step_stats* is of a save of *operation_type*."""
        if step_stats.get("event_type") != OPERATION_TYPE_SAVE:
            return False
        if operation_type in {OPERATION_TYPE_LOCAL, OPERATION_TYPE_PERSISTENT}:
            return _place(step_stats) == operation_type
        return True

    def is_valid_restore_stats(
        self, step_stats: Mapping[str, Any], operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> bool:
        """Return whether *step_stats* is of a restore of *operation_type*; an emergency restore is the local one."""
        wanted = _RESTORES.get(operation_type or "")
        return step_stats.get("event_type") in ({wanted} if wanted else set(_RESTORES.values()))

    def calculate_save_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> SaveCheckpointManagerVerticalStepStats:
        """Return the times of the saves of *operation_type*."""
        self.entries = self.read_entries()
        records = [one for one in self.entries if self.is_valid_save_stats(one, operation_type)]
        return SaveCheckpointManagerVerticalStepStats(**_figures(records, _SAVE))

    def calculate_restore_operation_checkpoint_manager_blocking_time(
        self, operation_type: str | None = OPERATION_TYPE_PERSISTENT_AND_LOCAL
    ) -> RestoreCheckpointManagerVerticalStepStats:
        """Return the times of the restores of *operation_type*."""
        self.entries = self.read_entries()
        records = [one for one in self.entries if self.is_valid_restore_stats(one, operation_type)]
        return RestoreCheckpointManagerVerticalStepStats(**_figures(records, _RESTORE))


def _place(record: Mapping[str, Any]) -> str:
    is_persistent = str(record.get("directory")).startswith(_PERSISTENT)
    return OPERATION_TYPE_PERSISTENT if is_persistent else OPERATION_TYPE_LOCAL


def _figures(records: Iterable[Mapping[str, Any]], parts: Mapping[str, str]) -> dict[str, float]:
    """Return the figures of each of *parts* over the steps; a duration that no record has is left out."""
    found: dict[str, float] = {}
    steps: dict[tuple[object, str], list[Mapping[str, Any]]] = {}
    for record in records:
        steps.setdefault((record.get("step"), _place(record)), []).append(record)
    for part, key in parts.items():
        taken = [[float(record[key]) for record in same if record.get(key) is not None] for same in steps.values()]
        means = [statistics.fmean(lengths) for lengths in taken if lengths]
        if means:
            deviation = statistics.stdev(means) if len(means) > 1 else 0.0
            values = (sum(means), statistics.fmean(means), min(means), max(means), deviation)
            found |= {f"{figure}_{part}": value for figure, value in zip(_FIGURES, values, strict=True)}
    return found
