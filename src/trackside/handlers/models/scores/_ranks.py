"""Who there is: the ranks of each attempt, and what each has been capable of."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping
from typing import Any, Final

from trackside.events import Source
from trackside.handlers.models.scores._formulas import Column
from trackside.handlers.models.scores._history import Lowest, Stream
from trackside.handlers.models.scores._layout import Layouts
from trackside.handlers.models.scores._window import Key, Member, Timings, Window

_MAX_RANKS: Final = 1 << 16
_MAX_ATTEMPTS: Final = 4
"""Of each rank whose history is kept apart; earlier ones are merged into the first of these."""


class Ranks:
    """The streams of all ranks, by rank and attempt."""

    def __init__(self, relax: float) -> None:
        self.layouts = Layouts()
        self._relax = relax
        self._streams: dict[int, dict[int, Stream]] = {}
        self._worlds: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self.settings = 0
        """How often a rank has said something of itself that may change how windows are read."""

    def has_room_for(self, source: Source) -> bool:
        """Return whether *source* is one of as many ranks as can be."""
        return source.rank < _MAX_RANKS

    def stream(self, source: Source, windows: Mapping[Key, Window]) -> Stream | None:
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
        fresh = Stream(mark, Lowest(self._relax), Lowest(self._relax), tag=source.perf_tags)
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
            loaded = Stream.load(stream, self._relax, self.layouts)
            self._streams.setdefault(int(rank), {})[int(attempt)] = loaded
        self._worlds = {int(attempt): int(world) for attempt, world in worlds}
        self._versions = {int(attempt): int(version) for attempt, version in versions}
