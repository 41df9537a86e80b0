"""Presets: how much of a job's spans a handler is to get, in one word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from trackside.events import ITERATION, PROFILE, ConfigError, Event, Priority, ProfileSpanEnded, span_names
from trackside.rules import all_of, where, without_spans

if TYPE_CHECKING:
    from trackside.rules import Rule


@attrs.frozen(kw_only=True)
class Preset:
    """
    What a handler is to get, as `subscribe` takes it: the rest is not even built while no other handler wants it.

    ::

        trackside.subscribe(sink, **PRESETS["per_step"].arguments())
    """

    min_priority: Priority
    """The lowest priority."""
    keep: Rule | None
    """Which of the rest."""

    def arguments(self, keep: Rule | None = None) -> dict[str, Any]:
        """Return the arguments for `subscribe`, with another rule that must hold too."""
        rules = [rule for rule in (self.keep, keep) if rule is not None]
        return {
            "min_priority": self.min_priority,
            "keep": all_of(*rules) if len(rules) > 1 else rules[0] if rules else None,
        }


def _is_span_or_rarer(event: Event) -> bool:
    return event.priority > PROFILE or isinstance(event, ProfileSpanEnded)


PRESETS: Final = {
    # Everything but the spans of iterations and of what is within them, as One Logger exports by default.
    "default": Preset(min_priority=ITERATION, keep=without_spans(*span_names.PER_STEP, *span_names.WITHIN_STEP)),
    # Iterations too.
    "per_step": Preset(min_priority=ITERATION, keep=without_spans(*span_names.WITHIN_STEP)),
    # And what is within them, but of everything else that comes several times a step nothing.
    "profiling": Preset(min_priority=PROFILE, keep=where(_is_span_or_rarer)),
    "all": Preset(min_priority=PROFILE, keep=None),
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
