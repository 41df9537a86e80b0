"""Events as a process records them: with its source, numbered, on a clock that advances with them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar

from trackside.events import Event, ProfileSpanEnded, Source, SpanEnded, SpanStarted
from trackside.testing import recorded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

E = TypeVar("E", bound=Event)


class Process:
    """
    The events of one process, in the order in which it logs them.

    Args:
        source: It; one of the run ``run`` with the fields *identity* if None.
        at_ns: The time at which it begins.
    """

    def __init__(self, source: Source | None = None, *, at_ns: int = 0, **identity: Any) -> None:
        known = {"id": f"p{identity.get('rank', 0)}-{identity.get('attempt', 0)}", "run_id": "run"}
        self.source = source or Source(**{**known, **identity})
        self.at_ns = at_ns
        self.events: list[Event] = []
        self.ids = itertools.count(1)

    def put(self, event: Event) -> Self:
        """Log *event*."""
        self.events.append(recorded(event, source=self.source, seq=len(self.events)))
        return self

    def add(self, cls: type[Event], **fields: Any) -> Self:
        """Log an event of *cls*: now, in no span and no step unless *fields* say otherwise."""
        return self.put(cls(**{"at_ns": self.at_ns, "span_id": 0, "step": -1, **fields}))

    def start_span(self, name: str, *, parent: int = 0, **fields: Any) -> int:
        """Log the start of a long span, and return its id."""
        number = fields.pop("span_id", None) or next(self.ids)
        self.add(SpanStarted, span_id=number, parent_span_id=parent, name=name, **fields)
        return number

    def spend(
        self, name: str, length_ns: int, *, kind: type[Event] = ProfileSpanEnded, parent: int = 0, **fields: Any
    ) -> Self:
        """Let *length_ns* pass in a span, of which the end alone is logged."""
        self.at_ns += length_ns
        number = fields.pop("span_id", None) or next(self.ids)
        return self.add(kind, span_id=number, parent_span_id=parent, name=name, duration_ns=length_ns, **fields)

    def spend_long(self, name: str, length_ns: int, **fields: Any) -> Self:
        """Let *length_ns* pass in a span, of which start and end are logged."""
        number = self.start_span(name, **fields)
        return self.spend(name, length_ns, kind=SpanEnded, **{**fields, "span_id": number})


def of(source: Source, event: E, seq: int = 0) -> E:
    """Return *event* as that of *source* and of this number."""
    return recorded(event, source=source, seq=seq)


def numbered(events: Iterable[E], source: Source, first_seq: int = 0) -> list[E]:
    """Return *events* as those of *source*, numbered from *first_seq*."""
    return [of(source, event, seq) for seq, event in enumerate(events, start=first_seq)]
