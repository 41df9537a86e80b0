"""One Logger's exporters to Weights & Biases: each attribute is a metric."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import attrs

from trackside.compat.one_logger.core.attributes import Attribute
from trackside.compat.one_logger.core.event import (
    ErrorEvent,
    Event,
    StandardEventAttributeName,
    StandardEventName,
    TelemetryDataError,
)
from trackside.compat.one_logger.core.exceptions import assert_that
from trackside.compat.one_logger.core.span import Span
from trackside.compat.one_logger.exporter.exporter import BaseExporter, ExportError
from trackside.handlers.export import BatchExporter
from trackside.handlers.wandb import leave_dead_service, open_run

_CLOSE_S: Final = 10.0


@attrs.define
class Config:
    """The destination and the name of the run; the meanings are those of ``wandb.init``."""

    entity: str
    host: str = "https://api.wandb.ai"
    api_key: str = ""
    """By default W&B finds the key as usual."""
    project: str = "one-logger-tracking"
    run_name: str = attrs.field(factory=lambda: f"one-logger-tracking-run-{uuid.uuid4()}")
    save_dir: str = "./wandb"
    tags: list[str] = attrs.field(factory=lambda: ["e2e_metrics_enabled"])


class MetricNamingStrategy(ABC):
    """Gives the metric of an attribute its name."""

    @abstractmethod
    def from_span_attribute(self, span: Span, attribute: Attribute) -> str:
        """Return the name for an attribute of *span*."""

    @abstractmethod
    def from_event_attribute(self, span: Span, event: Event, attribute: Attribute) -> str:
        """Return the name for an attribute of *event* within *span*."""


class HierarchicalMetricNamingStrategy(MetricNamingStrategy):
    """``SPAN.ATTRIBUTE`` and ``SPAN.EVENT.ATTRIBUTE``."""

    def __init__(self, separator: str = ".") -> None:
        self._separator = separator

    def from_span_attribute(self, span: Span, attribute: Attribute) -> str:
        """Return the span's name and the attribute's."""
        return self._separator.join((span.name_str, attribute.name))

    def from_event_attribute(self, span: Span, event: Event, attribute: Attribute) -> str:
        """Return the span's name, the event's and the attribute's."""
        return self._separator.join((span.name_str, event.name_str, attribute.name))


class FlatMetricNamingStrategy(MetricNamingStrategy):
    """The attribute's name alone: the latest value of any span counts."""

    def from_span_attribute(self, span: Span, attribute: Attribute) -> str:  # noqa: ARG002  another's business
        """Return the attribute's name."""
        return attribute.name

    def from_event_attribute(self, span: Span, event: Event, attribute: Attribute) -> str:  # noqa: ARG002
        """Return the attribute's name."""
        return attribute.name


