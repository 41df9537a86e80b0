"""The model of training metrics, and its result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import attrs
import cattrs

from trackside.core.sketch import Sketch
from trackside.events import (
    CheckpointMetricsUpdated,
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    Event,
    IterationEnded,
    JobConfigured,
    ProductiveWorkSaved,
    Publish,
    RunsOn,
    Source,
    SpanEnded,
    SpanStarted,
    TestingMetricsUpdated,
    TrainingConfigured,
    TrainingMetricsUpdated,
    TrainingWindowUpdated,
    ValidationMetricsUpdated,
)
from trackside.handlers.models._model import CalledWithEvents, decoding
from trackside.handlers.models.metrics._process import Derived, OpenParts, ProcessMetrics
from trackside.handlers.models.metrics._work import Durations, IterationWork
from trackside.wire import FrameView

VERSION: Final = 1

_READERS: Final[dict[type[Event], Callable[[ProcessMetrics, Any], Derived]]] = {
    IterationEnded: ProcessMetrics.iteration_ended,
    SpanEnded: ProcessMetrics.span_ended,
    SpanStarted: ProcessMetrics.span_started,
    CheckpointSaveSucceeded: ProcessMetrics.save_succeeded,
    CheckpointSaveFailed: ProcessMetrics.save_failed,
    JobConfigured: ProcessMetrics.job_configured,
    TrainingConfigured: ProcessMetrics.training_configured,
}
"""How events of these types, and of those derived from them, are read."""


@attrs.frozen(kw_only=True)
class SourceMetrics:
    """The metrics of one process; each part is the update that would be published now, or the last one that was."""

    source_id: str
    rank: int
    attempt: int
    training: TrainingMetricsUpdated | None
    """Up to the latest iteration; None if there was none. Likewise the next."""
    window: TrainingWindowUpdated | None
    validation: ValidationMetricsUpdated | None
    testing: TestingMetricsUpdated | None
    checkpoints: dict[str, CheckpointMetricsUpdated]
    """By strategy."""
    productive: ProductiveWorkSaved | None
    failed_saves: int
    open_saves: list[int]
    """The global steps of the saves whose outcome is not known, the oldest first."""


@attrs.frozen(kw_only=True)
class MetricsResult:
    """The metrics of all processes, by rank and attempt."""

    sources: list[SourceMetrics]
    missed: int
    """Events that the model should have had and did not get."""


@attrs.define
class _Place:
    """One process, and the latest events derived from it."""

    source: Source
    metrics: ProcessMetrics = attrs.field(factory=ProcessMetrics)
    validation: ValidationMetricsUpdated | None = None
    testing: TestingMetricsUpdated | None = None
    productive: ProductiveWorkSaved | None = None
    checkpoints: dict[str, CheckpointMetricsUpdated] = attrs.field(factory=dict)

    def has_any(self) -> bool:
        """Return whether anything is known of the process."""
        saves = self.metrics.saves
        derived = (self.validation, self.testing, self.productive, self.checkpoints, saves.opened, saves.failures)
        return self.metrics.has_trained() or any(derived)


class TrainingMetrics(CalledWithEvents):
    """
    Keeps the metrics of a training: iteration times, throughput, losses, and what is saved of the work.

    ::

        bus.subscribe(TrainingMetrics(publish=bus.publish))

    Each process is looked at alone, so that the order in which several ones' events arrive does not matter. What an
    event costs, and the memory, do not grow with the job.

    Args:
        publish: Called with every update, in the process that trains; elsewhere there is nothing to publish.
    """

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = tuple(_READERS)

    def __init__(self, publish: Publish | None = None) -> None:
        self._missed = 0
        self.publish = publish
        self._places: dict[str, _Place] = {}

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        events = frame.of(*self.reads)
        if not events:
            return
        place = self._place_of(frame.source)
        for event in events:
            for derived in _reader_of(type(event))(place.metrics, event):  # type: ignore[arg-type]  # hashable
                self._derive(place, derived)

    def _place_of(self, source: Source) -> _Place:
        place = self._places.get(source.id)
        if place is None:
            place = self._places[source.id] = _Place(source)
            place.metrics.ranks = source.world_size
        place.source = source
        return place

    def _derive(self, place: _Place, event: Event) -> None:
        if isinstance(event, ValidationMetricsUpdated):
            place.validation = event
        elif isinstance(event, TestingMetricsUpdated):
            place.testing = event
        elif isinstance(event, ProductiveWorkSaved):
            place.productive = event
        elif isinstance(event, CheckpointMetricsUpdated):
            place.checkpoints[event.checkpoint_strategy] = event
        if self.publish is not None:
            self.publish(event)

    def missed(self, source: Source, count: int) -> None:  # noqa: ARG002
        """Count events that did not get here."""
        self._missed += count

    def result(self) -> MetricsResult:
        """Return the metrics as they stand."""
        places = sorted(
            self._places.values(), key=lambda place: (place.source.rank, place.source.attempt, place.source.id)
        )
        return MetricsResult(sources=[_metrics_of(place) for place in places if place.has_any()], missed=self._missed)

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data."""
        places = [self._places[source_id] for source_id in sorted(self._places)]
        plain = [_converter.unstructure(place) for place in places]
        return {"version": VERSION, "missed": self._missed, "places": plain}

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Replace the state by one that `dump` returned.

        Raises:
            DecodeError: if *state* is anything else; the model is then as it was before.
        """
        with decoding(self, state, VERSION):
            missed = int(state["missed"])
            places = _converter.structure(state["places"], list[_Place])
        self._missed, self._places = missed, {place.source.id: place for place in places}


@functools.lru_cache(maxsize=256)
def _reader_of(cls: type[Event]) -> Callable[[ProcessMetrics, Any], Derived]:
    return next(reader for base, reader in _READERS.items() if issubclass(cls, base))


def _metrics_of(place: _Place) -> SourceMetrics:
    metrics = place.metrics
    training, window = metrics.training_now() if metrics.has_trained() else (None, None)
    return SourceMetrics(
        source_id=place.source.id,
        rank=place.source.rank,
        attempt=place.source.attempt,
        training=training,
        window=window,
        validation=place.validation,
        testing=place.testing,
        checkpoints=dict(sorted(place.checkpoints.items())),
        productive=place.productive,
        failed_saves=metrics.saves.failures,
        open_saves=[save.global_step for save in metrics.saves.opened],
    )


_converter: Final = cattrs.Converter(detailed_validation=False)
_converter.register_unstructure_hook(Durations, Durations.to_plain)
_converter.register_unstructure_hook(IterationWork, IterationWork.to_plain)
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
