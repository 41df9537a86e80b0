"""The model: which event is read how, whose it is, and what is published of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import cattrs

from trackside.events import (
    PORTER,
    CheckpointMetricsUpdated,
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    DecodeError,
    Event,
    IterationEnded,
    JobConfigured,
    ProductiveWorkSaved,
    Publish,
    Sketch,
    Source,
    SpanEnded,
    SpanStarted,
    TestingMetricsUpdated,
    TrainingConfigured,
    ValidationMetricsUpdated,
)
from trackside.handlers.models.metrics._durations import Durations
from trackside.handlers.models.metrics._parts import OpenParts
from trackside.handlers.models.metrics._process import ProcessMetrics
from trackside.handlers.models.metrics._result import MetricsResult, SourceMetrics
from trackside.handlers.models.metrics._work import Work

_READERS: Final[dict[type[Event], Callable[[ProcessMetrics, Any], Event | None]]] = {
    IterationEnded: ProcessMetrics.iteration_ended,
    SpanEnded: ProcessMetrics.span_ended,
    SpanStarted: ProcessMetrics.span_started,
    CheckpointSaveSucceeded: ProcessMetrics.save_succeeded,
    CheckpointSaveFailed: ProcessMetrics.save_failed,
    JobConfigured: ProcessMetrics.job_configured,
    TrainingConfigured: ProcessMetrics.training_configured,
}
"""How events of these types, and of those derived from them, are read."""


@attrs.define
class _Place:
    """One process, and what it was last told of."""

    source: Source
    metrics: ProcessMetrics = attrs.field(factory=ProcessMetrics)
    validation: ValidationMetricsUpdated | None = None
    testing: TestingMetricsUpdated | None = None
    productive: ProductiveWorkSaved | None = None
    checkpoints: dict[str, CheckpointMetricsUpdated] = attrs.field(factory=dict)

    def has_told(self) -> bool:
        """Return whether there is anything to say of the process."""
        saves = self.metrics.saves
        told = (self.validation, self.testing, self.productive, self.checkpoints, saves.opened, saves.failures)
        return self.metrics.has_trained() or any(told)


class TrainingMetrics:
    """
    Keeps the metrics of a training: iteration times, throughput, losses, and what is saved of the work.

    ::

        bus.subscribe(TrainingMetrics(publish=bus.publish))

    Each process is looked at alone, so that the order in which several ones' events arrive does not matter. What an
    event costs, and the memory, do not grow with the job.

    Args:
        publish: Called with every update, in the process that trains; elsewhere there is nothing to publish.
    """

    runs_on = PORTER

    def __init__(self, publish: Publish | None = None) -> None:
        self.missed = 0
        self._publish = publish
        self._readers: dict[type[Event], Callable[[ProcessMetrics, Any], Event | None] | None] = {}
        self._places: dict[str, _Place] = {}
        self._latest: _Place | None = None

    def __call__(self, event: Event) -> None:
        """Read *event* if it is one of those that metrics are made of."""
        try:
            reader = self._readers[event.__class__]
        except KeyError:
            reader = self._readers[event.__class__] = _reader_of(event.__class__)
        if reader is None:
            return
        try:
            source = event._source  # noqa: SLF001  as `Event.source`, which is a call, and every span comes by here
        except AttributeError:
            source = event.source
        place = self._latest
        if place is None or place.source is not source:
            place = self._latest = self._place_of(source)
        told = reader(place.metrics, event)
        if told is not None:
            self._tell(place, told)

    def _place_of(self, source: Source) -> _Place:
        place = self._places.get(source.id)
        if place is None:
            place = self._places[source.id] = _Place(source)
            place.metrics.ranks = source.world_size
        place.source = source
        return place

    def _tell(self, place: _Place, told: Event) -> None:
        if isinstance(told, ValidationMetricsUpdated):
            place.validation = told
        elif isinstance(told, TestingMetricsUpdated):
            place.testing = told
        elif isinstance(told, ProductiveWorkSaved):
            place.productive = told
        elif isinstance(told, CheckpointMetricsUpdated):
            place.checkpoints[told.checkpoint_strategy] = told
        if self._publish is not None:
            self._publish(told)

    def miss(self, events: int) -> None:
        """Note that *events* of the stream did not get here."""
        self.missed += events

    def result(self) -> MetricsResult:
        """Return the metrics as they stand."""
        places = sorted(
            self._places.values(), key=lambda place: (place.source.rank, place.source.attempt, place.source.id)
        )
        told = [place for place in places if place.has_told()]
        return MetricsResult(sources=[_metrics_of(place) for place in told], missed=self.missed)

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data."""
        places = [self._places[source_id] for source_id in sorted(self._places)]
        return {"places": [_converter.unstructure(place) for place in places], "missed": self.missed}

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Take the state that `dump` returned.

        Raises:
            DecodeError: if *state* is anything else; it is not taken then.
        """
        try:
            missed = int(state["missed"])
            places = _converter.structure(state["places"], list[_Place])
        except Exception as error:
            raise DecodeError(f"no state of training metrics: {error}") from error
        self.missed = missed
        self._places = {place.source.id: place for place in places}
        self._latest = None


def _reader_of(cls: type[Event]) -> Callable[[ProcessMetrics, Any], Event | None] | None:
    if cls.derived:
        return None
    return next((reader for base, reader in _READERS.items() if issubclass(cls, base)), None)


def _metrics_of(place: _Place) -> SourceMetrics:
    metrics = place.metrics
    return SourceMetrics(
        source_id=place.source.id,
        rank=place.source.rank,
        attempt=place.source.attempt,
        training=metrics.training_now() if metrics.has_trained() else None,
        validation=place.validation,
        testing=place.testing,
        checkpoints=dict(sorted(place.checkpoints.items())),
        productive=place.productive,
        failed_saves=metrics.saves.failures,
        open_saves=[save.global_step for save in metrics.saves.opened],
    )


_converter: Final = cattrs.Converter(detailed_validation=False)
_converter.register_unstructure_hook(Durations, Durations.to_plain)
_converter.register_unstructure_hook(Work, Work.to_plain)
_converter.register_structure_hook(Sketch, lambda data, _: Sketch.from_wire(data))
_converter.register_unstructure_hook(Source, Source.to_wire)
_converter.register_structure_hook(Source, lambda data, _: Source.from_wire(data))
# Keys of maps are texts, whatever carries the state.
_converter.register_unstructure_hook(
    OpenParts, lambda parts: {str(span_id): list(parts_ns) for span_id, parts_ns in parts.within.items()}
)
_converter.register_structure_hook(
    OpenParts,
    lambda data, _: OpenParts({int(span_id): [int(part) for part in parts] for span_id, parts in data.items()}),
)
