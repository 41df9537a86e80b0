"""Rules that choose spans by their names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

import attrs

from trackside.events import (
    ConfigError,
    Event,
    IterationEnded,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    Value,
    span_names,
)

FILTERED: Final = "filtered"
MAX_NAMES: Final = 1_024
_REMEMBERED: Final = 1_024


@attrs.frozen(eq=False, repr=False)
class SpansNamed(Value):
    """Keep or drop the spans of some *names*, with the events on them; keep everything else."""

    names: frozenset[str]
    dropped: bool
    """Whether these are the ones to drop, rather than the only ones to keep."""
    portable: ClassVar[bool] = True

    def start(self) -> Callable[[Event], Any]:
        """
        Return a decision that knows which spans it has dropped, so as to drop the events on them.

        That is so for spans that are published at their start; others are not known while they are open.
        """
        names, dropped = self.names, self.dropped
        silenced: dict[tuple[str, int], None] = {}

        def decide(event: Event) -> Any:
            if isinstance(event, IterationEnded):
                name = span_names.OF_ITERATION.get(event.kind, "")
            elif isinstance(event, (SpanStarted, SpanEnded)):
                name = event.name
            elif isinstance(event, SpanEventAdded):
                return FILTERED if silenced and (event.source.id, event.span_id) in silenced else None
            else:
                return None
            if (name in names) is not dropped:
                return None
            if isinstance(event, SpanStarted):
                silenced[event.source.id, event.id] = None
                while len(silenced) > _REMEMBERED:
                    silenced.pop(next(iter(silenced)), None)
            elif silenced:
                silenced.pop((event.source.id, event.id), None)
            return FILTERED

        return decide

    def to_wire(self) -> list[Any]:
        """Return ``["only_spans", [name, …]]`` or ``["without_spans", [name, …]]``."""
        return ["without_spans" if self.dropped else "only_spans", sorted(self.names)]


def only_spans(*names: str) -> SpansNamed:
    """
    Keep, of all spans, those of *names*, with the events on them; keep everything that is no span.

    Raises:
        ConfigError: for no names, or for what is no name.
    """
    return SpansNamed(_checked("only_spans(names)", names), dropped=False)


def without_spans(*names: str) -> SpansNamed:
    """
    Drop the spans of *names*, with the events on them; keep everything else.

    Raises:
        ConfigError: for no names, or for what is no name.
    """
    return SpansNamed(_checked("without_spans(names)", names), dropped=True)


def _checked(field: str, names: Sequence[Any]) -> frozenset[str]:
    if not names or len(names) > MAX_NAMES or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(field, names, f"give from 1 to {MAX_NAMES} names of spans")
    alias = span_names.TESTING_ITERATION_ALIAS
    return frozenset(span_names.TESTING_ITERATION if name == alias else name for name in names)
