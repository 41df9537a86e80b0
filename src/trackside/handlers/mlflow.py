"""Curves in MLflow, by its own client; the one module that imports ``mlflow``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from trackside.events import ConfigError, Source
from trackside.handlers._courier import RefusedError
from trackside.handlers._tracker import Told, TrackerSink, identity, run_name

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
except ImportError as error:
    raise ConfigError("the MLflow sink needs mlflow-skinny", str(error), "install trackside[mlflow]") from error

_BATCH_POINTS: Final = 1000
"""What one call may log, by MLflow's own rules; parameters at most 100."""
_BATCH_PARAMS: Final = 100
_LONGEST_PARAM: Final = 6000
_HOPELESS: Final = frozenset(("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"))


class MlflowSink(TrackerSink):
    """
    Logs goodput, badput, durations, training metrics, counters and scores as metrics of a run.

    Each process is a run, with its identity as tags and the training's configuration as parameters. MLflow's own
    variables say where to (``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME``, ``MLFLOW_EXPERIMENT_ID``) and how
    (``MLFLOW_ENABLE_ASYNC_LOGGING``, those of its HTTP client).

    Args:
        tracking_uri: A server, a database or a directory; unless given, as MLflow's variables say.
        experiment: Its name, made if it does not exist; unless given, as MLflow's variables say, else ``trackside``.
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str | None = None) -> None:
        super().__init__("mlflow")
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._client: Any = None

    def _goes_with(self, told: Told, group: Sequence[Told]) -> bool:
        return sum(len(before.points) for before in group) + len(told.points) <= _BATCH_POINTS

    def _begin(self, source: Source) -> str:
        if self._client is None:
            self._client = MlflowClient(self._tracking_uri)
        tags = {name: str(value) for name, value in identity(source).items()}
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
            except MlflowException:  # another rank was quicker
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _describe(self, run: str, description: dict[str, Any]) -> None:
        told = [(name, str(value)) for name, value in description.items() if value not in (None, "", [])]
        params = [Param(name, value) for name, value in told if len(value) <= _LONGEST_PARAM]
        self._send(run, params=params[:_BATCH_PARAMS])

    def _log(self, run: str, group: Sequence[Told]) -> None:
        points = [(point, told.at_ns // 1_000_000) for told in group for point in told.points]
        metrics = [Metric(point.tag, point.value, at_ms, point.step) for point, at_ms in points]
        for start in range(0, len(metrics), _BATCH_POINTS):
            self._send(run, metrics=metrics[start : start + _BATCH_POINTS])

    def _end(self, run: str, *, failed: bool) -> None:
        self._client.set_terminated(run, "FAILED" if failed else "FINISHED")

    def _send(self, run: str, **batch: Any) -> None:
        try:
            pending = self._client.log_batch(run, **batch)
            if pending is not None:  # asynchronous, as its variable asks: what fails is known only then
                pending.wait()
        except MlflowException as error:
            if error.error_code in _HOPELESS:
                raise RefusedError(f"MLflow refused it: {error.error_code}") from error
            raise
