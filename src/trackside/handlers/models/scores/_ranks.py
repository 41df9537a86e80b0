"""The ranks of a run: how many each attempt has, and what each measured so far."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from trackside.events import Source
from trackside.handlers.models.scores._evaluation import Column
from trackside.handlers.models.scores._window import Key, Layout, Layouts, Member, Timings, Window, packed, unpacked

_MAX_NAMES: Final = 1 << 14


class Lowest:
    """
    The smallest median of each name in one stream of windows.

    Before each window every value grows by the share *relax*, so that one lucky window does not set the bar for ever.
    """

    __slots__ = ("_growth", "layout", "values")

    def __init__(self, relax: float) -> None:
        self._growth = 1.0 + relax
        self.layout = Layout(())
        self.values = array("d")

    def take(self, layout: Layout, medians: array[float], layouts: Layouts) -> array[float]:
        """Learn of a window's *medians*, and return the smallest so far of the same names, these included."""
        if layout is not self.layout:
            return self._take_others(layout, medians, layouts)
        self.values = array("d", map(min, self._relaxed(), medians))
        return self.values

    def _take_others(self, layout: Layout, medians: array[float], layouts: Layouts) -> array[float]:
        new = [name for name in layout.names if name not in self.layout.places]
        if len(self.layout) + len(new) > _MAX_NAMES:
            self.layout, self.values, new = Layout(()), array("d"), list(layout.names)
        # A fresh array: windows hold the former one.
        self.values = array("d", self._relaxed())
        if new:
            self.layout = layouts.of((*self.layout.names, *new))
            self.values.extend([float("inf")] * len(new))
        places = self.layout.places
        for name, median in zip(layout.names, medians, strict=True):
            place = places[name]
            self.values[place] = min(self.values[place], median)
        return array("d", [self.values[places[name]] for name in layout.names])

    def _relaxed(self) -> Iterable[float]:
        growth = self._growth
        return self.values if growth == 1.0 else [value * growth for value in self.values]

    def after(self, name: str, windows: int) -> float:
        """Return the smallest median of *name* as it stands after so many more windows; infinite if there is none."""
        place = self.layout.places.get(name)
        return float("inf") if place is None else self.values[place] * self._growth**windows

    def absorb(self, earlier: Lowest, windows: int, layouts: Layouts) -> None:
        """Take over what an *earlier* stream was capable of, as it stands after this one's *windows*."""
        names = earlier.layout.names[: _MAX_NAMES - len(self.layout)]
        self.layout = layouts.of(dict.fromkeys((*self.layout.names, *names)))
        known = dict.fromkeys(self.layout.names, float("inf"))
        known.update(zip(self.layout.names, self.values, strict=True))
        for name in names:
            known[name] = min(known[name], earlier.after(name, windows))
        self.values = array("d", known.values())

    def dump(self) -> list[Any]:
        """Return this as plain data."""
        return [list(self.layout.names), packed(self.values)]

    def load(self, data: Any, layouts: Layouts) -> None:
        """Become what was dumped as *data*."""
        names, values = data
        self.layout, self.values = layouts.of(names), unpacked(values)
        if len(self.layout) != len(self.values):
            raise ValueError("as many values as names")


@attrs.define
class RankMeasurements:
    """One rank in one attempt."""

    source: tuple[int, str]
    """When the process began, and its id: of two that claim to be the same rank and attempt the later one counts."""
    sections: Lowest
    kernels: Lowest
    tag: tuple[str, ...] = ()
    section_windows: int = 0
    kernel_windows: int = 0
    gpu_off: str | None = None
    """Why it has no GPU times, if it said so."""

    def begin_anew(self, tag: tuple[str, ...], relax: float) -> None:
        """Forget what it was capable of: under another performance *tag* the work is another."""
        if tag != self.tag:
            self.tag = tag
            self.sections, self.kernels = Lowest(relax), Lowest(relax)
            self.section_windows = self.kernel_windows = 0

    def absorb(self, earlier: RankMeasurements, layouts: Layouts) -> None:
        """Take over the history of an *earlier* attempt, if the work was the same."""
        if earlier.tag == self.tag:
            self.sections.absorb(earlier.sections, self.section_windows, layouts)
            self.kernels.absorb(earlier.kernels, self.kernel_windows, layouts)

    def dump(self) -> list[Any]:
        """Return this as plain data."""
        return [
            list(self.source),
            self.sections.dump(),
            self.kernels.dump(),
            list(self.tag),
            self.section_windows,
            self.kernel_windows,
            self.gpu_off,
        ]

    @classmethod
    def load(cls, data: Any, relax: float, layouts: Layouts) -> RankMeasurements:
        """Return what was dumped as *data*."""
        source, sections, kernels, tag, section_windows, kernel_windows, gpu_off = data
        stream = cls(
            (int(source[0]), str(source[1])),
            Lowest(relax),
            Lowest(relax),
            tuple(map(str, tag)),
            int(section_windows),
            int(kernel_windows),
            gpu_off,
        )
        stream.sections.load(sections, layouts)
        stream.kernels.load(kernels, layouts)
        return stream


