"""How far another clock is from this one, from the exchanges on a link."""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs

_EXCHANGES: Final = 16
_BETTER: Final = 0.8


@attrs.frozen
class Offset:
    """How far the other clock is ahead, as one exchange shows it."""

    offset_ns: int
    uncertainty_ns: int
    """The truth is within this of *offset_ns*, whatever the way there and back each took."""


class ClockOffset:
    """
    The offset of one peer's clock, from the quickest of the last sixteen exchanges.

    A reply that was quick leaves little room for error: the true offset differs from the estimate by at most half of
    the round trip (D. L. Mills, RFC 5905, section 8). Older exchanges leave, because clocks drift.
    """

    def __init__(self) -> None:
        self.exchanges = 0
        self._recent: deque[Offset] = deque(maxlen=_EXCHANGES)
        self._told: Offset | None = None
        self._is_fresh = False

    def add(self, sent_ns: int, received_ns: int, replied_ns: int, now_ns: int) -> None:
        """
        Take one exchange into account.

        Args:
            sent_ns: When the question left, by this clock.
            received_ns: When it arrived, by the other.
            replied_ns: When the answer left, by the other.
            now_ns: When it arrived, by this clock.
        """
        round_trip_ns = (now_ns - sent_ns) - (replied_ns - received_ns)
        if round_trip_ns < 0 or replied_ns < received_ns:
            return  # no clock can say so; whoever did is not believed
        self.exchanges += 1
        self._is_fresh = True
        offset_ns = ((received_ns - sent_ns) + (replied_ns - now_ns)) // 2
        self._recent.append(Offset(offset_ns, (round_trip_ns + 1) // 2))

    @property
    def best(self) -> Offset | None:
        """What the quickest of the recent exchanges says; None before the first."""
        return min(self._recent, key=lambda one: one.uncertainty_ns, default=None)

    def news(self) -> Offset | None:
        """Return the best estimate if it says something else than the last one returned: better, or moved."""
        if not self._is_fresh:
            return None
        self._is_fresh = False
        best, told = self.best, self._told
        if best is None:
            return None
        if told is not None:
            is_better = best.uncertainty_ns < told.uncertainty_ns * _BETTER
            has_moved = abs(best.offset_ns - told.offset_ns) > best.uncertainty_ns + told.uncertainty_ns
            if not is_better and not has_moved:
                return None
        self._told = best
        return best