class _WandbRun:
    """The exporter's own run, opened with the first metrics; if its connection breaks, the same run is opened again."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._id = uuid.uuid4().hex[:16]  # not the run that WANDB_RUN_ID names, which is the job's
        self._run: Any = None

    def open(self) -> None:
        config = self._config
        Path(config.save_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        fields = {"base_url": config.host, **({"api_key": config.api_key} if config.api_key else {})}
        init = {"project": config.project, "name": config.run_name, "entity": config.entity, "tags": config.tags}
        self._run = open_run({**init, "dir": config.save_dir, "settings": fields}, id=self._id, resume="allow")

    def log(self, metrics: dict[str, Any]) -> None:
        if self._run is None:
            self.open()
        try:
            self._run.log(metrics)
        except Exception as error:
            self._run = None
            leave_dead_service(error)
            raise

    def finish(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


class WandBExporterBase(BaseExporter):
    """
    Exports a span's attributes at its start, the changed ones at its stop, and the attributes of its events.

    Each set of metrics has ``app_last_log_time`` too, in ms since the epoch. The application's errors are not exported.
    """

    def __init__(self, config: Config, metric_naming_strategy: MetricNamingStrategy | None = None) -> None:
        super().__init__()
        self._run = _WandbRun(config)
        self._naming = metric_naming_strategy or HierarchicalMetricNamingStrategy()

    def export_start(self, span: Span) -> None:
        """Export all attributes of *span*, and those of its start."""
        super().export_start(span)
        self._export({**self._of_span(span, span.attributes.values()), **self._of_event(span, span.start_event)})

    def export_stop(self, span: Span) -> None:
        """Export the attributes of *span* that changed since its start, and those of its stop."""
        super().export_stop(span)
        assert_that(span.stop_event is not None, f"span {span.name_str!r} is open")
        stop = self._of_event(span, span.stop_event) if span.stop_event is not None else {}
        self._export({**self._of_span(span, span.updated_attributes.values()), **stop})

    def export_event(self, event: Event, span: Span) -> None:
        """Export the attributes of *event*."""
        super().export_event(event, span)
        self._export(self._of_event(span, event))

    def export_error(self, event: ErrorEvent, span: Span) -> None:
        """Do not export *event*: W&B has no place for an error."""
        super().export_error(event, span)

    def export_telemetry_data_error(self, error: TelemetryDataError) -> None:
        """Export how much is missing: ``NO_TELEMETRY_DATA`` or ``INCOMPLETE_TELEMETRY_DATA``."""
        super().export_telemetry_data_error(error)
        kind = error.attributes.get_str_value(StandardEventAttributeName.TELEMETRY_DATA_ERROR_TYPE.value) or ""
        self._export({StandardEventName.TELEMETRY_DATA_ERROR.value: kind.upper()})

    def _of_span(self, span: Span, attributes: Iterable[Attribute]) -> dict[str, Any]:
        return {self._naming.from_span_attribute(span, attribute): attribute.value for attribute in attributes}

    def _of_event(self, span: Span, event: Event) -> dict[str, Any]:
        attributes = event.attributes.values()
        return {self._naming.from_event_attribute(span, event, attribute): attribute.value for attribute in attributes}

    def _export(self, metrics: dict[str, Any]) -> None:
        if metrics:
            self._log_metrics({**metrics, "app_last_log_time": round(time.time() * 1000)})

    @abstractmethod
    def _log_metrics(self, metrics: dict[str, Any]) -> None:
        """
        Pass on *metrics*.

        Raises:
            ExportError: if they cannot be passed on.
        """


class WandBExporterSync(WandBExporterBase):
    """Passes metrics on before it returns."""

    def initialize(self) -> None:
        """
        Begin the run.

        Raises:
            ExportError: if W&B refuses.
        """
        super().initialize()
        self._guarded(self._run.open)

    def close(self) -> None:
        """End the run."""
        super().close()
        self._guarded(self._run.finish)

    def _log_metrics(self, metrics: dict[str, Any]) -> None:
        self._guarded(self._run.log, metrics)

    @staticmethod
    def _guarded(method: Any, *given: Any) -> None:
        try:
            method(*given)
        except Exception as error:
            raise ExportError(f"W&B: {error!r}") from error


class WandBExporterAsync(WandBExporterBase):
    """
    Passes metrics on in order, on a thread of its own, and repeats failed attempts.

    A failure is raised once, by the next call, whose own metrics are still passed on. `close` gives up after 10 s.
    """

    def __init__(self, config: Config, metric_naming_strategy: MetricNamingStrategy | None = None) -> None:
        super().__init__(config, metric_naming_strategy)
        # One at a time, so that after a failure nothing is passed on twice.
        self._batches: BatchExporter[dict[str, Any]] = BatchExporter(
            self._deliver, name="wandb", max_batch_items=1, export_interval_s=0.1
        )
        self._raised = ""

    def close(self) -> None:
        """
        Pass on the waiting metrics, and end the run.

        Raises:
            ExportError: if some metrics could not be passed on.
        """
        super().close()
        self._batches.put({}, events=0)  # an empty one ends the run, after all metrics
        if not self._batches.close(_CLOSE_S):
            raise ExportError(f"W&B: {self._batches.losses()}: {self._batches.last_error}")

    def _deliver(self, batch: list[dict[str, Any]]) -> None:
        for metrics in batch:
            if metrics:
                self._run.log(metrics)
            else:
                self._run.finish()

    def _log_metrics(self, metrics: dict[str, Any]) -> None:
        taken = self._batches.put(metrics)
        trouble = self._batches.last_error if taken else "too much waits"
        if trouble != self._raised:
            self._raised = trouble
            if trouble:
                raise ExportError(f"W&B: {trouble}")
        if not taken:
            raise ExportError(f"W&B: {trouble}")
