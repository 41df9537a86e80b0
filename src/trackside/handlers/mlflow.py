"""A sink that draws curves in MLflow, through its own client."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from trackside.events import Source
from trackside.events._errors import needing_extra
from trackside.events._settings import suggests_settings
from trackside.handlers.export import RefusedError, RunUpdate, TrackerSink, run_identity, run_name

with needing_extra("MLflow", "mlflow"):
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

_BATCH_POINTS: Final = 1000
"""The most points that MLflow accepts in one call."""
_BATCH_PARAMS: Final = 100
_LONGEST_PARAM: Final = 6000
"""In characters; longer values are cut, and their length is added."""
_FINAL_ERRORS: Final = frozenset(("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"))


@suggests_settings()
class MlflowSink(TrackerSink):
    """
    Log goodput, badput, durations, training metrics, counters and scores as metrics of a run.

    Each process is a run, with its identity as tags and the training's configuration as parameters. MLflow's own
    variables are honoured: ``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_EXPERIMENT_ID``,
    ``MLFLOW_ENABLE_ASYNC_LOGGING`` and those of its HTTP client.

    Args:
        tracking_uri: A server, a database or a directory; by default from MLflow's variables.
        experiment: The experiment's name, created if it does not exist; by default from MLflow's variables, else
            ``trackside``.
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str | None = None) -> None:
        super().__init__("mlflow")
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._client: Any = None

    def _fits(self, update: RunUpdate, group: Sequence[RunUpdate]) -> bool:
        return sum(len(other.points) for other in group) + len(update.points) <= _BATCH_POINTS

    def _open_run(self, source: Source) -> str:
        if self._client is None:
            self._client = MlflowClient(self._tracking_uri)
        tags = {name: str(value) for name, value in run_identity(source).items()}
        run = self._client.create_run(self._experiment_id(), run_name=run_name(source), tags=tags)
        run_id: str = run.info.run_id
        return run_id

    def _experiment_id(self) -> str:
        if self._experiment is None and os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return os.environ["MLFLOW_EXPERIMENT_ID"]
        name = self._experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "trackside"
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:  # another rank created it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _set_config(self, run: str, config: dict[str, Any]) -> None:
        texts = [(name, str(value)) for name, value in config.items() if value not in (None, "", [])]
        params = [Param(name, _shortened(text)) for name, text in texts]
        for start in range(0, len(params), _BATCH_PARAMS):
            self._send(run, params=params[start : start + _BATCH_PARAMS])

    def _log_points(self, run: str, group: Sequence[RunUpdate]) -> None:
        points = [(point, update.at_ns // 1_000_000) for update in group for point in update.points]
        metrics = [Metric(point.tag, point.value, at_ms, point.step) for point, at_ms in points]
        for start in range(0, len(metrics), _BATCH_POINTS):
            self._send(run, metrics=metrics[start : start + _BATCH_POINTS])

    def _end_run(self, run: str, *, failed: bool) -> None:
        self._client.set_terminated(run, "FAILED" if failed else "FINISHED")

    def _send(self, run: str, **batch: Any) -> None:
        try:
            pending = self._client.log_batch(run, **batch)
            if pending is not None:  # asynchronous logging is on; only the wait raises its errors
                pending.wait()
        except MlflowException as error:
            if error.error_code in _FINAL_ERRORS:
                raise RefusedError(f"MLflow refused: {error.error_code}") from error
            raise


def _shortened(text: str) -> str:
    if len(text) <= _LONGEST_PARAM:
        return text
    mark = f"… ({len(text):,} characters)"
    return text[: _LONGEST_PARAM - len(mark)] + mark
