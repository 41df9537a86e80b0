"""The clocks of many processes, as one."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

import attrs

from trackside.events import ClockAnchored, IterationEnded, Source

_MOST_DRIFT: Final = 1e-3
"""More than that is no drift: the wall clock was set."""
_MOST_STEPS: Final = 1_024
_FEWEST_STEPS: Final = 20
_LEAST_APART_NS: Final = 10_000_000
"""Ranks end their steps some milliseconds apart; only what is more than that is taken for their clocks'."""
_SPREADS: Final = 10
_LARGE_UNCERTAINTY_NS: Final = 1_000_000

CLOCK, STEPS, NONE = "clock", "steps", "none"


@attrs.define(eq=False)
class Readings:
    """What one process tells of its clock."""

    source: Source
    anchors: list[tuple[int, int]] = attrs.field(factory=list)
    """``at_ns`` and how far the wall clock was ahead of it."""
    uncertainty_ns: int = 0
    first_ns: int | None = None
    """The earliest time of its events, starts of spans included."""
    ends_ns: dict[int, int] = attrs.field(factory=dict)
    """By number, when training steps ended: those whose number *stride* divides."""
    stride: int = 1

    def take(self, event: ClockAnchored | IterationEnded) -> None:
        """Take in one event."""
        if isinstance(event, ClockAnchored):
            self.anchors.append((event.wall_ns - event.offset_ns, event.offset_ns))
            self.uncertainty_ns = max(self.uncertainty_ns, event.uncertainty_ns)
        elif event.kind == "training" and event.step >= 0 and not event.step % self.stride:
            self.ends_ns[event.step] = event.at_ns
            if len(self.ends_ns) > _MOST_STEPS:
                # A power of two, so that what is kept of one rank is kept of the others.
                self.stride *= 2
                self.ends_ns = {step: at for step, at in self.ends_ns.items() if not step % self.stride}


@attrs.define(eq=False)
class Alignment:
    """From one process's time to that of all of them."""

    by: str
    """``clock``, ``steps``, or ``none`` where nothing says how its clock relates to the others'."""
    note: str = ""
    """What is known of its clock, where that is worth saying."""
    _times: list[int] = attrs.field(factory=list)
    _offsets: list[int] = attrs.field(factory=list)
    _apart_ns: float = 0.0
    _drift: float = 0.0
    _origin_ns: int = 0

    def apply(self, at_ns: int) -> int:
        """Return when *at_ns* of the process was, in ns since the epoch."""
        wall_ns = at_ns + self.offset_ns(at_ns)
        return wall_ns + self.apart_ns(wall_ns)

    def offset_ns(self, at_ns: int) -> int:
        """Return how far the wall clock was ahead at *at_ns*: between two readings on a straight line."""
        times = self._times
        if not times:
            return 0
        if len(times) == 1:
            return self._offsets[0]
        place = min(max(bisect_right(times, at_ns) - 1, 0), len(times) - 2)
        before, after = self._offsets[place], self._offsets[place + 1]
        share = (at_ns - times[place]) / (times[place + 1] - times[place])
        return before + round((after - before) * share)

    def apart_ns(self, wall_ns: int) -> int:
        """Return how far the machine's wall clock is behind the others'."""
        return round(self._apart_ns + self._drift * (wall_ns - self._origin_ns))


def align(readings: Iterable[Readings]) -> dict[str, Alignment]:
    """
    Return for each source how its times become the common ones.

    A process's time is its wall clock's at its start and goes on with the monotonic clock, so it is led back to the
    wall clock by the pairs of `ClockAnchored`. Where the machines' wall clocks disagree, the steps show it: ranks that
    train together end each step together. A rank whose ends keep a distance from the first one's that hardly varies is
    moved by it, drift included.
    """
    known = sorted(readings, key=lambda one: (one.source.role != "main", one.source.attempt, one.source.rank))
    found: dict[str, Alignment] = {}
    first: dict[tuple[str, int], Readings] = {}
    for one in known:
        alignment = found[one.source.id] = _by_clock(one)
        place = one.source.run_id, one.source.attempt
        if one.source.role != "main" or not one.ends_ns:
            continue
        reference = first.setdefault(place, one)
        if reference is not one:
            _by_steps(one, alignment, reference, found[reference.source.id])
    _follow_parents(known, found)
    return found


def _by_clock(one: Readings) -> Alignment:
    anchors = sorted(one.anchors)
    if not anchors:
        return Alignment(by=NONE)
    times, offsets, carried = [anchors[-1][0]], [anchors[-1][1]], 0
    for (at_ns, offset_ns), (next_at_ns, next_offset_ns) in reversed(list(pairwise(anchors))):
        if next_at_ns <= at_ns:
            continue
        if abs(next_offset_ns - offset_ns) > _MOST_DRIFT * (next_at_ns - at_ns):
            carried += next_offset_ns - offset_ns  # it was set, and had been wrong until then
        times.append(at_ns)
        offsets.append(offset_ns + carried)
    note = ""
    if one.uncertainty_ns > _LARGE_UNCERTAINTY_NS:
        note = f"clock known to {one.uncertainty_ns / 1e6:.1f} ms"
    return Alignment(by=CLOCK, note=note, times=times[::-1], offsets=offsets[::-1])


def _by_steps(one: Readings, own: Alignment, reference: Readings, theirs: Alignment) -> None:
    """Move *own* by what its steps are apart from the reference's, if that is the clocks' doing."""
    pairs = [
        (own.apply(at_ns), theirs.apply(reference.ends_ns[step]))
        for step, at_ns in one.ends_ns.items()
        if step in reference.ends_ns
    ]
    if len(pairs) < _FEWEST_STEPS:
        return
    origin = pairs[0][0]
    drift, apart = statistics.linear_regression(
        [wall - origin for wall, _ in pairs], [there - wall for wall, there in pairs]
    )
    left = [abs(there - wall - apart - drift * (wall - origin)) for wall, there in pairs]
    spread = statistics.median(left)
    middle = abs(apart + drift * (pairs[len(pairs) // 2][0] - origin))
    ends = max(abs(apart), abs(apart + drift * (pairs[-1][0] - origin)), middle)
    if own.by == CLOCK and ends < max(_LEAST_APART_NS, _SPREADS * spread):
        return
    # Of ranks that do not wait for each other the distance wanders.
    if spread > max(_LEAST_APART_NS, ends / _SPREADS) or abs(drift) > _MOST_DRIFT:
        return
    own._apart_ns, own._drift, own._origin_ns = apart, drift, origin  # noqa: SLF001  built here
    if own.by == CLOCK:
        own.note = f"its machine's clock is {-apart / 1e9:+.3f} s off; aligned by steps"
    else:
        own.note = "aligned by steps"
    own.by = STEPS


def _follow_parents(known: Iterable[Readings], found: Mapping[str, Alignment]) -> None:
    """Give workers that read no clock the one of the process that started them: it is the same machine's."""
    for one in known:
        parent = one.source.parent
        own = found[one.source.id]
        if own.by == NONE and parent is not None and parent.source_id in found:
            theirs = found[parent.source_id]
            own.by, own.note = theirs.by, theirs.note
            own._times, own._offsets = theirs._times, theirs._offsets  # noqa: SLF001  built here
            own._apart_ns, own._drift = theirs._apart_ns, theirs._drift  # noqa: SLF001
            own._origin_ns = theirs._origin_ns  # noqa: SLF001
