"""Presets: how much of a job's spans a handler is to get, in one word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside.bus import all_of, where, without_spans
from trackside.events import ITERATION, PROFILE, ConfigError, Detail, Event, ProfileSpanEnded, span_names

if TYPE_CHECKING:
    from trackside.bus import Rule


@attrs.frozen(kw_only=True)
class Preset:
    """
    What a handler is to get, as `subscribe` takes it: the rest is not even built while nobody else wants it.

    ::

        trackside.subscribe(sink, **PRESETS["per_step"].arguments())
    """

    detail: Detail
    """The lowest level of detail."""
    keep: Rule | None
    """Which of the rest."""

    def arguments(self, keep: Rule | None = None) -> dict[str, Any]:
        """Return the arguments for `subscribe`, with another rule that must hold too."""
        rules = [rule for rule in (self.keep, keep) if rule is not None]
        return {"detail": self.detail, "keep": all_of(*rules) if len(rules) > 1 else rules[0] if rules else None}


def _is_span_or_rarer(event: Event) -> bool:
    return event.detail > PROFILE or isinstance(event, ProfileSpanEnded)


PRESETS: Final = {
    # Everything but the spans of iterations and of what is within them, as One Logger exports by default.
    "default": Preset(detail=ITERATION, keep=without_spans(*span_names.PER_STEP, *span_names.WITHIN_STEP)),
    # Iterations too.
    "per_step": Preset(detail=ITERATION, keep=without_spans(*span_names.WITHIN_STEP)),
    # And what is within them, but of everything else that comes several times a step nothing.
    "profiling": Preset(detail=PROFILE, keep=where(_is_span_or_rarer)),
    "all": Preset(detail=PROFILE, keep=None),
}


def preset(name: str) -> Preset:
    """
    Return the preset called *name*.

    Raises:
        ConfigError: if there is none.
    """
    try:
        return PRESETS[name]
    except (KeyError, TypeError):
        known = ", ".join(f'"{word}"' for word in PRESETS)
        raise ConfigError("preset", name, f"give one of {known}") from None
