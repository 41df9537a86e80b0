"""
Wall time that never runs backwards.

``at_ns`` is the wall clock read once per process and advanced by the monotonic clock: the difference
of two ``at_ns`` of one process is a true duration, and an NTP step or a clock set by hand cannot reorder
a stream. Later (monotonic, wall) pairs are published as `ClockAnchored` events for readers; they never
change ``at_ns``.

`Event` keeps its own copy of ``monotonic_ns`` and ``offset_ns``, because a function call per event would cost a
fifth of building it. `installed` replaces the clock for tests, these copies included.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import attrs

from trackside._free_threading import immortal
from trackside.events._fields import Value

_LONGEST_S = 3.2e7
"""About a year."""


def ns_of(seconds: float) -> int | None:
    """Return *seconds* in ns, as an event has them; None if they are NaN, negative, or more than a year."""
    return round(seconds * 1e9) if 0 <= seconds <= _LONGEST_S else None


@attrs.frozen(eq=False, repr=False)
class Anchor(Value):
    """One simultaneous reading of the monotonic and the wall clock."""

    mono_ns: int
    """The monotonic clock, in ns; its zero is arbitrary."""
    wall_ns: int
    """The wall clock at the same moment, in ns since the epoch."""
    uncertainty_ns: int
    """Half the time that the two readings took: they may be this far apart."""


def read_anchor(
    monotonic: Callable[[], int] = time.monotonic_ns, wall: Callable[[], int] = time.time_ns, tries: int = 5
) -> Anchor:
    """
    Read both clocks as simultaneously as this process can.

    Returns the quickest of *tries* readings: one that the scheduler interrupted takes longer and is less exact.
    """
    best: Anchor | None = None
    for _ in range(tries):
        before = monotonic()
        now = wall()
        after = monotonic()
        half = (after - before) // 2
        if best is None or half < best.uncertainty_ns:
            best = Anchor(before + half, now, half)
    assert best is not None
    return best


monotonic_ns: Callable[[], int] = time.monotonic_ns
process_anchor: Anchor = read_anchor()
offset_ns: int = immortal(process_anchor.wall_ns - process_anchor.mono_ns)


def now_ns() -> int:
    """Return the anchored wall time, in ns since the epoch."""
    return offset_ns + monotonic_ns()


def anchor_of_now() -> Anchor:
    """Return the process's anchor, moved to this moment: ``at_ns`` computed from it is the same."""
    now = monotonic_ns()
    return attrs.evolve(process_anchor, mono_ns=now, wall_ns=offset_ns + now)


Follower: TypeAlias = Callable[[Callable[[], int], int], None]
_followers: list[Follower] = []


def follow(follower: Follower) -> Follower:
    """Have *follower* called with ``monotonic_ns`` and ``offset_ns`` whenever the clock is replaced."""
    _followers.append(follower)
    return follower


@contextlib.contextmanager
def installed(monotonic: Callable[[], int], wall: Callable[[], int] = time.time_ns) -> Iterator[None]:
    """
    Use *monotonic* and *wall* as the clocks while the block runs; for tests.

    The process is anchored anew at entry and gets its own anchor back at exit.
    """
    kept = monotonic_ns, process_anchor
    _install(monotonic, read_anchor(monotonic, wall, tries=1))
    try:
        yield
    finally:
        _install(*kept)


def _install(monotonic: Callable[[], int], anchor: Anchor) -> None:
    global monotonic_ns, process_anchor, offset_ns
    monotonic_ns, process_anchor, offset_ns = monotonic, anchor, immortal(anchor.wall_ns - anchor.mono_ns)
    for follower in _followers:
        follower(monotonic_ns, offset_ns)
