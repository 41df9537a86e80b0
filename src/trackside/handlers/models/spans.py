"""The span tree of a job, live, and as it was when the job died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from trackside.events import (
    PORTER,
    ConfigError,
    DecodeError,
    Event,
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanMisplaced,
    SpanStarted,
)
from trackside.handlers.models._span_report import SourceSpans, SpanReport
from trackside.handlers.models._span_state import SourceState
from trackside.handlers.models._span_tree import source_spans

VERSION: Final = 1

_Read = Callable[[SourceState, Any], None]
_READERS: Final[dict[type[Event], _Read]] = {
    IterationEnded: SourceState.end_iteration,
    SpanEnded: SourceState.end,
    SpanStarted: SourceState.start,
    SpanEventAdded: SourceState.add_event,
    Heartbeat: SourceState.hear,
    SpanMisplaced: SourceState.misplace,
    SourceStarted: SourceState.start_source,
    SourceEnded: SourceState.end_source,
}


class SpanBuilder:
    """
    Builds the span tree of every process from its events.

    Long spans are known from their start, so after a crash `result` tells which were open and since when; of short
    ones it tells those that the last heartbeat named. Memory does not grow with the job: of the spans that ended,
    the latest are kept, and of all of them count, total, shortest and longest by name.

    Args:
        max_long: Ended long spans to keep, for each process.
        max_short: Ended short ones to keep, of each level of detail and process.

    Raises:
        ConfigError: if a limit is below 1.
    """

    runs_on = PORTER
    reads: ClassVar[tuple[type[Event], ...]] = tuple(_READERS)
    """The events it needs; ``subscribe(SpanBuilder(), to=SpanBuilder.reads)``."""
    stands_for: ClassVar[tuple[str, ...]] = ("OpenSpans",)
    """The models whose state its own is as well, for viewers that ask for these."""

    def __init__(self, *, max_long: int = 1_000, max_short: int = 256) -> None:
        for field, given in (("max_long", max_long), ("max_short", max_short)):
            if given < 1:
                raise ConfigError(field, given, "give a whole number of at least 1")
        self._max_long = max_long
        self._max_short = max_short
        self._missed = 0
        self._states: dict[str, SourceState] = {}
        self._identified: dict[str, Source] = {}
        self._readers: dict[type[Event], _Read | None] = dict(_READERS)

    def __call__(self, event: Event) -> None:
        """Read *event*; derived ones are passed over."""
        try:
            read = self._readers[type(event)]
        except KeyError:
            read = self._find_reader(type(event))
        if read is None:
            return
        source = event.source
        state = self._states.get(source.id)
        if state is None:
            state = self._states[source.id] = SourceState(self._max_long, self._max_short)
        if self._identified.get(source.id) is not source:
            self._identified[source.id] = source
            state.identify(source)
        if event.at_ns > state.last_ns:  # noqa: PLR1730  max() would cost several times as much, for every event
            state.last_ns = event.at_ns
        read(state, event)

    def _find_reader(self, cls: type[Event]) -> _Read | None:
        found = None
        if not cls.derived:
            found = next((read for base, read in _READERS.items() if issubclass(cls, base)), None)
        self._readers[cls] = found
        return found

    def miss(self, count: int) -> None:
        """Learn that *count* events were lost on the way here."""
        self._missed += count

    def result(self) -> SpanReport:
        """Return what is known now."""
        found = [source_spans(state) for state in list(self._states.values())]
        return SpanReport(sources=tuple(sorted(found, key=_place)), missed=self._missed)

    def dump(self) -> dict[str, Any]:
        """Return everything as plain data, for `load`."""
        sources = [[source_id, state.dump()] for source_id, state in sorted(self._states.items())]
        return {"version": VERSION, "missed": self._missed, "sources": sources}

    def load(self, data: dict[str, Any]) -> None:
        """
        Take over what another one dumped, instead of what is known here.

        Raises:
            DecodeError: if *data* is nothing of the kind; it may come from another version.
        """
        states: dict[str, SourceState] = {}
        try:
            if data["version"] != VERSION:
                raise DecodeError(f"a SpanBuilder's state of version {data['version']}; this is {VERSION}")
            for source_id, dumped in data["sources"]:
                states[source_id] = SourceState(self._max_long, self._max_short)
                states[source_id].load(dumped)
            missed = int(data["missed"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DecodeError(f"not a SpanBuilder's state: {type(error).__name__}: {error}") from error
        self._states, self._missed, self._identified = states, missed, {}


class OpenSpans(SpanBuilder):
    """
    A `SpanBuilder` for who wants to know which spans are open, and of the others little.

    A job keeps it for viewers by ``subscribe(OpenSpans(), to=OpenSpans.reads, detail=LIFECYCLE)``: given the long spans
    and the heartbeats alone, it costs a step nothing. A viewer goes on from there with all events.
    """

    stands_for: ClassVar[tuple[str, ...]] = ()


def _place(spans: SourceSpans) -> tuple[Any, ...]:
    first_ns = spans.last_ns if spans.started_ns is None else spans.started_ns
    return (spans.run_id, spans.attempt, spans.rank, spans.role != "main", first_ns, spans.source_id)
