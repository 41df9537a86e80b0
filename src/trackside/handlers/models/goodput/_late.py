"""What came too late to be put where it belongs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from trackside.handlers.models.goodput._block import Slice
from trackside.handlers.models.goodput._buckets import FIRST, WASTED
from trackside.handlers.models.goodput._paint import paint, paint_step


@attrs.frozen
class Late:
    """A stretch of time that lies among packed slices, kept until somebody asks."""

    start: int
    end: int
    code: int
    """Of a step, its flags."""
    number: int | None = None
    """Of a step."""
    is_step: bool = False
    steps_until: int = 0
    """Where the last step ended when it came, if that was later."""

    @property
    def is_doubtful(self) -> bool:
        """Whether its number may not fit between those of its neighbours."""
        return self.number is not None and self.steps_until > 0

    def lay(self, slices: list[Slice], before: Callable[[list[Slice], int], int]) -> None:
        """
        Lay it over *slices*.

        Args:
            slices: From where it begins on, to the end; changed.
            before: Returns the number of the step before a moment, of these slices and those before them.
        """
        if not self.is_step:
            paint(slices, self.start, self.end, self.code)
        elif self.is_doubtful and not self.fits(slices, before(slices, self.start)):
            paint_step(slices, self.start, self.end, None, self.code)
        else:
            paint_step(slices, self.start, self.end, self.number, self.code)

    def fits(self, slices: Iterable[Slice], before: int) -> bool:
        """
        Return whether its number leaves the steps in order that were there when it came.

        Args:
            slices: What it will be laid over, and all that follows.
            before: The number of the step before it.
        """
        number = self.number or 0
        for first, _, code, following in slices:
            if self.start <= first < self.steps_until and code & (FIRST | WASTED) == FIRST:
                return before <= number <= following
        return before <= number
