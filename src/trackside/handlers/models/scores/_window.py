"""One window as the aggregator holds it: what each rank measured in it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trackside.handlers.models.scores._layout import Layout, Layouts
from trackside.handlers.models.scores._packing import packed, unpacked

Key = tuple[int, int]
"""Attempt and number of a window, in which order windows follow each other."""

Summary = Mapping[str, Mapping[str, float]]
"""By name, the statistics of one rank: count, min, max, median, mean and std, in ns."""


@attrs.frozen
class Timings:
    """What one rank measured of its sections, or of its kernels, in one window."""

    layout: Layout
    medians: array[float]
    weights: array[float]
    """Of a section how often it was entered, of a kernel its total time in ns."""
    lowest: array[float]
    """The smallest medians of the rank's own stream so far, these included."""
    number: int
    """Windows of the stream up to this one, itself included."""
    left_out_ns: float = 0.0
    """Total time of what was excluded."""

    def dump(self, place_of: Callable[[Layout], int]) -> list[Any]:
        """Return this as plain data."""
        return [
            place_of(self.layout),
            packed(self.medians),
            packed(self.weights),
            packed(self.lowest),
            self.number,
            self.left_out_ns,
        ]

    @classmethod
    def load(cls, data: Any, layouts: list[Layout]) -> Timings:
        """Return what was dumped as *data*."""
        place, medians, weights, lowest, number, left_out_ns = data
        layout = layouts[place]
        columns = unpacked(medians), unpacked(weights), unpacked(lowest)
        if any(len(column) != len(layout) for column in columns):
            raise ValueError("as many values as names")
        return cls(layout, columns[0], columns[1], columns[2], int(number), float(left_out_ns))


@attrs.define
class Member:
    """One rank's part in a window."""

    node: str
    group: str
    tag: tuple[str, ...]
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    sections: Timings | None = None
    kernels: Timings | None = None
    summaries: dict[str, Summary] = attrs.field(factory=dict)
    """``sections`` and ``kernels`` in full, of the one rank that they are kept of."""
    waited_ns: float = 0.0
    """How long the rank waited for others, in the sections that say so."""
    events: int = 0
    """How many windows of its rank it was made from, those included that were measured again after a roll-back."""

    @property
    def steps(self) -> int:
        """How many steps it covers, at least one."""
        return max(1, self.last_step - self.first_step + 1)

    @property
    def waited_s_per_step(self) -> float:
        """How long the rank waited for others, in seconds."""
        return self.waited_ns / self.steps / 1e9

    @property
    def left_out_s_per_step(self) -> float | None:
        """How long its GPU was in kernels that are left out, in seconds; None where no kernels are known."""
        return None if self.kernels is None else self.kernels.left_out_ns / self.steps / 1e9

    def widen(self, first_step: int, last_step: int, start_ns: int, end_ns: int) -> None:
        """Take in the bounds of the rank's other event of this window."""
        self.first_step = min(self.first_step, first_step)
        self.last_step = max(self.last_step, last_step)
        self.start_ns = min(self.start_ns, start_ns)
        self.end_ns = max(self.end_ns, end_ns)

    def dump(self, place_of: Callable[[Layout], int]) -> list[Any]:
        """Return this as plain data."""
        return [
            self.node,
            self.group,
            list(self.tag),
            [self.first_step, self.last_step, self.start_ns, self.end_ns],
            self.sections and self.sections.dump(place_of),
            self.kernels and self.kernels.dump(place_of),
            self.summaries,
            self.waited_ns,
            self.events,
        ]

    @classmethod
    def load(cls, data: Any, layouts: list[Layout]) -> Member:
        """Return what was dumped as *data*."""
        node, group, tag, bounds, sections, kernels, summaries, waited_ns, events = data
        first_step, last_step, start_ns, end_ns = bounds
        return cls(
            str(node),
            str(group),
            tuple(map(str, tag)),
            int(first_step),
            int(last_step),
            int(start_ns),
            int(end_ns),
            sections=sections and Timings.load(sections, layouts),
            kernels=kernels and Timings.load(kernels, layouts),
            summaries=dict(summaries),
            waited_ns=float(waited_ns),
            events=int(events),
        )


@attrs.define
class Window:
    """One window of all ranks."""

    members: dict[int, Member] = attrs.field(factory=dict)
    revision: int = 0
    """Events it was made from."""
    timed: int = 0
    """Members whose sections are in."""

    def add(self, rank: int, member: Member) -> None:
        """Take in all that *rank* measured."""
        self.members[rank] = member
        self.revision += member.events
        self.timed += member.sections is not None

    def without(self, rank: int) -> None:
        """Forget what *rank* measured."""
        member = self.members.pop(rank, None)
        if member is not None:
            self.revision -= member.events
            self.timed -= member.sections is not None


class Names:
    """Numbers layouts while they are dumped, so that each is written once."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, ...], int] = {}

    def place_of(self, layout: Layout) -> int:
        """Return the number of *layout*."""
        return self._places.setdefault(layout.names, len(self._places))

    def dump(self) -> list[list[str]]:
        """Return the names of each, in the order of their numbers."""
        return [list(names) for names in self._places]

    @staticmethod
    def load(data: Any, layouts: Layouts) -> list[Layout]:
        """Return the layouts that were dumped as *data*."""
        return [layouts.of(map(str, names)) for names in data]
