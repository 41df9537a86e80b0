"""Whole spans from the events that tell of them, for systems that know a span only once it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import attrs

from trackside.events import (
    Event,
    IterationEnded,
    SourceEnded,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    span_names,
)

MOST_OPEN: Final = 4_096
MOST_EVENTS: Final = 128

TELLS: Final = (SpanStarted, SpanEnded, IterationEnded, SpanEventAdded, SourceEnded)
"""What spans are made from."""


@attrs.frozen(kw_only=True)
class Happening:
    """Something that happened within a span."""

    name: str
    at_ns: int
    attributes: dict[str, Any]


@attrs.frozen(kw_only=True)
class WholeSpan:
    """A span from its start to its end, by the numbers of its process."""

    id: int
    parent_id: int
    """0 for none in its process."""
    name: str
    start_ns: int
    end_ns: int
    step: int
    attributes: dict[str, Any]
    happenings: list[Happening]
    error: dict[str, str] | None
    """What is known of the exception that ended it: ``type``, ``message``, ``traceback``."""
    failed: bool
    events: int
    """How many it was made of."""
    finished: bool = True
    """False if its process ended and it did not."""


class SpanAssembly:
    """
    Makes whole spans of one process's events.

    Memory is bounded: of more than 4,096 spans that are open at once the oldest are forgotten, and of more than 128
    events of one span the first.
    """

    def __init__(self) -> None:
        self.forgotten = 0
        """Events that were given up because too much was open at once."""
        self._open: dict[int, SpanStarted] = {}
        self._happenings: dict[int, deque[Happening]] = {}

    def read(self, event: Event) -> Iterator[WholeSpan]:
        """Yield the spans that *event* completes."""
        if isinstance(event, SpanStarted):
            self._open[event.id] = event
            self._forget_oldest(self._open)
        elif isinstance(event, SpanEventAdded):
            self._note(event)
        elif isinstance(event, SpanEnded):
            yield self._ended(event)
        elif isinstance(event, IterationEnded):
            if event.id:
                yield self._iterated(event)
        elif isinstance(event, SourceEnded):
            yield from self._unfinished(event.at_ns)

    def _note(self, event: SpanEventAdded) -> None:
        told = self._happenings.setdefault(event.span_id, deque(maxlen=MOST_EVENTS))
        self.forgotten += len(told) == MOST_EVENTS
        told.append(Happening(name=event.name, at_ns=event.at_ns, attributes=event.attributes))
        self._forget_oldest(self._happenings)

    def _forget_oldest(self, table: dict[int, Any]) -> None:
        if len(table) > MOST_OPEN:
            oldest = table.pop(next(iter(table)))
            self.forgotten += len(oldest) if isinstance(oldest, deque) else 1

    def _ended(self, event: SpanEnded) -> WholeSpan:
        was_open = self._open.pop(event.id, None) is not None
        happenings = list(self._happenings.pop(event.id, ()))
        return WholeSpan(
            id=event.id,
            parent_id=event.parent_id,
            name=event.name,
            start_ns=event.at_ns - max(0, event.duration_ns),
            end_ns=event.at_ns,
            step=event.step,
            attributes=dict(event.attributes),
            happenings=happenings,
            error=event.error,
            failed=event.error is not None,
            events=1 + was_open + len(happenings),
        )

    def _iterated(self, event: IterationEnded) -> WholeSpan:
        done = {name: getattr(event, name) for name in ("samples", "tokens", "flops", "loss")}
        happenings = list(self._happenings.pop(event.id, ()))
        return WholeSpan(
            id=event.id,
            parent_id=event.span_id,
            name=span_names.OF_ITERATION.get(event.kind) or f"{event.kind}_single_iteration",
            start_ns=event.at_ns - max(0, event.duration_ns),
            end_ns=event.at_ns,
            step=event.step,
            attributes={f"trackside.{name}": value for name, value in done.items() if value is not None},
            happenings=happenings,
            error=_raised(happenings),
            failed=event.failed,
            events=1 + len(happenings),
        )

    def _unfinished(self, at_ns: int) -> Iterator[WholeSpan]:
        """Yield what is open when the process ends, the innermost first."""
        for event in reversed(list(self._open.values())):
            happenings = list(self._happenings.pop(event.id, ()))
            yield WholeSpan(
                id=event.id,
                parent_id=event.parent_id,
                name=event.name,
                start_ns=event.at_ns,
                end_ns=max(at_ns, event.at_ns),
                step=event.step,
                attributes=dict(event.attributes),
                happenings=happenings,
                error=None,
                failed=False,
                events=1 + len(happenings),
                finished=False,
            )
        self._open.clear()
        self._happenings.clear()


def _raised(happenings: list[Happening]) -> dict[str, str] | None:
    """Return what an iteration's events tell of the exception that was raised in it."""
    for happening in reversed(happenings):
        attributes = happening.attributes
        if happening.name == span_names.ERROR and span_names.EXCEPTION_TYPE in attributes:
            return {
                "type": str(attributes[span_names.EXCEPTION_TYPE]),
                "message": str(attributes.get(span_names.EXCEPTION_MESSAGE, "")),
            }
    return None
