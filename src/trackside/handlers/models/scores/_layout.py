"""Which names stand in which columns: shared by all ranks that time the same things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Final

_MAX_LAYOUTS: Final = 1024

Pick = Callable[[Sequence[float]], Sequence[float]]


class Layout:
    """Some names in an order. Equal ones from one `Layouts` are usually the same object."""

    __slots__ = ("_excluded", "names", "places")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.places = {name: place for place, name in enumerate(names)}
        self._excluded: tuple[Callable[[str], bool], frozenset[int]] | None = None

    def excluded(self, exclude: Callable[[str], bool]) -> frozenset[int]:
        """Return the places of the names that *exclude* says yes to."""
        if self._excluded is None or self._excluded[0] is not exclude:
            self._excluded = exclude, frozenset(place for place, name in enumerate(self.names) if exclude(name))
        return self._excluded[1]

    def pick(self, names: Sequence[str]) -> Pick | None:
        """Return a function that takes the columns of *names*, all of them here, out of a row; None if it is as is."""
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
                self._known.clear()  # those in use stay alive with what uses them
            layout = self._known[key] = Layout(key)
        return layout


def picker(places: Sequence[int]) -> Pick:
    """Return a function that takes the values at *places* out of a row."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda _row: ()
    place = places[0]
    return lambda row: (row[place],)
