"""What stands out, in words."""

from __future__ import annotations

import attrs

NOTHING = "Nothing stands out."


@attrs.frozen(kw_only=True)
class Finding:
    """One thing that stands out."""

    kind: str
    """
    ``restarts``, ``checkpoints``, ``input-bound``, ``compute-bound``, ``waiting``, ``straggler``, ``memory-growth``,
    ``regression``, ``slowdown``, ``stopped``, ``evaluation``, ``custom`` or ``unaccounted``.
    """
    title: str
    """A sentence."""
    evidence: tuple[str, ...]
    look: str
    """What to look at next."""
    cost_s: float = 0.0
    """What it cost the session, in seconds; 0 where that is not known."""
    rank: int | None = None
    section: str = ""
    since_ns: int | None = None
    since_step: int | None = None


@attrs.frozen(kw_only=True)
class Verdict:
    """What a report comes to, in words."""

    headline: str = NOTHING
    summary: str = ""
    """How much was got out of the time, and what steps are bound by."""
    bound: str = ""
    """``input``, ``compute`` or ``waiting``: what most of a step is; empty if that is not known."""
    findings: tuple[Finding, ...] = ()
    """What cost most first."""
