"""
An exporter that brings jobs instrumented with NVIDIA's One Logger (NeMo, Megatron or any other) onto trackside's bus.

If trackside is installed, One Logger finds the exporter through an entry point; ``TRACKSIDE_ONE_LOGGER=runs/`` turns it
on. It imports nothing of One Logger: any object with an exporter's methods is an exporter.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Any, Final

import attrs

from trackside.bus import Bus, default_bus
from trackside.events import (
    CheckpointSaveSucceeded,
    ConfigError,
    Event,
    IterationEnded,
    JobConfigured,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    TrainingConfigured,
    own_fields,
    span_names,
)
from trackside.instruments import next_id
from trackside.job import Job, JobConfig, TrainingConfig, start

LOGGER = logging.getLogger("trackside")

VARIABLE: Final = "TRACKSIDE_ONE_LOGGER"
"""The environment variable that names the directory of the event log, and so turns the exporter on."""
_TYPED: Final[dict[str, type[Event]]] = {
    "one_logger_initialization": JobConfigured,
    "update_training_telemetry_config": TrainingConfigured,
}
"""One Logger's events that correspond to an event of trackside's."""
_SAVED: Final = "save_checkpoint_success"
_KINDS: Final = {name: kind for kind, name in span_names.OF_ITERATION.items()} | {
    span_names.TESTING_ITERATION_ALIAS: "testing"
}
_MOST_OPEN: Final = 4_096
_MOST_HELD: Final = 64


class TracksideExporterConfig:
    """The class that One Logger loads through its entry-point group ``nv_one_logger.exporter_configs``."""

    @classmethod
    def get_default_config(cls) -> dict[str, Any]:
        """Return the exporter's configuration; it is enabled where `VARIABLE` names a directory."""
        directory = os.environ.get(VARIABLE, "")
        name = f"{TracksideExporter.__module__}.{TracksideExporter.__qualname__}"
        return {"class_name": name, "config": {"directory": directory}, "enabled": bool(directory)}


class TracksideExporter:
    """
    An exporter for One Logger: its spans and events become trackside's, with their own times.

    One Logger's metrics are kept as events of their spans; trackside's models compute their own. One Logger
    exports no single iterations by default: name them in its export customization to have steps, metrics and goodput.

    Args:
        directory: The directory of the event log, if telemetry is not on already; if it is empty, none is written.
        bus: The bus to use, if not the default one.
    """

    def __init__(self, directory: str = "", bus: Bus = default_bus) -> None:
        self._directory = directory
        self._bus = bus
        self._job: Job | None = None
        self._ids: dict[Any, int] = {}
        self._held: list[Event] | None = None
        """The events before One Logger named the job, if telemetry is to be turned on; None from then on."""

    def initialize(self) -> None:
        """Have telemetry turned on when the job is configured, if a directory was given and telemetry is not on yet."""
        if self._directory and self._bus.is_idle:
            self._held = []

    def export_start(self, span: Any) -> None:
        """Publish that *span* was opened; an iteration is published only at its end."""
        number = self._id(span)
        if str(span.name) not in _KINDS:
            self._log(
                SpanStarted(
                    at_ns=_ns(span.start_event),
                    span_id=number,
                    parent_span_id=self._parent(span),
                    step=-1,
                    name=str(span.name),
                    attributes=_plain(span.attributes),
                )
            )

    def export_stop(self, span: Any) -> None:
        """Publish that *span* was closed."""
        number = self._id(span)
        self._ids.pop(span.id, None)
        start_ns, end_ns = _ns(span.start_event), _ns(span.stop_event)
        attributes = _plain(span.attributes)
        kind = _KINDS.get(str(span.name))
        if kind is not None:
            self._log(
                IterationEnded(
                    at_ns=end_ns,
                    span_id=number,
                    parent_span_id=self._parent(span),
                    step=_whole(attributes.get("iteration"), attributes.get("step")),
                    kind=kind,
                    duration_ns=end_ns - start_ns,
                )
            )
            return
        self._log(
            SpanEnded(
                at_ns=end_ns,
                span_id=number,
                parent_span_id=self._parent(span),
                step=-1,
                name=str(span.name),
                duration_ns=end_ns - start_ns,
                attributes=attributes,
            )
        )

    def export_event(self, event: Any, span: Any) -> None:
        """Publish *event* of *span* as a span event, and as the corresponding event of trackside's if there is one."""
        name, attributes = str(event.name), _plain(event.attributes)
        at_ns, number = _ns(event), self._id(span)
        typed = _typed(name, attributes, at_ns, number)
        if typed is not None:
            self._log(typed)
        self._log(SpanEventAdded(at_ns=at_ns, span_id=number, step=-1, name=name, attributes=attributes))

    def export_error(self, event: Any, span: Any) -> None:
        """Publish an error in *span*."""
        self.export_event(event, span)

    def export_telemetry_data_error(self, error: Any) -> None:
        """Publish that One Logger's own telemetry is incomplete."""
        self._log(
            SpanEventAdded(
                at_ns=_ns(error), span_id=0, step=-1, name=str(error.name), attributes=_plain(error.attributes)
            )
        )

    def close(self) -> None:
        """Turn telemetry off if this exporter turned it on."""
        self._begin()
        if self._job is not None:
            self._job.close()
            self._job = None

    def _log(self, event: Event) -> None:
        if self._held is None:
            self._bus.log(event)
            return
        # The job's configuration comes first, the training's at once after it, or later, or never.
        is_configured = any(isinstance(held, JobConfigured) for held in self._held)
        self._held.append(event)
        is_next = is_configured and not isinstance(event, SpanEventAdded)
        if is_next or len(self._held) >= _MOST_HELD:
            self._begin()

    def _begin(self) -> None:
        """
        Start the job with the source that One Logger's configuration describes, and publish the held events.

        Raises:
            ConfigError: if the path cannot be a directory.
        """
        held, self._held = self._held, None
        if held is None:
            return
        job = _job_of(held)
        self._job = start(self._directory, job=job, bus=self._bus)
        published = (
            () if job is None else (JobConfigured,) if job.training is None else (JobConfigured, TrainingConfigured)
        )
        for event in held:
            if not isinstance(event, published):
                self._bus.log(event)

    def _id(self, span: Any) -> int:
        """Return trackside's id of *span*."""
        number = self._ids.get(span.id)
        if number is None:
            number = self._ids[span.id] = next_id()
            if len(self._ids) > _MOST_OPEN:
                del self._ids[next(iter(self._ids))]
        return number

    def _parent(self, span: Any) -> int:
        return 0 if span.parent_span is None else self._ids.get(span.parent_span.id, 0)


