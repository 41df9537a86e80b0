"""The step of one rank, tiled without a gap: its parts, and the stretches between them that no span measures."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs

OUTSIDE: Final = "outside measured parts"
"""What all stretches between the parts are together."""
STANDSTILLS: Final = frozenset(
    {
        "checkpoint_save_sync",
        "checkpoint_save_async",
        "checkpoint_save_finalization",
        "checkpoint_load",
        "validation_loop",
        "testing_loop",
        "validation_single_iteration",
        "testing_single_iteration",
    }
)
"""Spans between two steps in which training stands still: they are in buckets of their own and in no step."""
_MOST_TILES: Final = 48
_GAP: Final = "\N{RIGHTWARDS ARROW}"
_MOST_PENDING: Final = 512

Tile = tuple[int, int, str]
"""When it started and ended, in ns since the epoch, and its name."""


def gap(before: str, after: str) -> str:
    """Return the name of the stretch between two parts; empty stands for the bounds of the step."""
    return f"{before}{_GAP}{after}"


def is_gap(name: str) -> bool:
    """Return whether a tile is a stretch that no span measures."""
    return _GAP in name


def tile_words(name: str) -> str:
    """Return how a tile is written: a part by its name, a gap by what is around it."""
    if not is_gap(name):
        return name
    before, _, after = name.partition(_GAP)
    if before and after:
        return f"between {before} and {after}"
    return f"before {after}" if after else f"after {before}" if before else OUTSIDE


def tiled(start_ns: int, end_ns: int, parts: Iterable[Tile]) -> Iterator[tuple[str, int, int]]:
    """Yield name, duration and end of each tile of a step, *parts* and gaps; together they are as long as the step."""
    cursor, last = start_ns, ""
    for part_start_ns, part_end_ns, name in parts:
        began, ended = max(part_start_ns, cursor), min(part_end_ns, end_ns)
        if ended < began:
            continue
        if began > cursor:
            yield gap(last, name), began - cursor, began
        yield name, ended - began, ended
        cursor, last = ended, name
    if cursor < end_ns or not last:
        yield gap(last, ""), end_ns - cursor, end_ns


@attrs.define(eq=False)
class StepTiles:
    """
    How long each tile took and when it ended, in blocks of consecutive steps.

    A block is one step until there are more than *most* of them; then neighbours are joined.
    """

    most: int = 4_096
    block: int = 1
    """Steps in a block."""
    places: array[int] = attrs.field(factory=lambda: array("q"))
    """Of each block, its steps' number over `block`."""
    steps: array[int] = attrs.field(factory=lambda: array("l"))
    """Of each block, how many steps were recorded."""
    took: dict[str, array[float]] = attrs.field(factory=dict)
    """By tile, the ns in it, over all steps of the block."""
    ends: dict[str, array[float]] = attrs.field(factory=dict)
    """By tile, the sum of the times when it ended, in ns since `base_ns`."""
    first_steps: dict[int, int] = attrs.field(factory=dict)
    """By window, its first step; empty where blocks are numbered by their steps."""
    base_ns: int = 0
    _pending: list[Tile] = attrs.field(factory=list)
    _ended_ns: int = 0

    def add_part(self, start_ns: int, end_ns: int, name: str) -> None:
        """Record a part; one that encloses earlier parts takes their place."""
        pending = self._pending
        while pending and pending[-1][0] >= start_ns:
            pending.pop()
        if len(pending) < _MOST_PENDING:
            pending.append((start_ns, end_ns, name))

    def end_step(self, step: int, start_ns: int, end_ns: int) -> int:
        """Record a step, which reaches from the end of the one before; return its length without standstills, in ns."""
        parts, self._pending = self._pending, []
        start_ns = min(start_ns, self._ended_ns) if self._ended_ns else start_ns
        self._ended_ns = end_ns
        if step < 0:
            return end_ns - start_ns
        if not self.places:
            self.base_ns = start_ns
        place = step // self.block
        if not self.places or self.places[-1] != place:
            if len(self.places) >= self.most:
                self.coarsen(2 * self.block)
                place = step // self.block
            if not self.places or self.places[-1] != place:
                self._append(place)
        self.steps[-1] += 1
        length_ns = 0
        for name, duration_ns, ended_ns in tiled(start_ns, end_ns, parts):
            self._add(name, duration_ns, ended_ns - self.base_ns)
            if name not in STANDSTILLS:
                length_ns += duration_ns
        return length_ns

    def add_window(self, window: int, first_step: int, steps: int, took: Mapping[str, float]) -> None:
        """Record a window of *steps* steps of which only the durations are known, in ns over all steps."""
        if len(self.places) >= self.most or (self.places and window <= self.places[-1]):
            return
        self.first_steps[window] = first_step
        self._append(window)
        self.steps[-1] = steps
        for name, duration_ns in took.items():
            self._add(name, duration_ns, 0.0)

    def _append(self, place: int) -> None:
        self.places.append(place)
        self.steps.append(0)
        for column in (*self.took.values(), *self.ends.values()):
            column.append(0.0)

    def _add(self, name: str, duration_ns: float, end_ns: float) -> None:
        column = self.took.get(name)
        if column is None:
            if len(self.took) >= _MOST_TILES:
                name = gap("", "")
            column = self.took.get(name)
            if column is None:
                column = self.took[name] = array("d", bytes(8 * len(self.places)))
                self.ends[name] = array("d", bytes(8 * len(self.places)))
        column[-1] += duration_ns
        self.ends[name][-1] += end_ns

    def coarsen(self, block: int) -> None:
        """Join neighbours until a block has *block* steps, a multiple by a power of two."""
        factor = block // self.block
        if factor <= 1:
            return
        groups = [
            [at for at, _ in members]
            for _, members in groupby(enumerate(self.places), key=lambda item: item[1] // factor)
        ]
        self.places = array("q", [self.places[group[0]] // factor for group in groups])
        self.steps = array("l", [sum(self.steps[group[0] : group[-1] + 1]) for group in groups])
        self.took = {name: array("d", _joined(column, groups)) for name, column in self.took.items()}
        self.ends = {name: array("d", _joined(column, groups)) for name, column in self.ends.items()}
        self.block = block

    def first_step(self, at: int) -> int:
        """Return the first step of the block at index *at*."""
        place = self.places[at]
        return self.first_steps.get(place, place * self.block)

    def time_of(self, step: int) -> int:
        """Return about when the block of *step* ended, in ns since the epoch; 0 if that is not known."""
        for at in range(len(self.places)):
            if self.first_step(at) + self.block > step and self.steps[at]:
                last = max((column[at] for column in self.ends.values()), default=0.0)
                return round(self.base_ns + last / self.steps[at])
        return 0

    @property
    def named_share(self) -> float:
        """The share of the steps' time that lies in named parts."""
        sums = {name: sum(column) for name, column in self.took.items() if name not in STANDSTILLS}
        whole = sum(sums.values())
        return sum(own for name, own in sums.items() if not is_gap(name)) / whole if whole else 0.0


def _joined(column: Sequence[float], groups: Sequence[Sequence[int]]) -> list[float]:
    return [sum(column[group[0] : group[-1] + 1]) for group in groups]
