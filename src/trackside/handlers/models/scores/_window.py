"""The times that ranks measured in one window, and their compact form."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import attrs

_IS_LITTLE: Final = sys.byteorder == "little"


def packed(values: array[float]) -> bytes:
    """Return *values* as packed 64-bit floats, little-endian."""
    if _IS_LITTLE:
        return values.tobytes()
    swapped = values[:]
    swapped.byteswap()
    return swapped.tobytes()


def unpacked(data: bytes) -> array[float]:
    """Return the 64-bit floats packed in *data*."""
    values = array("d")
    values.frombytes(data)
    if not _IS_LITTLE:
        values.byteswap()
    return values


def packed_numbers(values: Iterable[int]) -> bytes:
    """Return *values* as packed unsigned 32-bit integers, little-endian."""
    numbers = array("I", values)
    if not _IS_LITTLE:
        numbers.byteswap()
    return numbers.tobytes()


def unpacked_numbers(data: bytes) -> list[int]:
    """Return the unsigned 32-bit integers packed in *data*."""
    numbers = array("I")
    numbers.frombytes(data)
    if not _IS_LITTLE:
        numbers.byteswap()
    return numbers.tolist()


_MAX_LAYOUTS: Final = 1024

Pick = Callable[[Sequence[float]], Sequence[float]]


class Layout:
    """Names in a fixed order. Equal layouts from one `Layouts` are usually the same object."""

    __slots__ = ("_excluded", "names", "places")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.places = {name: place for place, name in enumerate(names)}
        self._excluded: tuple[Callable[[str], bool], frozenset[int]] | None = None

    def excluded(self, exclude: Callable[[str], bool]) -> frozenset[int]:
        """Return the indices of the names for which *exclude* is true."""
        if self._excluded is None or self._excluded[0] is not exclude:
            self._excluded = exclude, frozenset(place for place, name in enumerate(self.names) if exclude(name))
        return self._excluded[1]

    def pick(self, names: Sequence[str]) -> Pick | None:
        """Return a function that picks the columns of *names* from a row; None if the row has just these in order."""
        if tuple(names) == self.names:
            return None
        return picker([self.places[name] for name in names])

    def __len__(self) -> int:
        return len(self.names)


class Layouts:
    """Makes a layout for each combination of names, once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], Layout] = {}

    def of(self, names: Iterable[str]) -> Layout:
        """Return the layout of *names*."""
        key = tuple(names)
        layout = self._known.get(key)
        if layout is None:
            if len(self._known) >= _MAX_LAYOUTS:
                self._known.clear()  # layouts in use are kept alive by their users
            layout = self._known[key] = Layout(key)
        return layout


def picker(places: Sequence[int]) -> Pick:
    """Return a function that picks the values at *places* from a row."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda _row: ()
    place = places[0]
    return lambda row: (row[place],)


Key = tuple[int, int]
"""Attempt and number of a window; windows are in the order of their keys."""

Summary = Mapping[str, Mapping[str, float]]
"""By name, the statistics of one rank: count, min, max, median, mean and std, in ns."""


@attrs.frozen
class Timings:
    """The times that one rank measured of its sections, or of its kernels, in one window."""

    layout: Layout
    medians: array[float]
    weights: array[float]
    """For a section, how often it was entered; for a kernel, its total time in ns."""
    lowest: array[float]
    """The smallest medians of the rank's own stream so far, these included."""
    shortest: array[float]
    """For a section, its shortest time; 0 if it was timed too seldom to be evidence. Empty for kernels."""
    number: int
    """The number of windows of the stream up to and including this one."""
    left_out_ns: float = 0.0
    """The total time of the excluded kernels."""

    def dump(self, place_of: Callable[[Layout], int]) -> list[Any]:
        """Return this as plain data."""
        return [
            place_of(self.layout),
            packed(self.medians),
            packed(self.weights),
            packed(self.lowest),
            packed(self.shortest),
            self.number,
            self.left_out_ns,
        ]

    @classmethod
    def load(cls, data: Any, layouts: list[Layout]) -> Timings:
        """Return the object that was dumped as *data*."""
        place, medians, weights, lowest, shortest, number, left_out_ns = data
        layout = layouts[place]
        found = unpacked(medians), unpacked(weights), unpacked(lowest), unpacked(shortest)
        if any(len(column) != len(layout) for column in (found if shortest else found[:3])):
            raise ValueError("as many values as names")
        return cls(layout, *found, number=int(number), left_out_ns=float(left_out_ns))


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
    """``sections`` and ``kernels`` in full; they are kept for one rank only."""
    waited_ns: float = 0.0
    """The time for which the rank waited for others, in the sections that are declared as waiting."""
    events: int = 0
    """The number of its rank's windows that it was made from, including those measured again after a roll-back."""

    @property
    def steps(self) -> int:
        """The number of steps it covers, at least one."""
        return max(1, self.last_step - self.first_step + 1)

    @property
    def step_ns(self) -> float:
        """The time from step to step on average, in ns, with everything in between."""
        return (self.end_ns - self.start_ns) / self.steps

    @property
    def waited_s_per_step(self) -> float:
        """Seconds per step for which the rank waited for others."""
        return self.waited_ns / self.steps / 1e9

    @property
    def left_out_s_per_step(self) -> float | None:
        """Seconds per step for which its GPU was in kernels that are left out; None where no kernels are known."""
        return None if self.kernels is None else self.kernels.left_out_ns / self.steps / 1e9

    def widen(self, first_step: int, last_step: int, start_ns: int, end_ns: int) -> None:
        """Extend the bounds to those of the rank's other event of this window."""
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
        """Return the object that was dumped as *data*."""
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
    """The number of events it was made from."""
    timed: int = 0
    """The number of members with sections."""

    def add(self, rank: int, member: Member) -> None:
        """Add the *member* of *rank*."""
        self.members[rank] = member
        self.revision += member.events
        self.timed += member.sections is not None

    def without(self, rank: int) -> None:
        """Remove the member of *rank*."""
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
        """Return the names of each layout, in the order of the layouts' numbers."""
        return [list(names) for names in self._places]

    @staticmethod
    def load(data: Any, layouts: Layouts) -> list[Layout]:
        """Return the layouts that were dumped as *data*."""
        if not all(type(name) is str for names in data for name in names):
            raise TypeError("a name that is no text")
        return [layouts.of(names) for names in data]