def _job_of(events: Iterable[Event]) -> JobConfig | None:
    """Return the configuration that One Logger's events hold; None if they hold none."""
    latest: dict[type[Event], Any] = {type(event): event for event in events}
    job, training = latest.get(JobConfigured), latest.get(TrainingConfigured)
    if job is None:
        return None
    try:
        return JobConfig(
            application_name=job.application_name or "one_logger",
            session_tag=job.session_tag,
            world_size=job.world_size,
            is_baseline_run=job.is_baseline_run,
            custom_metadata=_table(job.custom_metadata),
            summary_data_schema_version=job.summary_data_schema_version,
            training=None if training is None else _training_of(training),
        )
    except ConfigError as error:
        LOGGER.warning("the job's configuration is left out: %s", error)
        return None


def _training_of(event: TrainingConfigured) -> TrainingConfig:
    fields = {field.name: getattr(event, field.name, None) for field in attrs.fields(TrainingConfig)}
    fields["save_checkpoint_strategy"] = event.checkpoint_strategy
    fields["custom_metadata"] = _table(event.custom_metadata)
    return TrainingConfig(**{name: value for name, value in fields.items() if value is not None})


def _table(entries: Iterable[str] | None) -> dict[str, Any] | None:
    """Return the metadata that One Logger flattened to texts like ``key:value``."""
    return None if entries is None else {key: text for key, _, text in (entry.partition(":") for entry in entries)}


def _typed(name: str, attributes: dict[str, Any], at_ns: int, span_id: int) -> Event | None:
    """Return the corresponding event of trackside's; None if there is none or a field that it needs is missing."""
    place: dict[str, Any] = {"at_ns": at_ns, "span_id": span_id, "step": -1}
    try:
        if name == _SAVED:
            strategy = str(attributes.get("checkpoint_strategy", "sync"))
            return CheckpointSaveSucceeded(global_step=int(attributes["current_iteration"]), strategy=strategy, **place)
        cls = _TYPED.get(name)
        if cls is None:
            return None
        fields = set(own_fields(cls))
        if isinstance(attributes.get("perf_tag"), str):
            attributes = {**attributes, "perf_tag": [attributes["perf_tag"]]}
        return cls(**{key: value for key, value in attributes.items() if key in fields}, **place)
    except (KeyError, TypeError, ValueError):
        return None


def _ns(event: Any) -> int:
    return int(event.timestamp.seconds_since_epoch * 1e9)


def _whole(*found: Any) -> int:
    return next((value for value in found if isinstance(value, int)), -1)


def _plain(attributes: Any) -> dict[str, Any]:
    return dict(attributes.to_json()) if attributes is not None else {}
