"""
The what-if of a synchronous step: which rank came last, in which part it lost time, and what the job lost.

Ranks that train together leave the synchronization together. The rank that arrives last determines the step. The other
ranks spend more time in the synchronizing part, and this extra time is waiting. So a rank's own time is its step
without the synchronizing parts. Its lateness is its own time less the median of its peers. The lost time is the
lateness of the last rank (after "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI '25).
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol, TypeVar

import attrs

from trackside.core import text as words
from trackside.events import IterationEnded, SectionWindow, Source, SpanEnded, SpanStarted, span_names
from trackside.handlers.models.steps import (
    FEWEST_STEPS,
    INTERRUPTING,
    LEAST_LATE_NS,
    OTHER,
    WAITING,
    StepInterval,
    StepTimer,
    kind_by_name,
)
from trackside.report._lateness import (
    FEWEST_BLOCKS,
    LateStretch,
    Rows,
    find_late,
    late_in_turn,
)


def kind_of(name: str, waits: set[str]) -> str:
    """Return the kind of a part: ``input``, ``compute``, ``waiting`` or ``other``, by its *name* and by *waits*."""
    if is_gap(name):  # it is made of the names of the parts around it
        return OTHER
    # A backward pass computes, even if it contains waiting because gradients are exchanged in it.
    if name in waits and name not in span_names.WITHIN_STEP:
        return WAITING
    return kind_by_name(name)


OUTSIDE: Final = "outside measured parts"
"""The name for all stretches between the parts together."""
_STANDSTILL: Final = "standstill"
"""The name for all standstills together, if only section windows are known."""
STANDSTILLS: Final = INTERRUPTING | {
    *(span_names.OF_ITERATION[kind] for kind in ("validation", "testing")),
    _STANDSTILL,
}
"""The spans in which training stands still between two steps; they have their own buckets and are part of no step."""
_MOST_TILES: Final = 48
_GAP: Final = "\N{RIGHTWARDS ARROW}"
_MOST_PENDING: Final = 512

Tile = tuple[int, int, str]
"""The start and the end of a part or a gap, in ns since the epoch, and its name."""


def gap(before: str, after: str) -> str:
    """Return the name of the stretch between two parts; an empty name stands for a bound of the step."""
    return f"{before}{_GAP}{after}"


def is_gap(name: str) -> bool:
    """Return whether a tile is a stretch that no span measures."""
    return _GAP in name


def tile_words(name: str) -> str:
    """Return words for a tile: the name of a part, or the position of a gap by the parts around it."""
    if not is_gap(name):
        return name
    before, _, after = name.partition(_GAP)
    if before and after:
        return f"between {before} and {after}"
    return f"before {after}" if after else f"after {before}" if before else OUTSIDE


def tiled(start_ns: int, end_ns: int, parts: Iterable[Tile]) -> Iterator[tuple[str, int, int]]:
    """Yield the name, duration and end of each tile of a step. Tiles are *parts* and gaps; they add up to the step."""
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
    The length and the end of each tile, in blocks of consecutive steps.

    A block is one step at first. If there would be more than *most* blocks, neighbours are joined.
    """

    most: int = 4_096
    block: int = 1
    """The number of steps in a block."""
    places: array[int] = attrs.field(factory=lambda: array("q"))
    """For each block, its index: the number of any of its steps divided by `block`, rounded down; or its window."""
    steps: array[int] = attrs.field(factory=lambda: array("l"))
    """For each block, how many of its steps were recorded."""
    took: dict[str, array[float]] = attrs.field(factory=dict)
    """For each tile, its total time in each block, in ns."""
    ends: dict[str, array[float]] = attrs.field(factory=dict)
    """For each tile, the sum of its end times in each block, in ns since `base_ns`."""
    first_steps: dict[int, int] = attrs.field(factory=dict)
    """The first step of each window; empty if blocks are numbered by their steps."""
    lengths: array[float] = attrs.field(factory=lambda: array("d"))
    """The total time of the steps of each window, in ns; empty as well."""
    base_ns: int = 0
    _pending: list[Tile] = attrs.field(factory=list)

    def add_part(self, start_ns: int, end_ns: int, name: str) -> None:
        """Record a part; it replaces the earlier parts that it encloses."""
        pending = self._pending
        while pending and pending[-1][0] >= start_ns:
            pending.pop()
        if len(pending) < _MOST_PENDING:
            pending.append((start_ns, end_ns, name))

    def end_step(self, step: int, start_ns: int, end_ns: int) -> None:
        """Record a step with the parts that lie in it; a step without a number is ignored."""
        parts, self._pending = self._pending, []
        if step < 0:
            return
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
        for name, duration_ns, ended_ns in tiled(start_ns, end_ns, parts):
            self._add(name, duration_ns, ended_ns - self.base_ns)

    def add_window(
        self, window: int, first_step: int, steps: int, took: Mapping[str, float], *, length_ns: float
    ) -> None:
        """Record a window of *steps* steps that took *length_ns*; of its tiles only total times are known, in ns."""
        if len(self.places) >= self.most or (self.places and window <= self.places[-1]):
            return
        self.first_steps[window] = first_step
        self.lengths.append(length_ns)
        self._append(window)
        self.steps[-1] = steps
        for name, duration_ns in took.items():
            self._add(name, duration_ns, 0.0)

    def tiled_by(self, names: Collection[str]) -> StepTiles:
        """Return the windows tiled by *names* and one remainder."""
        took = {name: column for name, column in self.took.items() if name in names or name in STANDSTILLS}
        measured = zip(*(column for name, column in took.items() if name in names), strict=True)
        sums = [math.fsum(row) for row in measured] or [0.0] * len(self.places)
        rest = array("d", (max(0.0, length - own) for length, own in zip(self.lengths, sums, strict=True)))
        if any(rest):
            took[gap("", "")] = rest
        return attrs.evolve(self, took=took, ends={name: array("d", bytes(8 * len(self.places))) for name in took})

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
        """Join neighbouring blocks until each has *block* steps, which is `block` times a power of two."""
        factor = block // self.block
        if factor <= 1:
            return
        groups = [
            [at for at, _ in members]
            for _, members in groupby(enumerate(self.places), key=lambda item: item[1] // factor)
        ]
        self.places = array("q", [self.places[group[0]] // factor for group in groups])
        self.steps = array("l", [sum(self.steps[group[0] : group[-1] + 1]) for group in groups])
        self.lengths = array("d", _joined(self.lengths, groups) if self.lengths else ())
        self.took = {name: array("d", _joined(column, groups)) for name, column in self.took.items()}
        self.ends = {name: array("d", _joined(column, groups)) for name, column in self.ends.items()}
        self.block = block

    def first_step(self, at: int) -> int:
        """Return the first step of the block at index *at*."""
        place = self.places[at]
        return self.first_steps.get(place, place * self.block)

    def time_of(self, step: int) -> int:
        """Return the approximate time when the block of *step* ended, in ns since the epoch; 0 if it is not known."""
        for at in range(len(self.places)):
            if self.first_step(at) + self.block > step and self.steps[at]:
                last = max((column[at] for column in self.ends.values()), default=0.0)
                return round(self.base_ns + last / self.steps[at])
        return 0

    def lately(self, steps: int) -> dict[str, float]:
        """Return the mean time in each part, in ns, over the last *steps* steps or a few more; gaps are `OUTSIDE`."""
        first, counted = len(self.steps), 0
        while first and counted < steps:
            first -= 1
            counted += self.steps[first]
        means: dict[str, float] = {}
        for name, column in self.took.items():
            part = OUTSIDE if is_gap(name) else name
            if part not in STANDSTILLS and (took := sum(column[first:])):
                means[part] = means.get(part, 0.0) + took / counted
        return means

    @property
    def usual_from(self) -> int:
        """The index of the first block without the first step, which starts up; 0 if there is only one block."""
        return int(len(self.places) > 1)

    @property
    def named_shares(self) -> tuple[float, float]:
        """The shares of the steps' time in named parts: without waiting, and with it."""
        sums = {name: sum(column) for name, column in self.took.items() if name not in STANDSTILLS}
        whole = sum(sums.values()) or 1.0
        named = {name: own / whole for name, own in sums.items() if not is_gap(name)}
        return sum(own for name, own in named.items() if kind_of(name, set()) != WAITING), sum(named.values())


_AROUND: Final = frozenset({span_names.APPLICATION, span_names.TRAINING_LOOP})
"""Spans around all steps; they are part of no step."""
_OVERLAP_FROM: Final = 1.02
"""Sections that together take longer than the steps by this factor lie within each other; a little more is noise."""
_LONGEST_NS: Final = float(1 << 63)
"""Longer times of a section, above 292 years, are ignored."""


@attrs.define(eq=False)
class StepRecord:
    """The steps of one rank, recorded from its events."""

    tiles: StepTiles = attrs.field(factory=StepTiles)
    """The steps, divided by the spans within them."""
    windows: StepTiles = attrs.field(factory=StepTiles)
    """The steps, divided by sections: each block is a section window."""
    timer: StepTimer = attrs.field(factory=StepTimer)
    """The rule for the start and the end of a step."""
    _since_window_ns: int = 0
    """The length of the steps since the last section window, in ns."""
    _stood_since_window_ns: int = 0
    """The time for which training stood still between these steps, in ns."""

    def iteration_ended(self, event: IterationEnded) -> StepInterval | None:
        """Read the end of an iteration; return its step if it is a training iteration that did not fail."""
        interval = self.timer.iteration_ended(event)
        if interval is not None:
            self.tiles.end_step(event.step, interval.start_ns, interval.end_ns)
            self._since_window_ns += interval.step_ns
            self._stood_since_window_ns += interval.interrupted_ns
        elif event.kind != "training":
            name = span_names.OF_ITERATION.get(event.kind, event.kind)
            self.tiles.add_part(event.at_ns - event.duration_ns, event.at_ns, name)
        return interval

    def span_started(self, event: SpanStarted) -> None:
        """Read the start of a long span."""
        self.timer.span_started(event)

    def span_ended(self, event: SpanEnded) -> None:
        """Read the end of a span."""
        self.timer.span_ended(event)
        if span_names.THREAD not in event.attributes and event.name not in _AROUND:
            self.tiles.add_part(event.at_ns - event.duration_ns, event.at_ns, event.name)

    def window_ended(self, event: SectionWindow) -> None:
        """Read a section window."""
        steps = max(1, event.last_step - event.first_step + 1)
        took = {
            name: mean_ns * entries
            for name, mean_ns, entries in zip(event.names, event.mean_ns, event.entries, strict=False)
            if 0 <= mean_ns < _LONGEST_NS  # a negative, infinite or NaN value is no duration
        }
        length_ns = float(self._since_window_ns)
        if self._stood_since_window_ns:
            took[_STANDSTILL] = self._stood_since_window_ns
        self._since_window_ns = self._stood_since_window_ns = 0
        if event.first_step >= 0:
            self.windows.add_window(event.window, event.first_step, steps, took, length_ns=length_ns)


def chosen_tiles(records: Sequence[StepRecord]) -> list[StepTiles]:
    """Return each rank's steps, divided by spans, or by section windows if these name more than twice as much."""
    by_spans = [one.tiles.named_shares for one in records]
    names = _innermost([one.windows for one in records])
    of_windows = [one.windows.tiled_by(names) for one in records]
    by_windows = [own.named_shares for own in of_windows if own.places]
    # Waiting shows nothing about the work, so it counts only if neither spans nor sections name any work.
    compared = [
        tuple(max((own[at] for own in named), default=0.0) for named in (by_spans, by_windows)) for at in (0, 1)
    ]
    spans, windows = next(filter(any, compared), compared[0])
    # Spans are preferred because they have times, which show the order of parts and the time lost between them.
    return [one.tiles if windows <= 2 * spans else own for one, own in zip(records, of_windows, strict=True)]


def _innermost(windows: Iterable[StepTiles]) -> set[str]:
    """
    Return the names of the sections that can be tiles of a step, on all ranks alike.

    Sections may lie within others, and the windows do not say in which. So while all of them together take longer than
    the steps, the longest one is left out: it is as long as the sections within it, or it lies between the steps.
    """
    totals: dict[str, float] = {}
    steps_ns = 0.0
    for own in windows:
        first = min(
            1, len(own.lengths) - 1
        )  # the first step, of which only the parts are known, is in the first window
        steps_ns += math.fsum(own.lengths[first:])
        for name, column in own.took.items():
            if name not in STANDSTILLS:
                totals[name] = totals.get(name, 0.0) + math.fsum(column[first:])
    names = sorted(totals, key=totals.__getitem__)
    while len(names) > 1 and math.fsum(totals[name] for name in names) > _OVERLAP_FROM * steps_ns > 0:
        names.pop()
    return set(names)


class RecordedProcess(Protocol):
    """A process whose steps were recorded."""

    source: Source
    record: StepRecord


ProcessT = TypeVar("ProcessT", bound=RecordedProcess)


def most_blocks(processes: int, most: int) -> int:
    """Return the number of blocks of steps to keep for each process, if all *processes* together may keep *most*."""
    return min(4_096, max(128, most // max(1, processes)))


def tiles_of(processes: Iterable[ProcessT]) -> list[tuple[ProcessT, StepTiles]]:
    """Return the processes that recorded steps, each with the tiles of its steps."""
    known = list(processes)
    return [
        (one, tiles)
        for one, tiles in zip(known, chosen_tiles([one.record for one in known]), strict=True)
        if tiles.places
    ]


def by_attempt(processes: Iterable[ProcessT]) -> list[dict[int, tuple[ProcessT, StepTiles]]]:
    """Return, for each attempt in the order of *processes*, the ranks that recorded steps, with their tiles."""
    attempts: dict[tuple[str, int], dict[int, tuple[ProcessT, StepTiles]]] = {}
    for one, tiles in tiles_of(processes):
        attempts.setdefault((one.source.run_id, one.source.attempt), {})[one.source.rank] = one, tiles
    return list(attempts.values())


def _joined(column: Sequence[float], groups: Sequence[Sequence[int]]) -> list[float]:
    return [sum(column[group[0] : group[-1] + 1]) for group in groups]


_LOOKED_AT: Final = 96
_SYNC_FROM_SHARE: Final = 0.02
_LEAST_LOADING: Final = 2.0
"""A rank is late by loading if it waits for data for so many times as long as its peers, and more."""
_PARTS_FROM: Final = 0.2
"""A part is named beside the largest one if its excess is at least this share of the rank's lateness."""


@attrs.frozen(kw_only=True)
class LateRank:
    """One rank that others waited for."""

    rank: int
    what: str
    """The part in which it lost most, or ``outside measured parts``."""
    where: str
    """`what` in words: the part, or the parts around the stretch."""
    own_ns: float
    """The mean time per step that it spent there."""
    peers_ns: float
    """The median of this time over the ranks that were not late."""
    lateness_ns: float
    """The mean time per step by which it arrived later than its peers."""
    since_step: int
    until_step: int
    is_over: bool
    """Whether it was as fast as its peers again at the end."""
    lost_s: float
    """The time that would be saved if its parts took as long as its peers'."""
    excess_s: float
    """The time that it spent in `what` beyond its peers; more than `lost_s` if it was faster in other parts."""
    chance: float | None
    """
    The probability that noise alone makes a rank of this job look so late; None if only the scores of windows show
    it, or if it is grossly late.
    """
    by_part: bool = False
    """Whether noise can explain the excess of its whole own time, but not that of `what` alone."""
    steps: int = 0
    """The number of steps in which it was late, repeated ones included; 0 if only the scores of windows are known."""
    also_in: tuple[str, ...] = ()
    """Other parts in which it was slower."""
    waited_in: str = ""
    """The part in which the others waited for it; empty if it is not known, or if ranks do not wait for each other."""
    attempt: int = 0
    """The index of the attempt in which it began to be late."""
    began: tuple[int, int] | None = None
    """The first and the last step in which it may have begun to be late; None if the step counts as known."""
    node: str = ""
    since_ns: int = 0


@attrs.frozen(kw_only=True)
class WhatIf:
    """The result of comparing the ranks' steps."""

    late: tuple[LateRank, ...] = ()
    """The late ranks, the most costly first."""
    waits_in: tuple[str, ...] = ()
    """The tiles in which ranks wait for each other."""
    exchanged_ns: float = 0.0
    """The time that the last rank to arrive spent in these tiles in the median step: the exchange itself."""
    waited_ns: float = 0.0
    """The time that a rank spent in these tiles beyond the last one to arrive, as the mean over ranks and steps."""
    step_ns: float = 0.0
    """The length of a usual step."""
    ranks: int = 0
    steps: int = 0
    in_turn: Mapping[int, float] = attrs.field(factory=dict)
    """The ranks that were late in turn, each with its share of the steps; empty if `late` is not empty."""
    in_turn_s: float = 0.0
    """The time that the job lost by ranks in `in_turn`."""
    why_not: str = ""
    """The reason why the ranks could not be compared; empty if they were."""


@attrs.frozen(kw_only=True)
class Pause:
    """Steps of one rank, or of several, that are longer than usual, at regular intervals or by far."""

    ranks: tuple[int, ...]
    """The ranks that pause, in order; of many ranks only the first 64 are searched."""
    is_every_rank: bool
    """Whether these are all of several ranks."""
    every_steps: int | None
    """None if the pauses do not come at regular intervals."""
    steps: tuple[int, ...]
    """Of the rank whose pauses cost most, as are the next two."""
    length_ns: float
    """The mean time by which such a step is longer than usual."""
    where: str
    """The tile that grows most in such a step."""
    cost_s: float


@attrs.define(eq=False)
class _Grid:
    """The tiles of all ranks, in the blocks of steps that all ranks have; attempts follow one after the other."""

    ranks: list[int]
    attempts: list[int]
    """For each block, the index of its attempt."""
    first_steps: list[int]
    last_steps: list[int]
    counts: list[float]
    """The number of steps in each block."""
    took: dict[str, list[list[float]]]
    """For each tile and rank, its mean time in a step of each block, in ns."""
    ends: dict[str, list[list[float]]]
    """For each tile and rank, its mean end time in each block, in ns since a common zero."""
    has_ends: bool

    def total(self, names: Collection[str]) -> list[list[float]]:
        """Return the total time of the tiles *names*, for each rank and block."""
        chosen = [self.took[name] for name in names]
        return [
            [math.fsum(values) for values in zip(*(own[place] for own in chosen), strict=True)]
            if chosen
            else [0.0] * len(self.counts)
            for place in range(len(self.ranks))
        ]

    def extend(self, later: _Grid) -> None:
        """Append the blocks of a later attempt of the same ranks."""
        for name in self.took.keys() | later.took.keys():
            for own, added in ((self.took, later.took), (self.ends, later.ends)):
                columns = own.setdefault(name, [[0.0] * len(self.counts) for _ in self.ranks])
                more = added.get(name, [[0.0] * len(later.counts) for _ in self.ranks])
                own[name] = [before + after for before, after in zip(columns, more, strict=True)]
        self.attempts += later.attempts
        self.first_steps += later.first_steps
        self.last_steps += later.last_steps
        self.counts += later.counts
        self.has_ends = self.has_ends and later.has_ends


def compare_all(processes: Iterable[RecordedProcess], waits: Collection[str]) -> WhatIf:
    """
    Compare the ranks over all attempts, for every view.

    The late ranks are those of all attempts; the other figures are those of the last attempts with the same ranks.

    Args:
        processes: The ranks of all attempts of a job, attempt by attempt.
        waits: Names of parts in which ranks are known to wait for each other.
    """
    attempts = by_attempt(processes)
    what_if = compare_ranks(
        [{rank: tiles for rank, (_, tiles) in own.items()} for own in attempts],
        waits,
        hosts={one.source.host for own in attempts for one, _ in own.values()},
    )
    late = []
    for one in what_if.late:
        process, tiles = attempts[one.attempt][one.rank]
        late.append(attrs.evolve(one, node=process.source.host, since_ns=tiles.time_of(one.since_step)))
    return attrs.evolve(what_if, late=tuple(late))


def compare_ranks(
    attempts: Sequence[Mapping[int, StepTiles]], waits: Collection[str] = (), *, hosts: Collection[str] = ("",)
) -> WhatIf:
    """
    Return which ranks were late, since when, and why.

    Attempts of the same ranks are compared as one sequence of steps. So lateness that begins in one attempt and
    continues in the next is found once.

    Args:
        attempts: The steps of each rank, for each attempt in order.
        waits: Names of parts in which ranks are known to wait for each other.
        hosts: The hosts of the ranks, each once; ranks on one host share a clock.
    """
    # Section windows have no times within a step.
    has_times = not any(own.first_steps for tiles in attempts for own in tiles.values())
    have_one_clock = len(hosts) == 1 and "" not in hosts and has_times
    block = max((own.block for tiles in attempts for own in tiles.values()), default=1)
    grids: list[_Grid] = []
    why_not = "no rank recorded a step"
    for place, tiles in enumerate(attempts):
        grid = _grid(tiles, place, block)
        if isinstance(grid, str):
            why_not = grid
        elif grids and grids[-1].ranks == grid.ranks:
            grids[-1].extend(grid)
        else:
            grids.append(grid)
    whole = [grid for grid in grids if len(grid.counts) >= FEWEST_BLOCKS and sum(grid.counts) >= FEWEST_STEPS]
    if not whole:
        return WhatIf(why_not="the ranks have too few steps in common" if grids else why_not)
    results = [_compared(grid, waits, have_one_clock=have_one_clock) for grid in whole]
    # Lateness in earlier attempts, with other ranks, is over.
    late = [
        attrs.evolve(one, is_over=one.is_over or grid is not grids[-1])
        for grid, result in zip(whole, results, strict=True)
        for one in result.late
    ]
    return attrs.evolve(results[-1], late=tuple(sorted(late, key=lambda one: (-one.lost_s, one.rank))))


def late_words(one: LateRank) -> str:
    """Return one line for views: where a late rank is slow, by how much and since when."""
    place = f"in {one.where}" if one.what == one.where != OUTSIDE else one.where
    return f"slow {place}: {words.duration(one.lateness_ns)} a step, {since_words(one)}"


def since_words(one: LateRank) -> str:
    """Return the steps in which a rank was late, in words; with *about* if noise makes the first one uncertain."""
    about = "about " if one.began else ""
    if one.is_over:
        return f"in {about}steps {one.since_step} to {one.until_step}"
    return f"since {about}step {one.since_step}"


def _compared(grid: _Grid, waits: Collection[str], *, have_one_clock: bool) -> WhatIf:
    names = [name for name in grid.took if name not in STANDSTILLS]
    whole = grid.total(names)
    usual_ns = statistics.median(statistics.fmean(own) for own in whole)
    sync = _synchronizing(grid, names, whole, waits, usual_ns)
    own = grid.total([name for name in names if name not in sync])
    late = _find_late(grid, own, whole, parts=[name for name in names if name not in sync])
    if not sync and have_one_clock and grid.has_ends and not late:
        late = _find_behind(grid, names, whole)
    turns, turns_ns = ({}, 0.0) if late else late_in_turn(own, grid.counts, usual_ns)
    # A part such as the backward pass contains work besides the exchange.
    pure = [name for name in sync if is_gap(name) or kind_of(name, set(waits)) == WAITING]
    waits_ns = list(zip(*grid.total(pure), strict=True))
    exchanged = [min(column) for column in waits_ns]
    waited_ns = [statistics.fmean(column) - least for column, least in zip(waits_ns, exchanged, strict=True)]
    largest = max(sync, key=lambda name: sum(map(math.fsum, grid.took[name])), default="")
    waited_in = "" if not largest else tile_words(largest) if is_gap(largest) else f"in {largest}"
    return WhatIf(
        late=tuple(attrs.evolve(one, waited_in=waited_in) for one in late),
        waits_in=tuple(sync),
        in_turn={grid.ranks[at]: share for at, share in turns.items()},
        in_turn_s=turns_ns * sum(grid.counts) / 1e9,
        exchanged_ns=statistics.median(exchanged),
        waited_ns=statistics.fmean(waited_ns),
        step_ns=usual_ns,
        ranks=len(grid.ranks),
        steps=round(sum(grid.counts)),
    )


def _grid(tiles: Mapping[int, StepTiles], attempt: int, block: int) -> _Grid | str:
    if len(tiles) < 2:  # noqa: PLR2004
        return "fewer than two ranks recorded steps"
    for own in tiles.values():
        own.coarsen(block)
    most = max(len(own.places) for own in tiles.values())
    # With a rank that died early, the others would have too few common steps.
    known = {rank: own for rank, own in sorted(tiles.items()) if 2 * len(own.places) >= most}
    if len(known) < 2:  # noqa: PLR2004
        return "the ranks recorded different steps"
    common = sorted(set.intersection(*(set(own.places) for own in known.values())))
    # The first step of an attempt is unlike all others.
    places = common[1:] if block == 1 and (attempt or len(common) > FEWEST_STEPS) else common
    rows = {rank: {place: at for at, place in enumerate(own.places)} for rank, own in known.items()}
    counts = {place: min(own.steps[rows[rank][place]] for rank, own in known.items()) for place in places}
    places = [place for place in places if counts[place]]
    if not places:
        return "the ranks have too few steps in common"
    base_ns = min(own.base_ns for own in known.values())
    zeros = [0.0] * len(places)
    took: dict[str, list[list[float]]] = {}
    ends: dict[str, list[list[float]]] = {}
    for name in dict.fromkeys(name for own in known.values() for name in own.took):
        took[name], ends[name] = [], []
        for rank, own in known.items():
            column, last = own.took.get(name), own.ends.get(name)
            if column is None or last is None:
                took[name].append(zeros)
                ends[name].append(zeros)
                continue
            shift_ns = own.base_ns - base_ns
            own_rows, steps = rows[rank], own.steps
            took[name].append([column[own_rows[place]] / steps[own_rows[place]] for place in places])
            ends[name].append([last[own_rows[place]] / steps[own_rows[place]] + shift_ns for place in places])
    longest = _longest_standstills(took)
    for at in range(len(known)):
        columns = {name: rows[at] for name, rows in took.items()}
        for name, own_ns in _without_standstills(columns, longest).items():
            took[name][at] = own_ns
    lead = next(iter(known.values()))
    firsts = [lead.first_steps.get(place, place * block) for place in places]
    lasts = [
        first + (counts[place] if lead.first_steps else block) - 1 for first, place in zip(firsts, places, strict=True)
    ]
    if not lead.first_steps:
        firsts[0] = common[0] * block  # the first block includes a first step that was left out
    return _Grid(
        ranks=list(known),
        attempts=[attempt] * len(places),
        first_steps=firsts,
        last_steps=lasts,
        counts=[float(counts[place]) for place in places],
        took=took,
        ends=ends,
        has_ends=any(any(own) for columns in ends.values() for own in columns),
    )


def _standstills(columns: Mapping[str, Sequence[float]]) -> list[float]:
    """Return the time for which one rank stood still, for each block."""
    rows = zip(*(own for name, own in columns.items() if name in STANDSTILLS), strict=True)
    return list(map(math.fsum, rows)) or [0.0] * max(map(len, columns.values()), default=0)


def _longest_standstills(took: Mapping[str, Sequence[Sequence[float]]]) -> list[float]:
    """Return the longest standstill of any rank, for each block; *took* has the times of all ranks for each tile."""
    ranks = len(next(iter(took.values()), ()))
    own = [_standstills({name: rows[at] for name, rows in took.items()}) for at in range(ranks)]
    return [max(column) for column in zip(*own, strict=True)]


def _without_standstills(columns: Mapping[str, Sequence[float]], longest: Sequence[float]) -> dict[str, list[float]]:
    """
    Return the tiles of one rank without standstills and without its wait for other ranks' standstills, as in a barrier.

    While one rank saves or evaluates, the others may wait where no span measures it. This is not lateness, nor a pause.
    """
    found = {name: list(own) for name, own in columns.items() if name not in STANDSTILLS}
    unnamed = [own for name, own in found.items() if kind_of(name, set()) in {OTHER, WAITING}]
    own_standstills = _standstills(columns)
    for at, (longest_ns, own_ns) in enumerate(zip(longest, own_standstills, strict=True)):
        if longest_ns > own_ns and unnamed:
            column = max(unnamed, key=lambda own: own[at])
            column[at] -= min(column[at], longest_ns - own_ns)
    return found


# --- where ranks wait ---------------------------------------------------------------------------------------------


def _synchronizing(
    grid: _Grid, names: Sequence[str], whole: Sequence[Sequence[float]], waits: Collection[str], usual_ns: float
) -> list[str]:
    """
    Return the tiles in which ranks wait for each other.

    They are known by their names, or because ranks enter them at different times and leave them together. If no such
    tile is found, it is the one in which one rank takes less time than its peers, because it takes longer elsewhere.
    """
    sync = [name for name in names if name in waits or kind_of(name, set(waits)) == WAITING]
    least_ns = max(LEAST_LATE_NS / 3, _SYNC_FROM_SHARE * usual_ns)
    if grid.has_ends:
        sync += [name for name in names if name not in sync and _leaves_together(grid, name, least_ns)]
    if not sync:
        sync = _shorter_for_the_late(grid, names, whole, least_ns)
    return sync


def _looked_at(grid: _Grid) -> range:
    return range(0, len(grid.counts), max(1, len(grid.counts) // _LOOKED_AT))


def _leaves_together(grid: _Grid, name: str, least_ns: float) -> bool:
    took, ends = grid.took[name], grid.ends[name]
    entered, left = [], []
    for at in _looked_at(grid):
        here = [(end[at] - own[at], end[at]) for own, end in zip(took, ends, strict=True) if own[at]]
        if len(here) == len(grid.ranks):
            entered.append([start for start, _ in here])
            left.append([stop for _, stop in here])
    if len(entered) < FEWEST_BLOCKS:
        return False
    spreads = [[max(times) - min(times) for times in bounds] for bounds in (entered, left)]
    means = [[mean(spread) for spread in spreads] for mean in (statistics.fmean, statistics.median)]
    return any(
        apart_ns - together_ns >= least_ns and together_ns <= apart_ns / 2 for apart_ns, together_ns in means
    ) and not _keeps_its_distance(entered, left)


def _keeps_its_distance(entered: Sequence[Sequence[float]], left: Sequence[Sequence[float]]) -> bool:
    """
    Return whether a rank that enters a tile later than in the step before leaves it later by as much.

    Then it waits for nobody there, even if all leave close together: it takes less time than its peers and had taken
    more before. Least squares decide between the two: leaving does not depend on entering, or follows it.
    """
    by_bound = []
    for times in (entered, left):
        apart = [[time - statistics.median(row) for time in row] for row in times]
        by_bound.append(
            [after - before for pair in itertools.pairwise(apart) for before, after in zip(*pair, strict=True)]
        )
    return math.fsum((out - in_) ** 2 for in_, out in zip(*by_bound, strict=True)) < math.fsum(
        out**2 for out in by_bound[1]
    )


def _shorter_for_the_late(
    grid: _Grid, names: Sequence[str], whole: Sequence[Sequence[float]], least_ns: float
) -> list[str]:
    """Return the tile in which one rank takes less time than its peers, if the tile can contain waiting."""
    found = []
    even = []
    steps = [statistics.fmean(own) for own in whole]
    apart_ns = max(steps) - min(steps)
    for name in names:
        kind = kind_of(name, set())
        if kind == "input" or (_FORWARD in name.lower() and not is_gap(name)):
            continue
        means = [statistics.fmean(own) for own in grid.took[name]]
        if max(means) - min(means) < 2 * apart_ns:
            continue  # if whole steps differ too, ranks do not wait for each other there
        middle = statistics.median(means)
        below, above = middle - min(means), max(means) - middle
        if len(grid.ranks) > 2 and below > 2 * above and below >= least_ns:  # noqa: PLR2004
            found.append((_order(name), -below, name))
        elif below + above >= least_ns:
            even.append((_order(name), -below, name))
    # With two ranks, or if half of them are late, durations alone do not show which ones wait.
    candidates = found or even
    return [min(candidates)[2]] if candidates else []


_FORWARD: Final = "forward"
_BACKWARD: Final = "backward"
_OPTIMIZER: Final = "optim"
"""Parts of the names of parts, of spans as of sections by hand."""


def _order(name: str) -> int:
    """Return 0 for the tile likeliest to contain waiting, more for others: gradients are exchanged after backward."""
    low = name.lower()
    if is_gap(name):
        return 0 if _BACKWARD in low.partition(_GAP)[0] else 3
    return 1 if _BACKWARD in low else 2 if _OPTIMIZER in low else 4


# --- who is late --------------------------------------------------------------------------------------------------


def _find_late(grid: _Grid, own: Rows, whole: Rows, *, parts: Sequence[str], is_tiled: bool = True) -> list[LateRank]:
    """Return the late ranks, the most costly first; *parts* are the tiles whose sum is *own*, if *is_tiled*."""
    usual_ns = statistics.median(map(statistics.median, whole))
    late = find_late(own, grid.counts, usual_ns, [grid.took[name] for name in parts] if is_tiled else ())
    others = [at for at in range(len(grid.ranks)) if at not in late]
    found = [_late(grid, at, others, episode=episode, parts=parts) for at, episode in late.items()]
    blamed = [one for one in found if one is not None and not _may_be_last_in_line(one)]
    return sorted(blamed, key=lambda one: (-one.lost_s, one.rank))


def _may_be_last_in_line(one: LateRank) -> bool:
    """
    Return whether a rank waits longest for its data, and the others long, too.

    Workers of a loader load while the steps go on. Where they are too slow on all ranks, the rank whose batches come
    last waits for them, and the others for this rank: meanwhile theirs come, so that they wait less for data, though
    their loaders are as slow.
    """
    return kind_of(one.what, set()) == "input" and one.own_ns < _LEAST_LOADING * one.peers_ns


def _find_behind(grid: _Grid, names: Sequence[str], whole: Sequence[Sequence[float]]) -> list[LateRank]:
    """
    Return the ranks that reach every bound of their tiles later than their peers, always by the same time.

    Such a rank loses time in the tile in which ranks wait for each other, after the wait. So its tiles are as long as
    its peers', and only the times of their bounds differ. Only a common clock shows this.
    """
    candidates = [name for name in names if all(any(own) for own in grid.took[name]) and _order(name) < 3]  # noqa: PLR2004
    if not candidates:
        return []
    name = min(candidates, key=lambda name: (_order(name), -math.fsum(map(statistics.fmean, grid.took[name]))))
    entered = [
        [end - took for end, took in zip(ends, own, strict=True)]
        for ends, own in zip(grid.ends[name], grid.took[name], strict=True)
    ]
    apart_ns = statistics.median(max(column) - min(column) for column in zip(*entered, strict=True))
    if apart_ns > statistics.median(map(statistics.median, whole)):
        return []  # of ranks that meet in each step none is a step behind: these have two clocks, under one host's name
    return _find_late(grid, entered, whole, parts=[name], is_tiled=False)


def _late(
    grid: _Grid,
    at: int,
    others: Sequence[int],
    *,
    episode: LateStretch,
    parts: Sequence[str],
) -> LateRank | None:
    first, last = episode.first, episode.last
    counts = grid.counts[first : last + 1]
    steps = math.fsum(counts)

    def mean(values: Sequence[float]) -> float:
        return math.fsum(value * count for value, count in zip(values[first : last + 1], counts, strict=True)) / steps

    excess = {}
    for name in parts:
        columns = grid.took[name]
        excess[name] = mean(columns[at]), statistics.median([mean(columns[other]) for other in others])
    what = max(excess, key=lambda name: excess[name][0] - excess[name][1], default="")
    if not what:
        return None
    lateness_ns = episode.level_ns
    ordered = sorted(((name, own - peers) for name, (own, peers) in excess.items()), key=lambda item: -item[1])
    # If only one part shows the lateness, the other parts are noise.
    beside = [] if episode.by_part else [one for one in ordered if one[0] != what]
    return LateRank(
        rank=grid.ranks[at],
        what=OUTSIDE if is_gap(what) else what,
        where=tile_words(what),
        own_ns=excess[what][0],
        peers_ns=excess[what][1],
        lateness_ns=lateness_ns,
        since_step=grid.first_steps[first],
        until_step=grid.last_steps[last],
        is_over=last < len(grid.counts) - max(2, len(grid.counts) // 20),
        lost_s=episode.cost_ns * steps / 1e9,
        excess_s=(excess[what][0] - excess[what][1]) * steps / 1e9,
        chance=episode.chance,
        by_part=episode.by_part,
        steps=round(steps),
        also_in=tuple(tile_words(name) for name, by in beside if by >= _PARTS_FROM * lateness_ns),
        attempt=grid.attempts[first],
        began=episode.began and (grid.first_steps[episode.began[0]], grid.last_steps[episode.began[1]]),
    )


# --- pauses: at regular intervals, or long ------------------------------------------------------------------------

LEAST_PAUSE_NS: Final = 5e6
LEAST_PAUSE_SHARE: Final = 0.5
"""A pause makes a step longer by at least this share of the usual step."""
LONG_PAUSE_NS: Final = 1e9
LONG_PAUSE_STEPS: Final = 10
"""A step that is longer by so many usual steps, and by `LONG_PAUSE_NS`, is a pause even without regular intervals."""
_FEWEST_PAUSES: Final = 5
_MOST_PAUSES: Final = 0.25
"""The largest share of steps that may be pauses; if there are more, they are usual steps."""
_REGULAR: Final = 0.75
_MOST_CHANCE: Final = 1e-4
"""The largest accepted probability that random pauses come at such regular intervals."""
_MOST_SEARCHED: Final = 64


def find_pause(tiles: Mapping[int, StepTiles], sync: Collection[str]) -> Pause | None:
    """
    Return the steps that pauses make longer, at regular intervals (a garbage collection) or else by far; or None.

    Args:
        tiles: The steps of each rank, in one attempt.
        sync: The tiles in which ranks wait for each other; they are left out, because they show pauses of other ranks.
    """
    found = []
    stood_ns: dict[int, float] = {}
    for own in tiles.values():
        for place, length_ns in zip(own.places, _standstills(own.took), strict=True):
            stood_ns[place] = max(length_ns, stood_ns.get(place, 0.0))
    for rank, own in sorted(tiles.items())[:_MOST_SEARCHED]:
        if own.block == 1 and not own.first_steps and len(own.places) >= FEWEST_STEPS:
            took = _without_standstills(own.took, [stood_ns[place] for place in own.places])
            columns = {name: column for name, column in took.items() if name not in sync}
            pause = _pause_of(rank, own.places, columns)
            if pause is not None:
                found.append(pause)
    if not found:
        return None
    longest = max(found, key=lambda pause: pause.cost_s)
    many = [pause for pause in found if pause.cost_s >= longest.cost_s / 3]
    if len(many) == 1:
        return longest
    # The job waits for each rank that pauses in turn, but only once for ranks that pause together.
    together = len({pause.steps[0] for pause in many}) == 1
    cost_s = longest.cost_s if together else math.fsum(pause.cost_s for pause in many)
    ranks = tuple(rank for pause in many for rank in pause.ranks)
    return attrs.evolve(longest, ranks=ranks, is_every_rank=len(ranks) == len(tiles), cost_s=cost_s)


def _regular(lengths: Sequence[float], bound: float) -> list[int] | None:
    """Return the indices of the *lengths* above *bound*; None if they are few, many, or at irregular intervals."""
    at = [place for place, length in enumerate(lengths) if length > bound]
    if not _FEWEST_PAUSES <= len(at) <= _MOST_PAUSES * len(lengths):
        return None
    gaps = [after - before for before, after in itertools.pairwise(at)]
    usual = statistics.median(gaps)
    deviations = [abs(between - usual) for between in gaps]
    regular = [deviation for deviation in deviations if deviation <= max(1.0, 0.1 * usual)]
    if usual < 3 or len(regular) < _REGULAR * len(gaps):  # noqa: PLR2004
        return None
    chance = _chance_of_gaps(len(at) / len(lengths), usual, max(regular), len(regular), len(gaps))
    return at if chance <= _MOST_CHANCE else None


def _chance_of_gaps(share: float, usual: float, deviation: float, regular: int, count: int) -> float:
    """
    Return a bound on the probability that *regular* or more of *count* gaps lie within *deviation* of *usual*.

    If each step pauses by chance, with the probability *share*, gaps have a geometric distribution. The number of gaps
    that fit is binomial, without the one that gave *usual*. Chernoff's bound limits its tail; it is exact if all fit.
    """
    fitting = range(math.ceil(usual - deviation), math.floor(usual + deviation) + 1)
    fits = math.fsum(share * (1.0 - share) ** (gap_steps - 1) for gap_steps in fitting)
    free = count - 1
    part = (regular - 1) / free
    if part <= fits:
        return 1.0
    others = (1.0 - part) * math.log((1.0 - part) / (1.0 - fits)) if part < 1.0 else 0.0
    return math.exp(-free * (part * math.log(part / fits) + others))


def _pause_of(rank: int, places: Sequence[int], took: Mapping[str, Sequence[float]]) -> Pause | None:
    if not took:
        return None
    lengths = [math.fsum(values) for values in zip(*took.values(), strict=True)][1:]
    steps = list(places)[1:]
    middle = statistics.median(lengths)
    least_ns = middle + max(LEAST_PAUSE_NS, LEAST_PAUSE_SHARE * middle)
    # Noise may also lengthen steps between pauses. Then only the longest steps come at regular intervals.
    halfway_ns = (middle + sorted(lengths)[-_FEWEST_PAUSES]) / 2
    at = next(filter(None, (_regular(lengths, bound) for bound in (least_ns, max(least_ns, halfway_ns)))), None)
    every_steps = None if at is None else round(statistics.median(map(operator.sub, at[1:], at)))
    if at is None:
        long_ns = middle + max(LONG_PAUSE_NS, LONG_PAUSE_STEPS * middle)
        at = [place for place, length in enumerate(lengths) if length > long_ns]
        if not at or len(at) > _MOST_PAUSES * len(lengths):
            return None
    grew = {
        name: math.fsum(column[place + 1] for place in at) / len(at) - statistics.median(column)
        for name, column in took.items()
    }
    longest = max(grew, key=lambda name: grew[name])
    cost_ns = math.fsum(lengths[place] - middle for place in at)
    return Pause(
        ranks=(rank,),
        is_every_rank=False,
        every_steps=every_steps,
        steps=tuple(steps[place] for place in at),
        length_ns=cost_ns / len(at),
        where=longest,
        cost_s=cost_ns / 1e9,
    )
