"""What one rank has been capable of so far: the reference of the individual scores."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any, Final

import attrs

from trackside.handlers.models.scores._layout import Layout, Layouts
from trackside.handlers.models.scores._packing import packed, unpacked

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
class Stream:
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

    def absorb(self, earlier: Stream, layouts: Layouts) -> None:
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
    def load(cls, data: Any, relax: float, layouts: Layouts) -> Stream:
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