_MAX_RANKS: Final = 1 << 16
_MAX_ATTEMPTS: Final = 4
"""Of each rank whose history is kept apart; earlier ones are merged into the first of these."""


class Ranks:
    """The streams of all ranks, by rank and attempt."""

    def __init__(self, relax: float) -> None:
        self.layouts = Layouts()
        self._relax = relax
        self._streams: dict[int, dict[int, RankMeasurements]] = {}
        self._worlds: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self.settings = 0
        """How often a rank has said something of itself that may change how windows are read."""

    def has_room_for(self, source: Source) -> bool:
        """Return whether *source* is one of as many ranks as can be."""
        return source.rank < _MAX_RANKS

    def stream(self, source: Source, windows: Mapping[Key, Window]) -> RankMeasurements | None:
        """
        Return the stream of *source*; None if a later process has the same rank and attempt.

        What an earlier such process said is taken out of *windows*.
        """
        attempts = self._streams.setdefault(source.rank, {})
        mark = (source.anchor.wall_ns, source.id)
        stream = attempts.get(source.attempt)
        if stream is not None and stream.source == mark:
            return stream
        if stream is not None and stream.source > mark:
            return None
        if stream is not None:
            for (attempt, _), window in windows.items():
                if attempt == source.attempt:
                    window.without(source.rank)
        fresh = RankMeasurements(mark, Lowest(self._relax), Lowest(self._relax), tag=source.perf_tags)
        attempts[source.attempt] = fresh
        self._worlds[source.attempt] = max(self._worlds.get(source.attempt, 0), self._world(source))
        if len(attempts) > _MAX_ATTEMPTS:
            oldest, second = sorted(attempts)[:2]
            attempts[second].absorb(attempts.pop(oldest), self.layouts)
        return attempts.get(source.attempt, fresh)

    @staticmethod
    def _world(source: Source) -> int:
        # A launcher that is wrong about the world must not make a report of a billion silent ranks.
        return source.world_size if source.world_size <= _MAX_RANKS else source.rank + 1

    def configure(self, source: Source, tag: tuple[str, ...]) -> None:
        """Learn that *source* works under a performance *tag*."""
        stream = self.stream(source, {}) if self.has_room_for(source) else None
        if stream is not None and stream.tag != tag:
            stream.begin_anew(tag, self._relax)
            self.settings += 1

    def lacks_gpu_times(self, source: Source, reason: str) -> None:
        """Learn why *source* has no GPU times."""
        stream = self.stream(source, {}) if self.has_room_for(source) else None
        if stream is not None:
            stream.gpu_off = reason
            self.settings += 1

    def count(self, attempt: int) -> None:
        """Count something new of *attempt*: what was computed from earlier states of it is void."""
        self._versions[attempt] = self._versions.get(attempt, 0) + 1

    def version_before(self, attempt: int) -> int:
        """Return how often anything of an attempt before *attempt* has changed."""
        if len(self._versions) == 1:
            return 0
        return sum(count for known, count in self._versions.items() if known < attempt)

    def expected(self, attempt: int) -> int:
        """Return how many ranks *attempt* has."""
        return self._worlds.get(attempt, 0)

    def of(self, attempt: int, seen: Collection[int]) -> list[int]:
        """Return the ranks of *attempt*: those of its world, and those *seen* beyond."""
        world = self.expected(attempt)
        return [*range(world), *sorted(rank for rank in seen if rank >= world)]

    def gpu_off(self, attempt: int, rank: int) -> str | None:
        """Return why *rank* has no GPU times, if it said so."""
        stream = self._streams.get(rank, {}).get(attempt)
        return None if stream is None else stream.gpu_off

    def references(self, attempt: int, rank: int, member: Member, timings: Timings) -> Column:
        """Return the smallest medians that *rank* has had up to a window, those of earlier attempts included."""
        earlier = [
            stream
            for known, stream in self._streams.get(rank, {}).items()
            if known < attempt and stream.tag == member.tag
        ]
        if not earlier:
            return timings.lowest
        is_of_sections = timings is member.sections
        histories = [stream.sections if is_of_sections else stream.kernels for stream in earlier]
        return array(
            "d",
            [
                min(own, *(history.after(name, timings.number) for history in histories))
                for name, own in zip(timings.layout.names, timings.lowest, strict=True)
            ],
        )

    def dump(self) -> list[Any]:
        """Return this as plain data."""
        streams = [
            [rank, attempt, stream.dump()]
            for rank, attempts in sorted(self._streams.items())
            for attempt, stream in sorted(attempts.items())
        ]
        return [streams, sorted(map(list, self._worlds.items())), sorted(map(list, self._versions.items()))]

    def load(self, data: Any) -> None:
        """Become what was dumped as *data*."""
        streams, worlds, versions = data
        for rank, attempt, stream in streams:
            loaded = RankMeasurements.load(stream, self._relax, self.layouts)
            self._streams.setdefault(int(rank), {})[int(attempt)] = loaded
        self._worlds = {int(attempt): int(world) for attempt, world in worlds}
        self._versions = {int(attempt): int(version) for attempt, version in versions}
